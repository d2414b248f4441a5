"""The recipe: all settings of a training run, in blocks, or as options with flat names."""

import dataclasses
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Self

import yaml

from vanilla_transformer.data.sources import CorpusSpec, parse_corpora, to_words
from vanilla_transformer.errors import CorpusError, RecipeError
from vanilla_transformer.recipe.blocks import (
    Block,
    Classification,
    Data,
    Decoding,
    Evaluation,
    Model,
    Optimization,
    Recurrent,
    Run,
    Start,
    Tokenizer,
    checked_type,
    option_of,
)
from vanilla_transformer.suggestions import did_you_mean


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run as given; the others are chosen from the data and the device, and printed.

    `Recipe.of(train=("a.en", "a.de"), max_steps=300)` takes them by the names of options, as on the command line, and
    `recipe["max_steps"]` returns one.
    """

    task: str = "translation"
    """Task to train for."""
    data: Data = Data()
    tokenizer: Tokenizer = Tokenizer()
    start: Start = Start()
    model: Model = Model()
    recurrent: Recurrent = Recurrent()
    classification: Classification = Classification()
    optimization: Optimization = Optimization()
    evaluation: Evaluation = Evaluation()
    decoding: Decoding = Decoding()
    run: Run = Run()

    def __new__(cls, *_: Any, **blocks: Any) -> Self:
        """Refuses options by name, which are the arguments of `of`."""
        if options := [f"{name}={value!r}" for name, value in blocks.items() if name not in cls.__dataclass_fields__]:
            raise RecipeError(f"A recipe consists of blocks, not options: write `Recipe.of({', '.join(options)})`.")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        checked_type("task", self.task, str)

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Returns a recipe with these options.

        Raises:
            RecipeError: There is no such option, or it cannot have that value.
        """
        return cls().with_options(**options)

    def with_options(self, **options: Any) -> Self:
        """Returns the recipe overridden by these options.

        Raises:
            RecipeError: There is no such option, or it cannot have that value.
        """
        blocks: dict[str, Any] = {}
        task = options.pop("task", self.task)
        for option, value in options.items():
            if option not in places():
                hint = did_you_mean(option, ["task", *places()]) or "."
                raise RecipeError(f"{option!r} is not a field of a recipe{hint}")
            block, field = places()[option]
            blocks.setdefault(block, {})[field] = value
        blocks = {name: dataclasses.replace(self.blocks[name], **fields) for name, fields in blocks.items()}
        return dataclasses.replace(self, task=task, **blocks)

    @property
    def blocks(self) -> dict[str, Block]:
        """Returns all blocks by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Block)}

    @property
    def options(self) -> dict[str, Any]:
        """Returns all settings by the names of options."""
        blocks = self.blocks
        return {"task": self.task} | {
            option: getattr(blocks[block], field) for option, (block, field) in places().items()
        }

    def __getitem__(self, option: str) -> Any:
        """Returns the setting of that option."""
        return self.options[option]

    def used(self, *names: str) -> list[str]:
        """Returns the options among these, or in blocks of these names, that differ from their defaults."""
        mine, default = self.options, Recipe().options
        options = [option for option, (block, _) in places().items() if block in names or option in names]
        return [option for option in options if mine[option] != default[option]]

    def given(self) -> dict[str, Any]:
        """Returns the options that are set, in plain YAML types."""
        return {option: _plain(value) for option, value in self.options.items() if value is not None}

    def to_yaml(self) -> str:
        """Returns the recipe as YAML that `load_recipe` reads back; None stands for a value to be chosen.

        Blocks that not every recipe uses are left out if they equal their defaults.
        """
        plain: dict[str, Any] = {"task": self.task}
        for name, block in self.blocks.items():
            settings = {
                field.name: _plain(value)
                for field in dataclasses.fields(block)
                if (value := getattr(block, field.name)) is not None and (value, field.default) != ((), ())
            }
            if settings and (block.is_used or name in _ALWAYS):
                plain[name] = settings
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1000)
        # Some rare characters, such as U+0085, are line breaks to the YAML reader unless they are escaped.
        return text if yaml.safe_load(text) == plain else yaml.safe_dump(plain, sort_keys=False, width=1000)


# Their defaults may change, and a run keeps its own.
_ALWAYS = ("data", "tokenizer", "model", "optimization", "evaluation", "decoding", "run")


@cache
def places() -> dict[str, tuple[str, str]]:
    """Returns the block and the field of each option."""
    return {
        option_of(field): (name, field.name)
        for name, block in Recipe().blocks.items()
        for field in dataclasses.fields(block)
    }


@dataclass(frozen=True, kw_only=True)
class ResolvedTokenizer(Tokenizer):
    """The tokenizer with its vocabulary size chosen."""

    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class ResolvedModel(Model):
    """The chosen sizes; `Task.config` gives them with their types."""

    preset: str


@dataclass(frozen=True, kw_only=True)
class ResolvedOptimization(Optimization):
    """The chosen steps."""

    batch_tokens: int
    batches_per_step: int
    max_steps: int
    warmup_steps: int
    learning_rate_scale: float
    precision: Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class ResolvedEvaluation(Evaluation):
    """The chosen evaluations."""

    eval_steps: int
    metrics: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ResolvedRun(Run):
    """The chosen directory and checkpoints."""

    output: str
    save_steps: int


@dataclass(frozen=True, kw_only=True)
class ResolvedRecipe(Recipe):
    """Settings of a training run with nothing left to choose, as made by `resolve`.

    A field that is still None is off: no tokenizer to take, no limit to a gradient, no patience.
    """

    tokenizer: ResolvedTokenizer
    model: ResolvedModel
    optimization: ResolvedOptimization
    evaluation: ResolvedEvaluation
    run: ResolvedRun

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> "ResolvedRecipe":
        """Returns a recipe with nothing left to choose, such as the recipe.yaml of a run that has begun.

        Raises:
            RecipeError: A choice is still open.
        """
        kinds = {
            field.name: field.type
            for field in dataclasses.fields(cls)
            if isinstance(field.type, type) and issubclass(field.type, Block)
        }
        open_options = [
            option_of(field)
            for name, kind in kinds.items()
            for field in dataclasses.fields(kind)
            if (value := getattr(recipe.blocks[name], field.name)) == "auto"
            or (value is None and types.NoneType not in typing.get_args(field.type))
        ]
        if open_options:
            raise RecipeError(f"The recipe does not set {', '.join(open_options)}: give the recipe.yaml of a run.")
        blocks: dict[str, Any] = {name: kind(**vars(recipe.blocks[name])) for name, kind in kinds.items()}
        return cls(**vars(recipe) | blocks)


def in_words(value: Any) -> str:
    """Returns the value of an option as written on the command line."""
    plain = _plain(value)
    return " ".join(map(str, plain)) if isinstance(plain, list) else str(plain)


def _plain(value: Any) -> Any:
    """Returns a value as YAML has it; corpora as words, or as mappings if words would be ambiguous."""
    if not isinstance(value, tuple):
        return value
    if not value or not isinstance(value[0], CorpusSpec):
        return list(value)
    words = to_words(value)
    try:
        return words if parse_corpora(words) == value else [corpus.to_mapping() for corpus in value]
    except CorpusError:
        return [corpus.to_mapping() for corpus in value]
