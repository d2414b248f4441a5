"""Reads the weights of a model directory from `model.safetensors`, and quantizes them to 8 bits."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from vanilla_transformer.graph.settings import Json
from vanilla_transformer.graph.transformer import SCALES, Stored

WEIGHTS = "model.safetensors"
_KINDS = {"F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16", "I8": "INT8"}
NUMPY = {"FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": np.uint16, "INT8": np.int8}
# The number of rows of a matrix that are quantized at a time.
_ROWS = 4096


def stored_weights(directory: Path) -> dict[str, Stored]:
    """Returns where each weight of a model directory is stored.

    Raises:
        OSError, ValueError: The file is missing or damaged, or contains numbers of another type.
    """
    start, header = read_header(directory / WEIGHTS)
    size = (directory / WEIGHTS).stat().st_size
    found: dict[str, Stored] = {}
    for weight, entry in header.items():
        if weight == "__metadata__":
            continue
        kind, shape, (first, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if kind not in _KINDS or start + end > size:
            raise ValueError(f"{weight} of the type {kind}")
        found[weight] = Stored(shape, _KINDS[kind], WEIGHTS, start + first, end - first)
    return found


def read_header(path: Path) -> tuple[int, dict[str, dict]]:
    """Returns the position of the first number in a file, in bytes, and the header of the file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return 8 + length, json.loads(file.read(min(length, path.stat().st_size)))


def read(directory: Path, weights: Mapping[str, Stored]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields weights and their names; bfloat16 is returned as 16-bit integers."""
    for name, stored in weights.items():
        count = int(np.prod(stored.shape))
        numbers = np.fromfile(directory / stored.file, NUMPY[stored.kind], count, offset=stored.offset)
        yield name, numbers.reshape(stored.shape)


def rounded(config: Json, weights: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields weights, with the operands of matrix multiplications quantized to 7 bits, and the scales of their rows.

    On CPUs without VNNI, pairs of products are added in 16 bits, which would overflow with weights of 8 bits.
    """
    tables = () if config["tie_word_embeddings"] else ("model.shared.weight", "model.decoder.embed_tokens.weight")
    for name, weight in weights:
        is_rounded = weight.dtype == np.int8  # In an export, whose scales are stored next to it.
        if weight.ndim < 2 or is_rounded or name in tables or name.endswith(".learned.weight"):
            yield name, weight
            continue
        numbers, scales = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
        for start in range(0, len(weight), _ROWS):
            rows = in_float32(weight[start : start + _ROWS])
            scale = np.maximum(np.abs(rows).max(1) / np.float32(63), np.finfo(np.float32).tiny)
            scales[start : start + _ROWS] = scale
            numbers[start : start + _ROWS] = np.rint(rows / scale[:, None])
        yield name, numbers
        yield f"{name}{SCALES}", scales


def in_float32(weight: np.ndarray) -> np.ndarray:
    """Returns a weight of any type as float32."""
    if weight.dtype == np.uint16:  # bfloat16 is the upper half of float32.
        return (weight.astype(np.uint32) << 16).view(np.float32)
    return weight.astype(np.float32)
