"""`vanilla-transformer train`: train a model from a recipe, or from parallel text alone."""

import os
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag
from vanilla_transformer.machine import BEGUN
from vanilla_transformer.recipe.reading import load_recipe, named_recipe, shipped_recipes
from vanilla_transformer.recipe.schema import Recipe

RECIPE_HELP = (
    f"A built-in recipe ({', '.join(sorted(shipped_recipes()))}) or a YAML file; must come before all options."
)


@dataclass(frozen=True)
class Train:
    """Train a model on text, from a recipe, from options, or from a recipe with some options overridden.

    To start, `train --train corpus.en corpus.de --output my-model` is enough: all other settings are chosen from the
    data and the device, and printed. If interrupted, run the same command again to continue. All accelerators of the
    machine take part; for several machines use `torchrun ... -m vanilla_transformer train ...`.
    """

    name: Annotated[str | None, Positional, arg(metavar="[RECIPE]", help=RECIPE_HELP, help_behavior_hint="")] = None
    #: End a stopped run with the model of its last checkpoints: averaged, scored, with its card.
    finish: Flag = False
    recipe: Annotated[Recipe, arg(name="")] = Recipe()

    @classmethod
    def from_words(cls, words: list[str]) -> "Train":
        """Returns the command with its defaults taken from the recipe, if the first word names one."""
        if words and not words[0].startswith("-"):
            return cls(words[0], recipe=load_recipe(words[0]))
        return cls()

    def run(self) -> None:
        """Trains and prints the model directory, from one process only."""
        from vanilla_transformer.training.processes import end_with_launcher, is_main_process, launch, processes_for
        from vanilla_transformer.training.run_directory import output_path

        recipe = self.settled()
        output_path(recipe)  # It raises an error if there is none, before processes are started.
        processes = processes_for(recipe)
        if processes > 1:
            launch(processes, recipe, *["--finish"] * self.finish)
            return
        end_with_launcher()
        from vanilla_transformer.training.run import train_by

        begun = os.environ.get(BEGUN)
        run = train_by(recipe, finish=self.finish, begun=None if begun is None else float(begun))
        if is_main_process():
            print(run)

    def settled(self) -> Recipe:
        """Returns the recipe of the options; what they replace of a named recipe takes its settings along."""
        return self.recipe if self.name is None else named_recipe(self.name, self.recipe.options)
