"""Abilities of the processor, as reported by the libraries that multiply.

The processor's own abilities do not decide: oneDNN emulates bfloat16, fbgemm makes no use of AVX-VNNI without AVX-512,
and `ONEDNN_MAX_CPU_ISA` and `FBGEMM_ENABLE_INSTRUCTIONS` restrict both.
"""

import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# Speed in bfloat16 relative to float32, in tokens per second, where the processor multiplies bfloat16: 1.05 to 1.10
# with layers of width 128, 1.16 to 1.28 with 256, 1.33 to 1.55 with 512. Elsewhere bfloat16 is multiplied in float32,
# so rounding gains nothing.
BFLOAT16_FROM_WIDTH = 128
# Parameters times sentences up to which one thread is as fast as two: what threads save on small products they lose
# waiting for each other.
SMALL = 1 << 24
_PROC = Path("/proc")
# The threads that decode now, one entry a call.
_DECODING: list[int] = []


def fastest_dtype(width: int, device: torch.device) -> torch.dtype:
    """Returns the fastest type for decoding that loses nothing measurable; accelerators are untested."""
    if device.type == "cpu" and width >= BFLOAT16_FROM_WIDTH and has_bfloat16_products():
        return torch.bfloat16
    return torch.float32


def computing_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Returns the type in which products of `dtype` are computed: float32 where the processor would emulate them."""
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return dtype
    return dtype if dtype == torch.bfloat16 and has_bfloat16_products() else torch.float32


def has_bfloat16_products() -> bool:
    """Tells whether the processor multiplies bfloat16 and oneDNN uses it."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported"):
        return False
    # oneDNN reports support wherever there is AVX-512, with or without such products.
    emulated = platform.machine() in ("x86_64", "AMD64") and not torch.cpu._is_avx512_bf16_supported()
    return not emulated and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def fitting_threads(model: torch.nn.Module, sentences: int) -> Iterator[None]:
    """Lowers torch's threads in its body to its share of the free cores, or to one for small products.

    It gives them back; a thread that begins meanwhile begins with as few.
    """
    given = torch.get_num_threads()
    if given == 1 or next(model.parameters()).device.type != "cpu":
        yield
        return
    small = sentences * sum(weight.numel() for weight in model.parameters()) <= SMALL
    _DECODING.append(threading.get_ident())
    torch.set_num_threads(1 if small else max(1, free_threads(given) // len(_DECODING)))
    try:
        yield
    finally:
        _DECODING.remove(threading.get_ident())
        torch.set_num_threads(given)


def free_threads(threads: int, system: Path = _PROC) -> int:
    """Returns how many of `threads` have a core that no other program uses now, at least one; all if that is unknown.

    Where one of them shares its core with another program, the others wait for it at each product. If more than a
    quarter is missing, it looks again for three thousandths of a second: who has just asked is often done then.
    """
    free = 1
    for pause in (0.0, 0.001, 0.002):
        time.sleep(pause)
        try:
            running = int((system / "loadavg").read_text().split()[3].partition("/")[0])
            # This program's own threads spin for a while after each product.
            own = [task.read_text().rpartition(")")[2].split()[0] for task in (system / "self/task").glob("*/stat")]
        except (OSError, ValueError, IndexError):
            return threads
        # Those of the whole machine are counted, so its cores are, too.
        free = max(free, min(threads, (os.cpu_count() or 1) - running + own.count("R")))
        if 4 * free >= 3 * threads:
            break
    return free
