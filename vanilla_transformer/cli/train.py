"""`vanilla-transformer train`: train a model from a recipe, or from parallel text alone."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag, UsageError
from vanilla_transformer.data.places import may_have_columns
from vanilla_transformer.data.sources import parse_sources
from vanilla_transformer.recipe.schema import Recipe, load_recipe, shipped_recipes


def _recipe_help() -> str:
    names = ", ".join(sorted(shipped_recipes()))
    return f"A built-in recipe ({names}) or a YAML file; must come before all options."


@dataclass(frozen=True)
class Train:
    """Train a model on parallel text, from a recipe, from options, or from a recipe with some fields overridden.

    To start, `train --train corpus.en corpus.de --output my-model` is enough: all other settings are chosen from the
    data and the device, and printed. If interrupted, run the same command again to continue. On several devices:
    `accelerate launch -m vanilla_transformer train ...`.
    """

    name: Annotated[str | None, Positional, arg(metavar="[RECIPE]", help=_recipe_help(), help_behavior_hint="")] = None
    dry_run: Flag = False
    """Start all processes, prepare the data, print what each would do in its next steps, and exit."""
    recipe: Recipe = Recipe()

    @classmethod
    def from_words(cls, words: list[str]) -> "Train":
        """The command with its defaults taken from the recipe, if the first word names one."""
        if words and not words[0].startswith("-"):
            return cls(words[0], recipe=load_recipe(words[0]))
        return cls()

    def run(self) -> None:
        """Trains and prints the model directory, from one process only."""
        if self.name in shipped_recipes() and not self.recipe.train:
            raise UsageError(
                f"The recipe {self.name} comes without data: give it with --train; the comment at the top of "
                f"{shipped_recipes()[self.name]} says where to get it."
            )
        from accelerate import PartialState

        from vanilla_transformer.training.dry_run import rehearse
        from vanilla_transformer.training.loop import train

        recipe = self._for_what_is_given()
        if self.dry_run:
            rehearse(recipe)
            return
        directory = train(recipe)
        # accelerate's own print would repeat it on every machine.
        if PartialState().is_main_process:
            print(directory)

    def _for_what_is_given(self) -> Recipe:
        """The recipe without its settings for data or a tokenizer that the options have replaced."""
        if self.name is None:
            return self.recipe
        named, given = load_recipe(self.name), self.recipe
        replaced: dict[str, Any] = {}
        sources = [*parse_sources(given.train), *parse_sources(given.dev), *parse_sources(given.test)]
        if given.train != named.train and not any(may_have_columns(source.parts) for source in sources):
            names = ("source_column", "target_column")
            replaced |= {name: None for name in names if getattr(given, name) == getattr(named, name)}
        if given.tokenizer != named.tokenizer and given.vocab_size == named.vocab_size:
            replaced["vocab_size"] = None
        return dataclasses.replace(given, **replaced)
