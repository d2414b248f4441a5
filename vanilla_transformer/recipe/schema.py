"""The recipe: all settings that decide a training run, in blocks; with options, the same settings by flat names."""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self

import yaml

from vanilla_transformer import seams
from vanilla_transformer.data.sources import CorpusSpec, parse_corpora, to_words
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.recipe.blocks import (
    Block,
    Classification,
    Data,
    Decoding,
    Evaluation,
    Lora,
    Model,
    Optimization,
    RecipeError,
    Recurrent,
    Run,
    Start,
    SubwordSampling,
    Tokenizer,
    checked_type,
    option_of,
)
from vanilla_transformer.suggestions import did_you_mean

if TYPE_CHECKING:
    from vanilla_transformer.data.preparation import TrainingCorpus


@dataclass(frozen=True)
class ExtraBlock(Block):
    """A block that an extra brings to the recipe, at the seam `recipe`."""

    @property
    def place(self) -> str | None:
        """What it reads beside the text, if it is used and reads anything."""
        return None

    def complete(self, recipe: "Recipe") -> "Recipe":
        """The recipe with what the block decides of it.

        Raises:
            RecipeError: It cannot be followed with this block; the message says what to leave out.
        """
        return recipe

    def corpus(self, corpus: "TrainingCorpus", recipe: "Recipe", say: Callable[[str], None]) -> "TrainingCorpus":
        """The corpus that a run of the recipe learns from."""
        return corpus


def _extra_blocks() -> Mapping[str, ExtraBlock]:
    return {name: seams.load("recipe", name)() for name in seams.names("recipe")}


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run as given; what is left out is chosen from the data and the device, and printed.

    `Recipe.of(train=("a.en", "a.de"), max_steps=300)` takes them by the names of options, as the command line has
    them, and `recipe["max_steps"]` gives one back.
    """

    task: str = "translation"
    """Task to train for."""
    data: Data = Data()
    classification: Classification = Classification()
    tokenizer: Tokenizer = Tokenizer()
    sampling: SubwordSampling = SubwordSampling()
    start: Start = Start()
    lora: Lora = Lora()
    model: Model = Model()
    recurrent: Recurrent = Recurrent()
    optimization: Optimization = Optimization()
    evaluation: Evaluation = Evaluation()
    decoding: Decoding = Decoding()
    run: Run = Run()
    extras: Mapping[str, ExtraBlock] = dataclasses.field(default_factory=_extra_blocks)
    """The blocks of the extras, by name."""

    def __post_init__(self) -> None:
        checked_type("task", self.task, str)

    @classmethod
    def of(cls, **options: Any) -> Self:
        """A recipe with these options.

        Raises:
            RecipeError: There is no such option, or it cannot have that value.
        """
        return cls().with_options(**options)

    def with_options(self, **options: Any) -> Self:
        """The recipe with these options in place of its own.

        Raises:
            RecipeError: There is no such option, or it cannot have that value.
        """
        blocks: dict[str, Any] = {}
        task = options.pop("task", self.task)
        for option, value in options.items():
            if option not in places():
                hint = did_you_mean(option, ["task", *places()]) or "."
                raise RecipeError(f"{option!r} is no field of a recipe{hint}")
            block, field = places()[option]
            blocks.setdefault(block, {})[field] = value
        blocks = {name: dataclasses.replace(self.blocks[name], **fields) for name, fields in blocks.items()}
        extras = {name: blocks.pop(name, block) for name, block in self.extras.items()}
        return dataclasses.replace(self, task=task, extras=extras, **blocks)

    @property
    def blocks(self) -> dict[str, Block]:
        """All blocks by their names, those of the extras last."""
        own = {name: value for name, value in vars(self).items() if isinstance(value, Block)}
        return own | dict(self.extras)

    @property
    def options(self) -> dict[str, Any]:
        """All settings by the names of options."""
        blocks = self.blocks
        return {"task": self.task} | {
            option: getattr(blocks[block], field) for option, (block, field) in places().items()
        }

    def __getitem__(self, option: str) -> Any:
        """The setting of that option."""
        if option == "task":
            return self.task
        block, field = places()[option]
        return getattr(self.blocks[block], field)

    def used(self, *names: str) -> list[str]:
        """The options among these, or in blocks of these names, that are not as by default."""
        default = Recipe()
        options = [option for option, (block, _) in places().items() if block in names or option in names]
        return [option for option in options if self[option] != default[option]]

    def given(self) -> dict[str, Any]:
        """The options that are not left to be chosen, of plain types as YAML has them."""
        return {option: _plain(value) for option, value in self.options.items() if value is not None}

    def to_yaml(self) -> str:
        """The recipe as YAML that `load_recipe` reads back; what is None is left to be chosen.

        Blocks that not every recipe uses are left out where they are as by default.
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
        # YAML as it is read takes some rare characters, U+0085 among them, for line breaks unless they are escaped.
        return text if yaml.safe_load(text) == plain else yaml.safe_dump(plain, sort_keys=False, width=1000)


