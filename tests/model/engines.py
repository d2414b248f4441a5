"""What computes the steps of a search on the fast path: sessions of ONNX Runtime, or torch."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest

from vanilla_transformer.model import onnx_sessions

# Without ONNX Runtime torch alone is tested.
ENGINES = ["sessions", "torch"] if onnx_sessions.engine() else ["torch"]


@contextmanager
def computed_by(engine: str) -> Iterator[None]:
    """In the body small models are computed so."""
    with nullcontext() if engine == "sessions" else mock.patch.object(onnx_sessions, "engine", lambda: None):
        yield


@pytest.fixture(params=ENGINES)
def engine(request) -> Iterator[str]:
    """Each engine in turn."""
    with computed_by(request.param):
        yield request.param
