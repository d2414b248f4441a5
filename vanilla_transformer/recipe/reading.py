"""Recipes by name or from YAML files."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from vanilla_transformer.errors import SettingError, did_you_mean
from vanilla_transformer.recipe.schema import Recipe, places


def load_recipe(name_or_path: str | Path, *, lenient: bool = False) -> Recipe:
    """Returns the recipe of that name that comes with the package, or the one in that YAML file.

    Args:
        lenient: Whether to leave out fields that there are not, as beside a model that another version saved.
    """
    shipped = shipped_recipes()
    file = shipped.get(str(name_or_path), Path(name_or_path).expanduser())
    if not file.is_file():
        hint = did_you_mean(str(name_or_path), shipped) or "."
        raise SettingError(
            f"There is no recipe and no file {str(name_or_path)!r}{hint} "
            f"Recipes that come with the package: {', '.join(sorted(shipped))}."
        )
    try:
        settings = _settings(_read_yaml(file))
        return Recipe.of(**{name: settings[name] for name in settings if name in places() or not lenient})
    except SettingError as error:
        raise SettingError(f"{file}: {error}") from None


def named_recipe(name_or_path: str | Path, options: Mapping[str, object]) -> Recipe:
    """Returns the named recipe to train by, overridden by these options.

    If they replace its tokenizer, its vocabulary size is dropped; the model goes to a directory of its name unless
    they give another.
    """
    named = load_recipe(name_or_path)
    recipe = named.with_options(**options)
    shipped = shipped_recipes().get(str(name_or_path))
    if shipped is not None and not recipe.data.train:
        raise SettingError(
            f"The recipe {name_or_path} comes without data: give it with --train; the comment at the top of {shipped} "
            "says where to get it."
        )
    left = ["vocab_size"] if recipe.tokenizer.tokenizer != named.tokenizer.tokenizer else []
    steps, its_steps = recipe.optimization, named.optimization
    fewer = steps.max_steps != its_steps.max_steps and (steps.max_steps or math.inf) <= (its_steps.warmup_steps or 0)
    if fewer and steps.warmup_steps == its_steps.warmup_steps:
        # The recipe's warm-up would take up all of so few steps.
        left += ["warmup_steps", "learning_rate_scale"]
    replaced = {option: None for option in left if recipe[option] == named[option]}
    output = recipe.run.output or Path(name_or_path).stem
    return recipe.with_options(**replaced, output=output)


def shipped_recipes() -> dict[str, Path]:
    """Returns the recipes that come with the package, by name."""
    folder = Path(__file__).parents[1] / "recipes"
    return {file.stem: file for file in folder.glob("*.yaml")}


def _settings(values: Mapping[str, object]) -> dict[str, object]:
    """Returns the settings of all blocks, and those beside them."""
    settings, blocks = dict[str, object](), {*places().values()}
    for name, value in values.items():
        inner = {name: value}
        if name in blocks and (isinstance(value, dict) or (value is None and name not in places())):
            inner = value if isinstance(value, dict) else {}
        for setting, one in inner.items():
            if setting in settings and setting in places():
                raise SettingError(f"{setting} is given twice, in its block and outside.")
            settings[str(setting)] = one
    return settings


class _RecipeLoader(yaml.SafeLoader):
    """Reads each plain value as text, which the type of its setting reads: no number is taken for another."""

    yaml_implicit_resolvers: dict[str, object] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Refuses a repeated key, which would lose a value."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_RecipeLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null)?\Z"), ["~", "n", ""])
_RecipeLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(true|false)\Z"), ["t", "f"])


def _read_yaml(file: Path) -> dict[str, object]:
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), _RecipeLoader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise SettingError(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise SettingError(f"{file} must hold lines of the form `setting: value`.")
    return values
