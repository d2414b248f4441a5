"""The recipe: all settings of a training run, in blocks; each setting has one name, which no other block has."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import yaml

from vanilla_transformer.data.sources import CorpusSpec, to_words
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.options import converted
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
)
from vanilla_transformer.suggestions import did_you_mean


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run as given; the others are chosen from the data and the device, and printed.

    `Recipe.of(train=("a.en", "a.de"), max_steps=300)` takes them by name, as on the command line, and
    `recipe["max_steps"]` returns one.
    """

    #: Task to train for: translation, language-modeling, masked-language-modeling, text-classification or
    #: token-classification; programs may register others.
    task: str = "translation"
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", converted("task", self.task, str))

    @classmethod
    def of(cls, **settings: object) -> Self:
        """Returns a recipe with these settings.

        Raises:
            RecipeError: There is no such setting, or it cannot have that value.
        """
        return cls().with_options(**settings)

    def with_options(self, **settings: object) -> Self:
        """Returns the recipe overridden by these settings; a block may be a mapping of its own.

        Raises:
            RecipeError: There is no such setting, or it is given twice, or cannot have that value.
        """
        changes: dict[str, dict[str, Any]] = {}
        for block, name, value in placed(settings):
            if name in changes.setdefault(block, {}):
                raise RecipeError(f"{name} is given twice, in {block} and outside.")
            changes[block][name] = value
        blocks: dict[str, Any] = {
            name: dataclasses.replace(self.blocks[name], **fields) for name, fields in changes.items() if name
        }
        return dataclasses.replace(self, **changes.get("", {}), **blocks)

    @property
    def blocks(self) -> dict[str, Block]:
        """Returns all blocks by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Block)}

    @property
    def options(self) -> dict[str, object]:
        """Returns all settings by name."""
        return {"task": self.task} | {
            name: value for block in self.blocks.values() for name, value in vars(block).items()
        }

    def __getitem__(self, name: str) -> Any:
        """Returns the setting of that name."""
        return self.options[name]

    def used(self, *names: str) -> list[str]:
        """Returns the settings among these, or in blocks of these names, that differ from their defaults."""
        mine, default = self.options, Recipe().options
        return [
            name
            for name, block in places().items()
            if (block in names or name in names) and mine[name] != default[name]
        ]

    def given(self) -> dict[str, Any]:
        """Returns the settings that are not None, in plain YAML types."""
        return {name: _plain(value) for name, value in self.options.items() if value is not None}

    def to_yaml(self) -> str:
        """Returns the recipe as YAML that `load_recipe` reads back; None stands for a value to be chosen.

        Blocks that not every recipe uses are left out if they equal their defaults.
        """
        plain: dict[str, object] = {"task": self.task}
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


def placed(settings: Mapping[str, object], *, lenient: bool = False) -> Iterator[tuple[str, str, object]]:
    """Yields the block, "" for the recipe itself, the name and the value of each setting.

    Args:
        lenient: Whether to leave out settings that there are not.
    """
    blocks = Recipe().blocks
    for name, value in settings.items():
        known = {"task", *places()}
        if name in blocks and (isinstance(value, Mapping) or name not in places()):
            if not isinstance(value, Mapping | None):
                raise RecipeError(f"{name} must hold lines of the form `setting: value`, not {value!r}.")
            for inner, one in (value or {}).items():
                if places().get(inner) == name:
                    yield name, inner, one
                elif not lenient:
                    known = {setting for setting, block in places().items() if block == name}
                    hint = did_you_mean(str(inner), known) or f": there are {', '.join(sorted(known))}."
                    raise RecipeError(f"{str(inner)!r} is not a setting of {name}{hint}")
        elif name in known:
            yield places().get(name, ""), name, value
        elif not lenient:
            raise RecipeError(f"{str(name)!r} is not a setting of a recipe{did_you_mean(str(name), known) or '.'}")


@cache
def places() -> dict[str, str]:
    """Returns the block of each setting."""
    return {field.name: name for name, block in Recipe().blocks.items() for field in dataclasses.fields(block)}


def in_words(value: object) -> str:
    """Returns the value of an option as written on the command line."""
    plain = _plain(value)
    return " ".join(map(str, plain)) if isinstance(plain, list) else str(plain)


def _plain(value: object) -> Any:
    """Returns a value as YAML has it; corpora as words."""
    if not isinstance(value, tuple):
        return value
    return to_words(value) if value and isinstance(value[0], CorpusSpec) else list(value)
