"""The devices of a run: their names, peak memory and peak FLOP/s."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch
from torch.utils.benchmark import Timer

# Dense FLOP/s from NVIDIA's data sheets, by torch's name of the device; half of the figure where a sheet gives only
# the one with sparsity. Variants missing here, and parts of a device, are measured.
_HOPPER = {"bfloat16": 989.4e12, "tf32": 494.7e12, "float32": 66.9e12}
_AMPERE = {"bfloat16": 312e12, "tf32": 156e12, "float32": 19.5e12}
_PUBLISHED = {
    "NVIDIA H200": _HOPPER,
    "NVIDIA H100 80GB HBM3": _HOPPER,
    "NVIDIA H100 PCIe": {"bfloat16": 756e12, "tf32": 378e12, "float32": 51.2e12},
    "NVIDIA A100-SXM4-40GB": _AMPERE,
    "NVIDIA A100-SXM4-80GB": _AMPERE,
    "NVIDIA A100-PCIE-40GB": _AMPERE,
    "NVIDIA A100 80GB PCIe": _AMPERE,
    "NVIDIA L40S": {"bfloat16": 362e12, "tf32": 183e12, "float32": 91.6e12},
    "NVIDIA L4": {"bfloat16": 121e12, "tf32": 60e12, "float32": 30.3e12},
    "Tesla V100-SXM2-16GB": {"float16": 125e12, "float32": 15.7e12},
    "Tesla V100-SXM2-32GB": {"float16": 125e12, "float32": 15.7e12},
}
# The best size differs between devices, so the best of all counts.
_MEASURED_SIZES = {"cpu": (512, 1024), "accelerator": (4096, 8192)}
_MEASURING_SECONDS = 0.15


@dataclass(frozen=True)
class Peak:
    """Peak FLOP/s of one device in matrix products, and whether it is published or measured."""

    flops_per_second: float
    source: Literal["published", "measured"]


def has_tf32(device: torch.device) -> bool:
    """Tells whether the device can round the factors of float32 products to TF32."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def training_kernels(tf32: bool) -> Iterator[None]:
    """Allows TF32 for products in float32 in the body, and no attention of cuDNN, which plans anew for each shape."""
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()
    torch.set_float32_matmul_precision("high" if tf32 else precision)
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cuda.enable_cudnn_sdp(cudnn)


def device_peak(device: torch.device, precision: str) -> Peak:
    """Returns the data sheet's figure for this precision, otherwise the speed that a matrix product reaches now."""
    if device.type == "cuda":
        published = _PUBLISHED.get(torch.cuda.get_device_name(device), {})
        kind = "tf32" if precision == "float32" and torch.get_float32_matmul_precision() != "highest" else precision
        # Where a sheet has one figure for both kinds of 16 bits, it stands once.
        kind = "bfloat16" if kind == "float16" and kind not in published else kind
        if kind in published:
            return Peak(published[kind], "published")
    return Peak(_measured_flops_per_second(device, getattr(torch, precision)), "measured")


def _measured_flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Returns the best speed of several products of square matrices, on as many threads as the run has."""
    speeds = []
    for size in _MEASURED_SIZES["cpu" if device.type == "cpu" else "accelerator"]:
        matrix = torch.randn(size, size, device=device, dtype=dtype)
        product = Timer("(m @ m)[0, 0].item()", globals={"m": matrix}, num_threads=torch.get_num_threads())
        seconds = product.blocked_autorange(min_run_time=_MEASURING_SECONDS).times
        speeds.append(2 * size**3 / min(seconds))
    return max(speeds)


def peak_memory(device: torch.device) -> int:
    """Returns the peak memory of this process in bytes: of the device, or main memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    status = Path("/proc/self/status")
    if status.is_file():
        # On Linux ru_maxrss includes the process's memory before it became this program.
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    import resource  # Windows has none.

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def describe_device(device: torch.device, processes: int) -> str:
    """Describes the kind and number of devices of a run."""
    if device.type == "cuda":
        return f"{processes} × {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        threads = processes * torch.get_num_threads()
        return f"{threads} CPU {'thread' if threads == 1 else 'threads'}"
    return device.type
