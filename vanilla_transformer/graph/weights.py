"""The weights of a model directory, where they lie in its `model.safetensors`, or in several files of that kind."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vanilla_transformer.graph.layers import Stored

WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_KINDS = {"F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16"}
NUMPY = {"FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": np.uint16}


def stored_weights(directory: Path) -> dict[str, Stored]:
    """Returns the place of each weight of a model directory.

    Raises:
        OSError, ValueError: There is no such file, or it is damaged or holds numbers of other types.
    """
    names = [WEIGHTS]
    if not (directory / WEIGHTS).is_file() and (directory / _INDEX).is_file():
        names = sorted({*json.loads((directory / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()})
    found: dict[str, Stored] = {}
    for name in names:
        start, header = read_header(directory / name)
        size = (directory / name).stat().st_size
        for weight, entry in header.items():
            if weight == "__metadata__":
                continue
            kind, shape, (first, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if kind not in _KINDS or start + end > size:
                raise ValueError(f"{weight} of the type {kind}")
            found[weight] = Stored(shape, _KINDS[kind], name, start + first, end - first)
    return found


def read_header(path: Path) -> tuple[int, dict[str, dict]]:
    """Returns the byte at which the numbers of a file begin, and what its header says of them."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return 8 + length, json.loads(file.read(length))


def read(directory: Path, weights: Mapping[str, Stored]) -> dict[str, np.ndarray]:
    """Reads weights; bfloat16 comes as 16-bit integers."""
    return {
        name: np.fromfile(
            directory / stored.file, NUMPY[stored.kind], int(np.prod(stored.shape)), offset=stored.offset
        ).reshape(stored.shape)
        for name, stored in weights.items()
    }
