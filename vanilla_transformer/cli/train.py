"""`vanilla-transformer train`: train a model from a recipe, or from parallel text alone."""

import ast
import dataclasses
import inspect
import types
import typing
from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag
from vanilla_transformer.data.columns import COLUMN_SETTINGS
from vanilla_transformer.recipe.schema import Recipe, load_recipe, named_recipe, shipped_recipes


def recipe_help() -> str:
    """Describes the argument that names a recipe."""
    names = ", ".join(sorted(shipped_recipes()))
    return f"A built-in recipe ({names}) or a YAML file; must come before all options."


# Each group of options begins with the fields named here; fields keep the order of the recipe.
_GROUPS = {
    "data": ("task",),
    "model": ("from_model",),
    "optimisation": ("batch_tokens",),
    "evaluation": ("eval_steps",),
    "decoding": ("num_beams",),
    "output": ("save_steps", "output"),
}
# The options that `train --help` shows.
_BRIEF = (
    *("task", "train", "dev", "test", "max_length", "tokenizer_algorithm", "vocab_size"),
    *("from_model", "preset", "dropout"),
    *("batch_tokens", "max_steps", "learning_rate", "precision", "seed"),
    *("eval_steps", "metrics", "num_beams", "output", "processes"),
)
_METAVARS = {
    **dict.fromkeys(("task", "preset"), "NAME"),
    "from_model": "MODEL",
    "distil_from": "DIR",
    **dict.fromkeys(("train", "dev", "test"), "CORPUS ..."),
    **dict.fromkeys(COLUMN_SETTINGS, "COLUMN"),
    "labels": "LABEL ...",
    "tokenizer": "MODEL",
    "metrics": "METRIC ...",
    "examples": "TEXT ...",
    "output": "DIR",
    "trackers": "NAME ...",
}


def recipe_options() -> dict[str, tuple[str, Any, Any]]:
    """The fields of the recipe as options of the command line, each with its type, help and default."""
    [body] = ast.parse(inspect.getsource(Recipe)).body
    assert isinstance(body, ast.ClassDef)
    help_of = {
        ast.unparse(field.target): " ".join(doc.value.value.split())
        for field, doc in pairwise(body.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }
    options = {}
    for field in dataclasses.fields(Recipe):
        settings = arg(
            # The word itself is Python's own.
            name="from" if field.name == "from_model" else None,
            help=help_of[field.name],
            metavar=_metavar(field.name, field.type),
            help_behavior_hint=_default_in_words,
        )
        option: Any = Annotated[field.type, settings]
        options[field.name] = field.name, option, dataclasses.field(default=field.default)
    return options


def _option_groups(names: Container[str] | None = None) -> dict[str, type]:
    """A dataclass for each group of options of the command line, of all options or of those named."""
    group_of = {field: group for group, fields in _GROUPS.items() for field in fields}
    fields: dict[str, list[Any]] = {group: [] for group in _GROUPS}
    group = next(iter(_GROUPS))
    for name, option in recipe_options().items():
        group = group_of.get(name, group)
        if names is None or name in names:
            fields[group].append(option)
    return {name: dataclasses.make_dataclass(name, listed, frozen=True) for name, listed in fields.items() if listed}


def _metavar(name: str, hint: Any) -> str | None:
    if hint is bool:
        return None
    types_of = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for option in types_of:
        if typing.get_origin(option) is Literal:
            return "{" + ",".join(typing.get_args(option)) + "}"
    return _METAVARS.get(name, {int: "INT", float: "FLOAT"}.get(types_of[0], "TEXT"))


def _default_in_words(default: str) -> str:
    """Nothing where the help itself says what holds without the option."""
    return "" if default in ("None", "") else f"(default: {default})"


def _options_of(groups: dict[str, type]) -> Any:
    fields = [(name, group, dataclasses.field(default=group())) for name, group in groups.items()]
    return dataclasses.make_dataclass("_Options", fields, frozen=True)


_OPTION_GROUPS = _option_groups()
_Options: Any = _options_of(_OPTION_GROUPS)
_BriefOptions: Any = _options_of(_option_groups(_BRIEF))


@dataclass(frozen=True)
class Train:
    """Train a model on text, from a recipe, from options, or from a recipe with some fields overridden.

    To start, `train --train corpus.en corpus.de --output my-model` is enough: all other settings are chosen from the
    data and the device, and printed. If interrupted, run the same command again to continue. On a CPU several
    processes share its cores; on several devices: `accelerate launch -m vanilla_transformer train ...`.
    """

    name: Annotated[str | None, Positional, arg(metavar="[RECIPE]", help=recipe_help(), help_behavior_hint="")] = None
    dry_run: Flag = False
    """Start all processes, prepare the data, print what each would do in its next steps, and exit."""
    options: Annotated[_Options, arg(name="")] = _Options()

    @property
    def recipe(self) -> Recipe:
        """The recipe with the values of the options."""
        groups = [getattr(self.options, name) for name in _OPTION_GROUPS]
        return Recipe(**{name: value for group in groups for name, value in vars(group).items()})

    @classmethod
    def from_words(cls, words: list[str]) -> "Train":
        """The command with its defaults taken from the recipe, if the first word names one."""
        if words and not words[0].startswith("-"):
            values = vars(load_recipe(words[0]))
            options = cls().options
            groups = {
                name: type(group)(**{field: values[field] for field in vars(group)})
                for name, group in vars(options).items()
            }
            return cls(words[0], options=type(options)(**groups))
        return cls()

    def run(self) -> None:
        """Trains and prints the model directory, from one process only."""
        from vanilla_transformer.distributed.companions import companions, end_with_first, is_companion
        from vanilla_transformer.distributed.torchrun import end_with_parent, is_worker, run_worker
        from vanilla_transformer.training.run_directory import processes_for

        recipe = self._chosen()
        if is_worker():
            end_with_parent()
        if is_companion():
            end_with_first()
        with companions(processes_for(recipe), recipe, ["--dry-run"] if self.dry_run else []):
            run_worker(partial(self._train, recipe))

    def _train(self, recipe: Recipe) -> None:
        from vanilla_transformer.distributed.peers import is_main_process
        from vanilla_transformer.training.dry_run import dry_run
        from vanilla_transformer.training.loop import train

        if self.dry_run:
            dry_run(recipe)
            return
        run = train(recipe)
        if is_main_process():
            print(run)

    def _chosen(self) -> Recipe:
        """The recipe of the options, or the named one with these in place of its own."""
        return self.recipe if self.name is None else named_recipe(self.name, vars(self.recipe))


@dataclass(frozen=True)
class TrainBriefly(Train):
    """Train a model on text, from a recipe, from options, or from a recipe with some fields overridden.

    To start, `train --train corpus.en corpus.de --output my-model` is enough: all other settings are chosen from the
    data and the device, and printed. If interrupted, run the same command again to continue. These are the options
    that are set most; `train --help-all` shows all of them.
    """

    options: Annotated[_BriefOptions, arg(name="")] = _BriefOptions()
