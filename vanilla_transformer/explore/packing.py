"""Packs the weights of a model for a browser: the model in float32, and earlier checkpoints in 8 bits."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vanilla_transformer.model_directory import CHECKPOINTS, read_metrics
from vanilla_transformer.training.checkpoints import Checkpoint, list_checkpoints

# The limit for all weights of a page, because a person with a phone must download them.
MAX_BYTES = 15_000_000
_MAX_CHECKPOINTS = 12

Weights = Mapping[str, torch.Tensor]


class Tensor(NamedTuple):
    """The offset of a tensor in its file, counted in float32 numbers, and its shape."""

    offset: int
    shape: list[int]


def pack(weights: Weights) -> tuple[dict[str, Tensor], bytes]:
    """Returns each tensor's offset and shape, and the file in little-endian float32. Tied tensors are stored once."""
    places: dict[str, Tensor] = {}
    stored: dict[tuple[int, torch.Size], Tensor] = {}
    parts: list[bytes] = []
    end = 0
    for name, weight in weights.items():
        places[name] = stored.setdefault((weight.data_ptr(), weight.shape), Tensor(end, list(weight.shape)))
        if places[name].offset == end:
            parts.append(weight.detach().cpu().float().contiguous().numpy().astype("<f4").tobytes())
            end += weight.numel()
    return places, b"".join(parts)


def pack_8_bits(weights: Weights, places: Mapping[str, Tensor]) -> bytes:
    """Packs the same tensors: each row of a matrix as 8-bit integers with one scale, and vectors as float32.

    The file contains all scales and vectors, followed by all 8-bit integers.
    """
    # A checkpoint contains only one of several tied tensors.
    by_offset = {places[name].offset: weight for name, weight in weights.items()}
    exact: list[np.ndarray] = []
    rounded: list[np.ndarray] = []
    for _, tensor in sorted(by_offset.items()):
        weight = tensor.detach().cpu().float().numpy()
        if weight.ndim < 2:
            exact.append(weight)
            continue
        scales = np.abs(weight).max(axis=1) / 127
        exact.append(scales)
        rounded.append(np.rint(weight / np.where(scales == 0, 1, scales)[:, None]).astype("i1"))
    return b"".join([*(one.astype("<f4").tobytes() for one in exact), *(one.tobytes() for one in rounded)])


def checkpoints_that_fit(run: Path, size: int, room: int) -> list[Checkpoint]:
    """Chooses as many checkpoints of a run as fit, with more from the start of the run, where the model changes most.

    Args:
        size: The size in bytes of one checkpoint in 8 bits.
        room: The number of bytes that are available for all checkpoints.
    """
    there = list_checkpoints(run / CHECKPOINTS)
    count = min(_MAX_CHECKPOINTS, room // size, len(there))
    if count < 1:
        return []
    chosen: dict[int, Checkpoint] = {}
    for wanted in np.geomspace(there[0].step or 1, there[-1].step, count):
        left = [checkpoint for checkpoint in there if checkpoint.step not in chosen]
        nearest = min(left, key=lambda checkpoint: abs(checkpoint.step - wanted))
        chosen[nearest.step] = nearest
    return [chosen[step] for step in sorted(chosen)]


def learning_curve(run: Path) -> list[dict[str, float]]:
    """Returns the losses on the training and dev data at each step that the run logged."""
    kept = ("step", "loss", "dev_loss")
    losses = [{name: value for name, value in record.items() if name in kept} for record in read_metrics(run)]
    return [record for record in losses if len(record) > 1]
