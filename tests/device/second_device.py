"""A second device for torch on any machine with a C++ compiler: `second:0`, and a list of the host's waits for it."""

import atexit
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

NAME = "second"


class _Module(ModuleType):
    """What `torch.second` offers: one device, with the generator of the processor."""

    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    get_rng_state_all = staticmethod(lambda: [torch.get_rng_state()])
    set_rng_state_all = staticmethod(lambda states: torch.set_rng_state(states[0]))
    manual_seed = manual_seed_all = staticmethod(lambda seed: None)
    is_available = is_initialized = is_bf16_supported = staticmethod(lambda *args: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    set_device = empty_cache = staticmethod(lambda *args: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])


# The processor has no operator for a whole cell: its equations are computed, and autograd differentiates them.
_CELLS = torch.library.Library("aten", "IMPL")


def _lstm_cell(of_input, of_hidden, cell, input_bias=None, hidden_bias=None):
    gates = of_input + of_hidden if input_bias is None else of_input + of_hidden + input_bias + hidden_bias
    i, f, g, o = gates.chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(of_input, of_hidden, hidden, input_bias=None, hidden_bias=None):
    if input_bias is not None:
        of_input, of_hidden = of_input + input_bias, of_hidden + hidden_bias
    (r, z, n), (hidden_r, hidden_z, hidden_n) = of_input.chunk(3, -1), of_hidden.chunk(3, -1)
    z, n = (z + hidden_z).sigmoid(), (n + (r + hidden_r).sigmoid() * hidden_n).tanh()
    return n + z * (hidden - n), of_input


def load() -> Any:
    """Builds the device, once for a version of torch, and makes it torch's accelerator; returns its extension.

    Raises:
        RuntimeError, OSError: There is no C++ compiler, or it failed.
    """
    from torch.utils import cpp_extension

    folder = Path(__file__).parents[2] / "build" / f"second-device-{torch.__version__}-{sys.version_info.minor}"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)  # Where ninja is.
    source = Path(__file__).with_name("second_device.cpp")
    extension = cpp_extension.load(
        "second_device", [str(source)], build_directory=str(folder), extra_cflags=["-O0", "-w"]
    )
    atexit.register(extension.listen, None)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _Module(NAME))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    for name, cell in (("_thnn_fused_lstm_cell", _lstm_cell), ("_thnn_fused_gru_cell", _gru_cell)):
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            _CELLS.impl(name, cell, key)
    return extension


def missing() -> str | None:
    """Returns what the device cannot be built without here, or None."""
    compiler = os.environ.get("CXX", "c++")
    return None if shutil.which(compiler) else f"there is no C++ compiler ({compiler})"


def lines_that_led_here() -> str:
    """Returns the last lines that were called, innermost first, without torch's own."""
    lines = [frame for frame in traceback.extract_stack() if "/torch/" not in frame.filename][:-2]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in lines[:-6:-1])


@contextmanager
def waits(extension: Any) -> Iterator[list[str]]:
    """Lists the host's waits in the body, each with the lines that led to it, innermost first."""
    found: list[str] = []

    extension.listen(lambda operation: found.append(f"{operation}: {lines_that_led_here()}"))
    try:
        yield found
    finally:
        extension.listen(None)
