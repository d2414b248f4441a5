"""Section 6.1: the mean of the last checkpoints of a run."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from vanilla_transformer.model.saving import rename_old_weights
from vanilla_transformer.translation.loading import difference_from

WEIGHTS = "model.safetensors"


class AveragingError(ValueError):
    """Checkpoints that cannot be averaged, said in one sentence."""


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """Section 6.1: the mean of the weights of `paths`, summed in float64, each in the type that it has in the first.

    Args:
        paths: Model directories, checkpoints, or files of safetensors.
    """
    if not paths:
        raise AveragingError("There is no checkpoint to average.")
    total: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for path in paths:
        for name, tensor in _weights_like(dtypes, path).items():
            if name in total:
                total[name] += _as_shape(tensor, total[name].shape, name, path)
            else:
                dtypes[name] = tensor.dtype
                total[name] = tensor.double()
    return {name: (tensor / len(paths)).to(dtypes[name]).contiguous() for name, tensor in total.items()}


def load_average(model: torch.nn.Module, paths: Sequence[str | Path]) -> None:
    """Puts the mean of `paths` into a model of the same shape; weights that are tied to a loaded one follow it."""
    load_weights(model, average_checkpoints(paths), paths[0])


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], path: str | Path) -> None:
    """Puts all the weights of a model that were read from `path` into it; tied weights need to be there only once.

    Raises:
        AveragingError: They are those of another model.
    """
    difference = difference_from(model, {name: weight.shape for name, weight in weights.items()})
    if difference is not None:
        raise AveragingError(f"{path} is of another model: {difference}.")
    model.load_state_dict(weights, strict=False)


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint under the names of today; tied weights are in the file once, under one name."""
    file = Path(path) / WEIGHTS if Path(path).is_dir() else Path(path)
    try:
        with safe_open(file, framework="pt") as reader:
            weights = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118, no mapping
    except (OSError, SafetensorError) as error:
        raise AveragingError(f"The weights {file} cannot be read: {error}.") from None
    rename_old_weights(weights)
    return weights


def _weights_like(first: dict[str, torch.dtype], path: str | Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint, which has those of the first one."""
    weights = read_weights(path)
    if first and weights.keys() != first.keys():
        name = sorted(weights.keys() ^ first.keys())[0]
        raise AveragingError(f"{path} is of another model than the first checkpoint: only one of them has {name}.")
    return weights


def _as_shape(tensor: torch.Tensor, shape: torch.Size, name: str, path: str | Path) -> torch.Tensor:
    if tensor.shape != shape:
        raise AveragingError(
            f"{name} has the shape {tuple(tensor.shape)} in {path} and {tuple(shape)} in the first checkpoint."
        )
    return tensor
