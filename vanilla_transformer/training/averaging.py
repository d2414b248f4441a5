"""Section 6.1: checkpoint averaging."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from vanilla_transformer.errors import ModelError, RunError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.tasks import task_for
from vanilla_transformer.translation.differences import difference_of_architectures, difference_of_vocabularies
from vanilla_transformer.translation.loading import (
    difference_from,
    load_config,
    load_tokenizer,
)

WEIGHTS = "model.safetensors"


Weights = dict[str, torch.Tensor]


def average_checkpoints(paths: Sequence[str | Path]) -> Weights:
    """Section 6.1: returns the mean of the weights of `paths`, summed in float64, in the dtypes of the first.

    Args:
        paths: Model directories, checkpoints, or safetensors files.

    Raises:
        RunError: They are not of the same model; the message names the difference.
    """
    if not paths:
        raise RunError("There are no checkpoints to average.")
    _refuse_other_models(paths)
    total: Weights = {}
    dtypes: dict[str, torch.dtype] = {}
    for path in paths:
        weights = read_weights(path)
        if total and weights.keys() != total.keys():
            name = sorted(weights.keys() ^ total.keys())[0]
            raise RunError(f"{path} is from a different model than the first checkpoint: only one of them has {name}.")
        for name, tensor in weights.items():
            if name not in total:
                dtypes[name], total[name] = tensor.dtype, tensor.double()
            elif tensor.shape == total[name].shape:
                total[name] += tensor
            else:
                raise RunError(
                    f"{name} has shape {tuple(tensor.shape)} in {path} but {tuple(total[name].shape)} in the first "
                    "checkpoint."
                )
    return {name: (tensor / len(paths)).to(dtypes[name]).contiguous() for name, tensor in total.items()}


def load_average(model: torch.nn.Module, paths: Sequence[str | Path]) -> None:
    """Loads the mean of `paths` into a model of the same architecture, tied weights included."""
    load_weights(model, average_checkpoints(paths), paths[0])


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], path: str | Path) -> None:
    """Loads weights read from `path` into a model; tied weights need to be present only once.

    Raises:
        RunError: They belong to another architecture.
    """
    difference = difference_from(model, {name: weight.shape for name, weight in weights.items()})
    if difference is not None:
        raise RunError(f"{path} is from another model: {difference}.")
    model.load_state_dict(weights, strict=False)


def home_of(path: str | Path) -> Path:
    """Returns the directory with configuration and tokenizer of a run, checkpoint, model or weights file."""
    directory = Path(path).parent if Path(path).is_file() else Path(path)
    in_run = directory.resolve().parent.parent
    return in_run if not (directory / "recipe.yaml").is_file() and (in_run / "recipe.yaml").is_file() else directory


def config_of(home: Path) -> Any:
    """Returns the configuration in a directory of weights, or of an unfinished run's recipe; None without either."""
    if (home / "config.json").is_file():
        try:
            return load_config(home, its_weights=False)
        except ModelError:
            return None  # A model of a third-party task: comparing names and shapes must do.
    if not (home / "recipe.yaml").is_file():
        return None
    recipe = load_recipe(home / "recipe.yaml")
    return task_for(recipe).config(recipe)


def _refuse_other_models(paths: Sequence[str | Path]) -> None:
    """Raises RunError if weights of the same names and shapes have another meaning than in the first."""
    first, *others = dict.fromkeys(map(home_of, paths))
    config = config_of(first)
    for home in others:
        other = config_of(home)
        difference = None if config is None or other is None else difference_of_architectures(config, other)
        if difference is None and all((place / "tokenizer_config.json").is_file() for place in (first, home)):
            difference = difference_of_vocabularies(load_tokenizer(first), load_tokenizer(home))
        if difference is not None:
            raise RunError(f"{home} and {first} are different models, which cannot be averaged: {difference}.")


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """Reads all tensors of a checkpoint by name; tied weights are stored once, under one name."""
    file = Path(path) / WEIGHTS if Path(path).is_dir() else Path(path)
    try:
        with safe_open(file, framework="pt") as reader:
            weights = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118, no mapping
    except (OSError, SafetensorError) as error:
        raise RunError(f"The weights {file} cannot be read: {error}.") from None
    return weights
