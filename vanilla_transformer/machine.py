"""The machine under a process: its cores, threads and memory, and its fastest type of numbers.

The functions before the last three do not import torch, because they prepare what torch reads when it is loaded.
"""

import ctypes
import math
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Number of turns that a thread spins before it sleeps. With libgomp's own 300,000 it keeps a core busy while the
# thread it waits for has lost its own to another program: training then nearly stands still. Decoding asks for free
# cores and may spin longer: 20,000 turns cost it 1% of its speed, 5,000 cost 9%.
TRAINING_SPINS, SPINS = 5_000, 20_000
# The state of the process when this module is imported, which `import vanilla_transformer` does.
_HAS_POLICY, _HAS_SPINS = "OMP_WAIT_POLICY" in os.environ, "GOMP_SPINCOUNT" in os.environ
_TORCH_WAS_FIRST = "torch" in sys.modules
# The id by which workers know the launcher of `train` itself, which gives each its threads.
OWN_LAUNCHER = "vanilla_transformer"
# The environment variable with the time at which a command began, on the clock of `time.perf_counter`.
BEGUN = "VANILLA_TRANSFORMER_BEGUN"
# Tokens per second in bfloat16 relative to float32, on CPUs with bfloat16 matrix multiplication: 1.05 to 1.10 with
# layers of width 128, 1.16 to 1.28 with 256, 1.33 to 1.55 with 512.
BFLOAT16_FROM_WIDTH = 128
_ROOT = Path(f"{os.environ.get('SYSTEMDRIVE', '')}/")  # Windows has a root on each drive.
# Files of NVIDIA's drivers: on Linux, under WSL 2, on Jetson and on Windows.
_NVIDIA = ("dev/nvidiactl", "dev/dxg", "dev/nvmap", "Windows/System32/nvcuda.dll")
# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_INT = 2**31 - 1


def prepare_threads(spins: int = SPINS) -> None:
    """Sets the number of threads and how they wait; the user's own settings are kept.

    The libraries read these variables once, when torch is loaded; child processes inherit them.
    """
    if not _asked():
        os.environ["OMP_NUM_THREADS"] = str(own_threads())
    prepare_waiting(spins)


def prepare_waiting(spins: int = TRAINING_SPINS) -> None:
    """Lets threads sleep while they wait for each other, unless the user has chosen how they wait."""
    if not _HAS_POLICY:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        if not _HAS_SPINS:
            os.environ["GOMP_SPINCOUNT"] = str(spins)


def is_slowed_by_others() -> bool:
    """Returns True if the cores are busy, and torch was imported too early to be told how its threads should wait."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0
    return _TORCH_WAS_FIRST and not _HAS_POLICY and own_threads() > 1 and load > usable_cores()


def own_threads() -> int:
    """Returns this process's threads: OMP_NUM_THREADS, or its share of the cores among the launcher's processes."""
    return _asked() or max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _asked() -> int:
    """Returns the value of OMP_NUM_THREADS, 0 if unset; the 1 that torchrun sets counts as unset."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    by_torchrun = first == "1" and os.environ.get("TORCHELASTIC_RUN_ID", OWN_LAUNCHER) != OWN_LAUNCHER
    return int(first) if first.isdecimal() and not by_torchrun else 0


def usable_cores(root: Path = _ROOT) -> int:
    """Returns the number of cores of the machine, or fewer if affinity or a container's quota limits them.

    The files of the system, which tell the quota, are below `root`.
    """
    # Windows and macOS do not report which cores a process may use.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError):
        # Inside a container the root of the tree is its own group, whatever the path says.
        group = root / "sys/fs/cgroup" / (root / "proc/self/cgroup").read_text().rpartition("::/")[2].strip()
        for around in (group, *group.parents):
            with suppress(OSError, ValueError):  # There is no quota, or it is "max".
                quota, period = map(int, (around / "cpu.max").read_text().split())
                cores = min(cores, math.ceil(quota / period))
    return max(1, cores)


def has_accelerator(root: Path = _ROOT) -> bool:
    """Returns True if torch might find an accelerator, without loading torch: there is a driver, or this is a Mac."""
    if find_spec("torch") is None:
        return False
    if sys.platform == "darwin":
        return True
    nvidia = () if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") else _NVIDIA
    return any((root / driver).exists() for driver in ("dev/kfd", *nvidia))


def keep_freed_memory() -> None:
    """Keeps freed memory in the process for the next step, and puts large tensors in huge pages.

    Training allocates and frees gigabytes per step, decoding tens of megabytes, in tensors of many megabytes. By
    default glibc returns each of them to the system at once, and Linux zeroes every page when it is allocated again: a
    tenth of a training step on a CPU. Call it before the first large tensor is created, which is when torch reads its
    setting. It has no effect except on Linux with glibc.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, -1)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_INT)


@contextmanager
def torch_as_usual() -> Iterator[None]:
    """Trains and evaluates in the body with torch's own defaults, whatever a notebook has set before.

    Gradients are computed, weights are made in float32 on the CPU, and no autocast is active.
    """
    import torch

    dtype, device = torch.get_default_dtype(), torch.get_default_device().type
    accelerator = torch.accelerator.current_accelerator()
    kinds = {"cpu", "cpu" if accelerator is None else accelerator.type}
    torch.set_default_dtype(torch.float32)
    try:
        with ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            if device != "cpu":  # Such a context makes each call of torch slower.
                stack.enter_context(torch.device("cpu"))
            yield
    finally:
        torch.set_default_dtype(dtype)


def fastest_dtype(width: int, device: "torch.device") -> "torch.dtype":
    """Returns the fastest type for decoding without a measurable loss of quality; accelerators are untested."""
    import torch

    if device.type == "cpu" and width >= BFLOAT16_FROM_WIDTH and has_bfloat16_products():
        return torch.bfloat16
    return torch.float32


def has_bfloat16_products() -> bool:
    """Returns True if the CPU multiplies bfloat16 matrices and oneDNN uses that.

    The libraries are asked, and not only the CPU: `ONEDNN_MAX_CPU_ISA` restricts what oneDNN uses.
    """
    import torch

    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported"):
        return False
    # With AVX-512 only, oneDNN reports support and converts to float32.
    emulated = platform.machine() in ("x86_64", "AMD64") and not torch.cpu._is_avx512_bf16_supported()
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported and not emulated