# Defaults of these may become others, and a run keeps its own.
_ALWAYS = ("data", "tokenizer", "model", "optimization", "evaluation", "decoding", "run")


@cache
def places() -> dict[str, tuple[str, str]]:
    """The block and the field of each option."""
    return {
        option_of(field): (name, field.name)
        for name, block in Recipe().blocks.items()
        for field in dataclasses.fields(block)
    }


@dataclass(frozen=True, kw_only=True)
class ResolvedTokenizer(Tokenizer):
    """The pieces, and how many there are."""

    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class ResolvedModel(Model):
    """The sizes that were chosen; `Task.config` gives them with their types."""

    preset: str


@dataclass(frozen=True, kw_only=True)
class ResolvedOptimization(Optimization):
    """The steps that were chosen."""

    batch_tokens: int
    batches_per_step: int
    max_steps: int
    warmup_steps: int
    learning_rate_scale: float
    precision: Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class ResolvedEvaluation(Evaluation):
    """The evaluations that were chosen."""

    eval_steps: int
    metrics: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ResolvedRun(Run):
    """The directory and the checkpoints that were chosen."""

    output: str
    save_steps: int


@dataclass(frozen=True, kw_only=True)
class ResolvedRecipe(Recipe):
    """Settings of a training run with nothing left to choose, as `resolve` makes it of a recipe.

    A field that may still be None is one that is off then: no tokenizer to take, no limit to a gradient, no patience.
    """

    tokenizer: ResolvedTokenizer
    model: ResolvedModel
    optimization: ResolvedOptimization
    evaluation: ResolvedEvaluation
    run: ResolvedRun

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> "ResolvedRecipe":
        """The same settings, where nothing is left open, as in the recipe.yaml of a run that has begun.

        Raises:
            RecipeError: Something is open.
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
            raise RecipeError(f"The recipe leaves {', '.join(open_options)} open: give a run's own recipe.yaml.")
        blocks: dict[str, Any] = {name: kind(**vars(recipe.blocks[name])) for name, kind in kinds.items()}
        return cls(task=recipe.task, extras=recipe.extras, **blocks)


def in_words(value: Any) -> str:
    """The value of an option as on the command line."""
    plain = _plain(value)
    return " ".join(map(str, plain)) if isinstance(plain, list) else str(plain)


def _plain(value: Any) -> Any:
    """A value as YAML has it; corpora as words, or as mappings where words would be read otherwise."""
    if not isinstance(value, tuple):
        return value
    if not value or not isinstance(value[0], CorpusSpec):
        return list(value)
    words = to_words(value)
    try:
        return words if parse_corpora(words) == value else [corpus.to_mapping() for corpus in value]
    except CorpusError:
        return [corpus.to_mapping() for corpus in value]
