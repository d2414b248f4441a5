"""A second device for torch on any machine with a C++ compiler: `second:0`, and a list of the host's waits for it.

Its memory is the processor's, and every operator runs on the processor. As on a real device, tensors of two devices
may not meet, and the host waits where it needs a value or a shape that the device has still to compute.
"""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration, cpp_extension
from torch.utils._pytree import tree_leaves, tree_map

NAME = "second"
SHAPED_BY_VALUES = ("nonzero", "masked_select", "unique", "_unique", "equal", "repeat_interleave.Tensor")

_KERNELS, _FALLBACKS = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
_native: Any = None
_listed: list[str] | None = None  # Where waits are listed, if anywhere.


def load() -> None:
    """Builds the device, once for a version of torch, and makes it torch's accelerator."""
    global _native
    folder = Path(__file__).parents[2] / "build" / f"second-device-{torch.__version__}-{sys.version_info.minor}"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)  # Where ninja is.
    source = str(Path(__file__).with_suffix(".cpp"))
    _native = cpp_extension.load("second_device", [source], build_directory=str(folder), extra_cflags=["-O0", "-w"])
    module: Any = backend_registration._DummyBackendModule()
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    backend_registration._setup_privateuseone_for_python_backend(NAME, module)
    torch.accelerator.synchronize = lambda *device: _report_wait("synchronize")
    _FALLBACKS.fallback(_compute, "PrivateUse1")
    _FALLBACKS.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _KERNELS.impl("_copy_from", _copy, "PrivateUse1")
    _KERNELS.impl("_local_scalar_dense", _value, "PrivateUse1")
    # torch would ask such a device for a whole cell in one operator, but knows the equations too.
    for packet in (torch.ops.aten.lstm, torch.ops.aten.gru):
        for operator in (packet.input, packet.data):
            _KERNELS.impl(operator, operator.py_kernels[torch._C.DispatchKey.Autograd], "AutogradPrivateUse1")


def _on_host(thing: Any) -> Any:
    """Returns a tensor's memory as a tensor of the processor, and the processor for a device."""
    if isinstance(thing, torch.Tensor) and thing.device.type == NAME:
        return _native.on_host(thing)
    return torch.device("cpu") if isinstance(thing, torch.device) else thing


def _compute(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Computes an operator on the processor, in the device's memory; new results are copied there."""
    _watch(operator, args, kwargs)
    lent = []

    def lend(thing: Any) -> Any:
        lent.append((_on_host(thing), thing))
        return lent[-1][0]

    def take(result: Any) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        owner = next((thing for host, thing in lent if host is result), None)
        owner = torch.empty_like(result, device=NAME) if owner is None else owner.resize_(result.shape)
        _on_host(owner).copy_(result)
        return owner

    # Not the overload: torch gives a number in place of a tensor that was made of one.
    return tree_map(take, operator._overloadpacket(*tree_map(lend, args), **tree_map(lend, kwargs)))


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if target.device.type == "cpu":
        _report_wait("copy to the host")
    elif source.device.type == "cpu" and not non_blocking:
        _report_wait("blocking copy to the device")
    _on_host(target).copy_(_on_host(source))
    return target


def _value(tensor: torch.Tensor) -> Any:
    _report_wait("value of a tensor")
    return _on_host(tensor).item()


def _watch(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses tensors of two devices, and reports what the host waits for."""
    name = str(operator).removeprefix("aten.")
    given = [*zip((argument.name for argument in operator._schema.arguments), args, strict=False), *kwargs.items()]
    for place, tensor in [(place, part) for place, value in given for part in tree_leaves(value)]:
        if not isinstance(tensor, torch.Tensor):
            continue
        is_index = place == "indices" and "index" in name
        if tensor.device.type == "cpu" and tensor.dim():
            if not is_index:
                raise RuntimeError(f"{name}: {place} is on the host, other tensors on the device")
            _report_wait("indices copied to the device")
        if is_index and tensor.dtype == torch.bool:
            _report_wait(name)
    if name.startswith(SHAPED_BY_VALUES):
        _report_wait(name)


def _report_wait(operation: str) -> None:
    if _listed is not None:
        _listed.append(f"{operation}: {lines_that_led_here()}")


def lines_that_led_here() -> str:
    """Returns the last lines that were called, innermost first, without torch's own and those of the tests' device."""
    ours = ("second_device.py", "conftest.py")
    files = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_stack()]
    lines = [f"{file.name}:{line}" for file, line in files if "torch" not in file.parts and file.name not in ours]
    return " < ".join(lines[:-6:-1])


@contextmanager
def waits() -> Iterator[list[str]]:
    """Lists the host's waits in the body, each with the lines that led to it, innermost first."""
    global _listed
    _listed = found = []
    try:
        yield found
    finally:
        _listed = None
