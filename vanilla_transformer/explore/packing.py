"""A model's weights as a browser reads them: float32 in one file, and earlier checkpoints in 8 bits."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from vanilla_transformer.training.checkpoints import Checkpoint, list_checkpoints
from vanilla_transformer.training.run_directory import RunDirectory, read_metrics

# The size of all weights of a page, which a reader on a phone must download.
MAX_BYTES = 15_000_000
_MAX_CHECKPOINTS = 12

Weights = Mapping[str, torch.Tensor]


class Tensor(NamedTuple):
    """The offset of a tensor in its file, counted in numbers, and its shape."""

    offset: int
    shape: list[int]


def pack(weights: Weights) -> tuple[dict[str, Tensor], bytes]:
    """Returns each tensor's place, and the file in little-endian float32; tied tensors are stored once."""
    places: dict[str, Tensor] = {}
    stored: dict[tuple[int, torch.Size], int] = {}
    parts: list[bytes] = []
    end = 0
    for name, weight in weights.items():
        key = (weight.data_ptr(), weight.shape)
        if key not in stored:
            stored[key] = end
            parts.append(weight.detach().cpu().float().contiguous().numpy().astype("<f4").tobytes())
            end += weight.numel()
        places[name] = Tensor(stored[key], list(weight.shape))
    return places, b"".join(parts)


def pack_8_bits(weights: Weights, places: Mapping[str, Tensor]) -> bytes:
    """Packs the same tensors with each row of a matrix as 8-bit integers times one scale, and vectors as float32.

    All scales and vectors come first, then the 8-bit integers.
    """
    exact: list[np.ndarray] = []
    rounded: list[np.ndarray] = []
    for name in distinct(places):
        weight = weights[name].detach().cpu().float().numpy()
        if weight.ndim < 2:
            exact.append(weight)
            continue
        scales = np.abs(weight).max(axis=1) / 127
        exact.append(scales)
        rounded.append(np.rint(weight / np.where(scales == 0, 1, scales)[:, None]).astype("i1"))
    return b"".join([*(one.astype("<f4").tobytes() for one in exact), *(one.tobytes() for one in rounded)])


def distinct(places: Mapping[str, Tensor]) -> list[str]:
    """Returns one name for each tensor of the file, in the file's order."""
    by_offset: dict[int, str] = {}
    for name, place in places.items():
        by_offset.setdefault(place.offset, name)
    return [by_offset[offset] for offset in sorted(by_offset)]


def checkpoints_that_fit(run: Path, size: int, room: int) -> list[Checkpoint]:
    """Chooses as many of a run's checkpoints as fit, denser at the start, where more is learned.

    Args:
        size: Bytes of one checkpoint in 8 bits.
        room: Bytes available for all.
    """
    there = list_checkpoints(run / "checkpoints")
    count = min(_MAX_CHECKPOINTS, room // size, len(there))
    if count < 1:
        return []
    chosen: dict[int, Checkpoint] = {}
    for wanted in np.geomspace(there[0].step or 1, there[-1].step, count):
        left = [checkpoint for checkpoint in there if checkpoint.step not in chosen]
        nearest = min(left, key=lambda checkpoint: abs(checkpoint.step - wanted))
        chosen[nearest.step] = nearest
    return [chosen[step] for step in sorted(chosen)]


def weights_of(checkpoint: Checkpoint, places: Mapping[str, Tensor]) -> dict[str, torch.Tensor] | None:
    """Loads the weights of a checkpoint by the names of `distinct`; None if they are those of another model.

    Tied tensors are stored under one of their names.
    """
    stored = load_file(checkpoint.path / "model.safetensors")
    by_offset = {places[name].offset: weight for name, weight in stored.items() if name in places}
    names = distinct(places)
    found = {name: by_offset[places[name].offset] for name in names if places[name].offset in by_offset}
    fits = len(found) == len(names) and all(list(one.shape) == places[name].shape for name, one in found.items())
    return found if fits else None


def learning_curve(run: Path) -> list[dict[str, float]]:
    """Returns the losses in the run's log, on training and dev data, by step."""
    kept, records = ("step", "loss", "dev_loss"), read_metrics(RunDirectory(run).metrics)
    losses = [{name: value for name, value in record.items() if name in kept} for record in records]
    return [record for record in losses if len(record) > 1]
