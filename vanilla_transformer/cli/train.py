"""`vanilla-transformer train`: train a model from a recipe, or from parallel text alone."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag, help_of
from vanilla_transformer.recipe.blocks import option_of
from vanilla_transformer.recipe.reading import load_recipe, named_recipe, shipped_recipes
from vanilla_transformer.recipe.schema import Recipe, places


def recipe_help() -> str:
    """Describes the argument that names a recipe."""
    names = ", ".join(sorted(shipped_recipes()))
    return f"A built-in recipe ({names}) or a YAML file; must come before all options."


# The options that `train --help` shows.
_BRIEF = (
    *("task", "train", "dev", "test", "max_length", "tokenizer_algorithm", "vocab_size"),
    *("from_model", "preset", "dropout"),
    *("batch_tokens", "max_steps", "learning_rate", "precision", "seed"),
    *("eval_steps", "metrics", "num_beams", "output", "processes"),
)


def recipe_options() -> dict[str, tuple[str, Any, Any]]:
    """Returns the settings of a recipe as command-line options, each with its type, help and default."""
    options = {"task": _option("task", str, help_of(Recipe)["task"], "NAME", Recipe.task)}
    for block in Recipe().blocks.values():
        texts = help_of(type(block))
        for field in dataclasses.fields(block):
            name = option_of(field)
            metavar = field.metadata.get("metavar") or _metavar(field.type)
            options[name] = _option(name, field.type, texts[field.name], metavar, field.default)
    return options


def _option(name: str, hint: Any, help_text: str, metavar: str | None, default: Any) -> tuple[str, Any, Any]:
    settings = arg(
        # The word itself is a Python keyword.
        name="from" if name == "from_model" else None,
        help=help_text,
        metavar=metavar,
        help_behavior_hint=_default_in_words,
    )
    option: Any = Annotated[hint, settings]
    return name, option, dataclasses.field(default=default)


def _grouped_options(names: Container[str] | None = None) -> Any:
    """Returns a dataclass of all or the named options, by the blocks of the recipe; `data` has the task too."""
    block_of = {"task": "data"} | {option: block for option, (block, _) in places().items()}
    fields: dict[str, list[Any]] = {block: [] for block in block_of.values()}
    for name, option in recipe_options().items():
        if names is None or name in names:
            fields[block_of[name]].append(option)
    groups = {name: dataclasses.make_dataclass(name, listed, frozen=True) for name, listed in fields.items() if listed}
    members = [(name, group, dataclasses.field(default=group())) for name, group in groups.items()]
    return dataclasses.make_dataclass("RecipeOptions", members, frozen=True)


def _metavar(hint: Any) -> str | None:
    if hint is bool:
        return None
    types_of = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for option in types_of:
        if typing.get_origin(option) is Literal:
            return "{" + ",".join(typing.get_args(option)) + "}"
    return {int: "INT", float: "FLOAT"}.get(types_of[0], "TEXT")


def _default_in_words(default: str) -> str:
    """Returns the default for the help, empty if the help itself explains it."""
    return "" if default in ("None", "") else f"(default: {default})"


RecipeOptions: Any = _grouped_options()
_BriefOptions: Any = _grouped_options(_BRIEF)


def options_of(recipe: Recipe, kind: Any = RecipeOptions) -> Any:
    """Returns the settings of a recipe as grouped options, over which a command line is parsed."""
    values = recipe.options
    groups = {
        name: type(group)(**{option: values[option] for option in vars(group)}) for name, group in vars(kind()).items()
    }
    return kind(**groups)


def recipe_of(options: Any) -> Recipe:
    """Returns the recipe that grouped options describe."""
    return Recipe.of(**{name: value for group in vars(options).values() for name, value in vars(group).items()})


@dataclass(frozen=True)
class Train:
    """Train a model on text, from a recipe, from options, or from a recipe with some options overridden.

    To start, `train --train corpus.en corpus.de --output my-model` is enough: all other settings are chosen from the
    data and the device, and printed. If interrupted, run the same command again to continue. On a CPU, several
    processes share its cores; for several devices use `accelerate launch -m vanilla_transformer train ...`.
    """

    name: Annotated[str | None, Positional, arg(metavar="[RECIPE]", help=recipe_help(), help_behavior_hint="")] = None
    dry_run: Flag = False
    """Start all processes, prepare the text, print the plan of the run, and end before its first step."""
    options: Annotated[RecipeOptions, arg(name="")] = RecipeOptions()

    @property
    def recipe(self) -> Recipe:
        """Returns the recipe of the options, or the named one overridden by these options."""
        recipe = recipe_of(self.options)
        return recipe if self.name is None else named_recipe(self.name, recipe.options)

    @classmethod
    def from_words(cls, words: list[str]) -> "Train":
        """Returns the command with its defaults taken from the recipe, if the first word names one."""
        if words and not words[0].startswith("-"):
            return cls(words[0], options=options_of(load_recipe(words[0]), type(cls().options)))
        return cls()

    def run(self) -> None:
        """Trains and prints the model directory, from one process only."""
        from vanilla_transformer.training.processes import launch, processes_for, run_worker

        recipe = self.recipe
        processes = processes_for(recipe)
        if processes > 1:
            launch(processes, recipe, ["--dry-run"] * self.dry_run)
        else:
            run_worker(partial(self._train, recipe))

    def _train(self, recipe: Recipe) -> None:
        from vanilla_transformer.training.loop import train
        from vanilla_transformer.training.processes import is_main_process

        run = train(recipe, dry_run=self.dry_run)
        if is_main_process() and not self.dry_run:
            print(run)


@dataclass(frozen=True)
class TrainBriefly(Train):
    """`train` with its most used options, for its help."""

    options: Annotated[_BriefOptions, arg(name="")] = _BriefOptions()


TrainBriefly.__doc__ = (
    f"{inspect.getdoc(Train)} These are the most used options; `train --help-all` shows all of them."
)
