"""`vanilla-transformer train`: from a recipe, or from pairs of text alone, to a model."""

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
    return f"A recipe of the package ({names}) or a YAML file; it comes before all options."


@dataclass(frozen=True)
class Train:
    """Train a model from pairs of text: by a recipe, by options, or by a recipe with some of its fields changed.

    For a start, `train --train corpus.en corpus.de --output my-model` is enough: what is not given is chosen from the
    data and the device, and printed. A run that was stopped goes on when the same command is given again. On several
    devices: `accelerate launch -m vanilla_transformer train ...`.
    """

    name: Annotated[str | None, Positional, arg(metavar="[RECIPE]", help=_recipe_help(), help_behavior_hint="")] = None
    dry_run: Flag = False
    """Start all processes, prepare the text, print what each would do in its next steps, and end there."""
    recipe: Recipe = Recipe()

    @classmethod
    def from_words(cls, words: list[str]) -> "Train":
        """The defaults of the options: those of the recipe that the words begin with, if they do."""
        if words and not words[0].startswith("-"):
            return cls(words[0], recipe=load_recipe(words[0]))
        return cls()

    def run(self) -> None:
        """Trains, and prints the directory of the model, once for all processes."""
        if self.name in shipped_recipes() and not self.recipe.train:
            raise UsageError(
                f"The recipe {self.name} brings no text: give it as --train, and read in the comment at the top of "
                f"{shipped_recipes()[self.name]} where it comes from."
            )
        from accelerate import PartialState

        from vanilla_transformer.training.dry_run import rehearse
        from vanilla_transformer.training.loop import train

        recipe = self._for_what_is_given()
        if self.dry_run:
            rehearse(recipe)
            return
        directory = train(recipe)
        # Its own print would say it once for each machine.
        if PartialState().is_main_process:
            print(directory)

    def _for_what_is_given(self) -> Recipe:
        """The recipe without what its file says of text or of a tokenizer that the options have replaced."""
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
