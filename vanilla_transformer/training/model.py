"""The model of a run: new, or from a saved model."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.errors import SettingError
from vanilla_transformer.loading.marian import MARIAN
from vanilla_transformer.loading.models import load_config, load_reported, load_weights_and_config, saved_config
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerBaseConfig
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import MODEL_FIELDS, Task
from vanilla_transformer.training.checkpoints import has_checkpoints

# The file next to the checkpoints of a run that began from a saved model.
START = "start.json"
# Fields that a run may choose anew.
_TRAINING_FIELDS = ("dropout", "attention_dropout", "activation_dropout", "label_smoothing")
_SIZES = tuple(name for name in MODEL_FIELDS if name not in _TRAINING_FIELDS)


def recipe_of_start(recipe: Recipe, task: Task) -> Recipe:
    """Returns the recipe with everything that its starting model determines: sizes and tokenizer."""
    if recipe.start.from_model is None:
        return recipe
    path = recipe.start.from_model
    for option in recipe.used("tokenizer_algorithm", "tokenizer_sides", "tokenizer_lowercase", "architecture"):
        raise SettingError(f"{option} is for a model that is trained from scratch: leave it out, or leave out --from.")
    if recipe.tokenizer.tokenizer not in (None, path):
        raise SettingError(f"The weights of {path} need its own tokenizer: leave --tokenizer out.")
    config, wanted = load_config(path), task.config(Recipe.of(task=task.name))
    if not isinstance(config, VanillaTransformerBaseConfig) or type(wanted) is not type(config):
        raise SettingError(
            f"{path} is a {config.model_type}, but {task.name} trains a {wanted.model_type}: start from another model."
        )
    sizes = {name: getattr(config, name) for name in _SIZES if hasattr(config, name)}
    for name in recipe.used(*sizes):
        if recipe[name] != (value := sizes[name]):
            raise SettingError(
                f"{name} is {recipe[name]} in the recipe and {value} in {path}: leave it out, or give "
                f"--{name.replace('_', '-')} {value} beside a recipe that has it."
            )
    chosen = {name: getattr(config, name) for name in _TRAINING_FIELDS if recipe[name] is None}
    its_preset = _preset_of(config)
    preset = recipe.model.preset or its_preset
    if its_preset not in (None, preset):
        raise SettingError(f"preset is {preset} in the recipe, but {path} has other sizes: leave it out.")
    if config.positional_encoding == "learned" and recipe.data.max_length > config.max_position_embeddings:
        raise SettingError(
            f"{path} has {config.max_position_embeddings:,} learned positions, but rows may have up to "
            f"{recipe.data.max_length:,} tokens: give --max-length {config.max_position_embeddings} or less."
        )
    return recipe.with_options(**sizes, **chosen, preset=preset, tokenizer=path)


def _preset_of(config: VanillaTransformerBaseConfig) -> str | None:
    """Returns the preset whose sizes the model has, if there is one."""
    names = [name for name in _SIZES if name != "vocab_size" and hasattr(config, name)]
    for preset in type(config).presets():
        other = type(config).from_preset(preset)
        if all(getattr(other, name) == getattr(config, name) for name in names):
            return preset
    return None


def build_model(recipe: Recipe, task: Task, checkpoints: Path | None = None) -> tuple[PreTrainedModel, str]:
    """Builds the model that a run begins with, and describes the parts taken from a saved one.

    Args:
        checkpoints: Directory of the run's checkpoints. If it has some, the weights follow from there, and the
            starting model is not needed.
    """
    model = task.build(recipe)
    if recipe.start.from_model is None:
        return model, ""
    if checkpoints is not None and has_checkpoints(checkpoints) and (checkpoints / START).is_file():
        kept = json.loads((checkpoints / START).read_bytes())
        model = type(model)(type(model.config).from_dict(kept["config"]))
        if kept["generation_config"] is not None:
            model.generation_config = GenerationConfig.from_dict(kept["generation_config"])
        _set_decoding(model, recipe)
        return model.train(), ""
    saved, config = load_config(recipe.start.from_model, its_weights=False), copy.deepcopy(model.config)
    # The fields of our classes, and of classes that programs derive from them.
    ours = [kind for kind in type(saved).__mro__ if kind not in PreTrainedConfig.__mro__]
    own = [name for kind in reversed(ours) for name in kind.__annotations__]
    for name in dict.fromkeys([*own, *(vars(saved).keys() - vars(PreTrainedConfig()).keys())]):
        # Besides the sizes, a recipe may choose a field anew.
        if name in _SIZES or recipe.options.get(name) is None:
            setattr(config, name, getattr(saved, name))
    # A head for other labels is new.
    loaded, report = _load(type(model), recipe.start.from_model, config)
    _set_decoding(loaded, recipe)
    new = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    sentence = _in_words(recipe.start.from_model, loaded, new, report["unexpected_keys"])
    return loaded.train(), sentence


def keep_start(model: PreTrainedModel, checkpoints: Path) -> None:
    """Keeps everything of a starting model but its weights, because the model may be gone when the run resumes."""
    settings = model.generation_config.to_diff_dict() if model.can_generate() else None
    checkpoints.mkdir(parents=True, exist_ok=True)
    start = {"config": json.loads(model.config.to_json_string()), "generation_config": settings}
    atomic_write_text(checkpoints / START, json.dumps(start, indent=1))


def _set_decoding(model: PreTrainedModel, recipe: Recipe) -> None:
    """Sets the decoding settings that a recipe gives."""
    for name in recipe.used("decoding"):
        setattr(model.generation_config, name, recipe[name])
        if name == "max_length_beyond_source":
            model.generation_config.max_length = model.generation_config.max_new_tokens = None


def _load(
    kind: type[PreTrainedModel], path: str, config: PreTrainedConfig
) -> tuple[PreTrainedModel, dict[str, set[Any]]]:
    """Loads weights into a model of that configuration, with a report of those that it lacks or has left over."""
    if saved_config(path).model_type != MARIAN:
        return load_reported(kind, path, config, torch.float32)
    converted = load_weights_and_config(path, torch.float32)
    model = kind(config)
    model.load_state_dict(converted.state_dict())
    model.generation_config = converted.generation_config
    return model, {"missing_keys": set(), "mismatched_keys": set(), "unexpected_keys": set()}


def _in_words(path: str, model: PreTrainedModel, new: set[str], left: set[str]) -> str:
    named = dict(model.named_parameters())
    taken = sum(weight.numel() for name, weight in named.items() if name not in new)
    fresh = ", ".join(sorted(new & named.keys()))
    parts = [
        f"Starts from {path}: {taken:,} of {model.num_parameters():,} parameters are taken",
        f"new: {fresh}" if fresh else "none is new",
        *([f"left behind: {', '.join(sorted(left))}"] if left else []),
    ]
    return "; ".join(parts) + "."


def compile_layers(model: PreTrainedModel) -> None:
    """Compiles each class of layer at its first step, for all its layers and for batches of any size."""
    for layer in model.modules():
        if type(layer).__name__ in (model._no_split_modules or ()):
            layer.compile(dynamic=True)
