"""The device of these tests: CUDA's first one, or else the second device of `second_device.py`."""

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import second_device
import torch
from accelerate import PartialState
from small_tasks import labelled, lines, masked_lines, tagged  # noqa: F401


@contextmanager
def _cuda_waits() -> Iterator[list[str]]:
    """Lists what torch says of the host's waits for CUDA in the body."""
    found: list[str] = []

    def note(message: Warning | str, *others: object) -> None:
        if "synchronizing CUDA operation" in str(message):
            found.append(second_device.lines_that_led_here())

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="session")
def _device_and_waits() -> tuple[str, Callable[[], AbstractContextManager[list[str]]]]:
    if torch.cuda.is_available():
        return "cuda", _cuda_waits
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("There is neither CUDA nor a C++ compiler for a second device.")
    second_device.load()
    PartialState.default_device = property(lambda self: torch.device(second_device.NAME, 0))  # type: ignore[assignment]
    return second_device.NAME, second_device.waits


@pytest.fixture
def device(_device_and_waits) -> str:
    return _device_and_waits[0]


@pytest.fixture
def waits(_device_and_waits) -> Callable[[], AbstractContextManager[list[str]]]:
    """Returns a block that lists the host's waits for the device in it."""
    return _device_and_waits[1]
