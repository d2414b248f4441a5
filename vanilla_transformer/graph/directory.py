"""A model directory as a session: no library but ONNX Runtime reads it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.known import Settings, unknown
from vanilla_transformer.graph.session import Session
from vanilla_transformer.graph.weights import in_float32, read, stored_weights


def open_session(directory: Path, call: Mapping[str, Any], precision: str, threads: int | None = None) -> Session:
    """Returns the session of a directory.

    Args:
        call: Settings of the search, as arguments of `generate`; others are the model's own.
        precision: `float32`, `int8` or `auto`.
        threads: Threads of a call; chosen by the size of the model if None.

    Raises:
        ModelError: There is something that the graph does not know, or the files are not those of a model.
    """
    try:
        config, own = (
            json.loads((directory / name).read_text(encoding="utf-8"))
            for name in ("config.json", "generation_config.json")
        )
        stored = stored_weights(directory)
        reason = unknown(config, {name: weight.shape for name, weight in stored.items()})
        if reason is not None:
            raise ModelError(reason)
        settings = Settings.of(config, own, call)
        weights = finite(read(directory, stored))
        return Session(config, weights, settings, precision=precision, threads=threads)
    except ModelError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"a damaged file: {type(error).__name__}: {error}") from error


def finite(weights: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the weights; raises ModelError at one that holds NaN or infinity."""
    for name, weight in weights:
        numbers = in_float32(weight).ravel()
        if not np.isfinite(np.dot(numbers, numbers)):
            raise ModelError(f"{name}, which holds NaN or infinity")
        yield name, weight
