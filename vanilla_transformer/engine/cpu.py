"""Abilities of the processor, as reported by the libraries that multiply.

The processor's own abilities do not decide: oneDNN emulates bfloat16, and `ONEDNN_MAX_CPU_ISA` restricts it.
"""

import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

# Speed in bfloat16 relative to float32, in tokens per second, where the processor multiplies bfloat16: 1.05 to 1.10
# with layers of width 128, 1.16 to 1.28 with 256, 1.33 to 1.55 with 512. Elsewhere bfloat16 is multiplied in float32,
# so rounding gains nothing.
BFLOAT16_FROM_WIDTH = 128
# Parameters times sentences up to which one thread is as fast as two: what threads save on small products they lose
# waiting for each other.
MAX_WORK_OF_ONE_THREAD = 1 << 24


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


def precision_of(model: PreTrainedModel) -> str:
    """Returns the precision in which a model computes on this processor, as scores name it."""
    own, products = (str(one)[len("torch.") :] for one in (model.dtype, computing_dtype(model.dtype, model.device)))
    return own if products == own else f"{own} multiplied in {products}"


def has_bfloat16_products() -> bool:
    """Tells whether the processor multiplies bfloat16 and oneDNN uses it."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported"):
        return False
    # oneDNN reports support wherever there is AVX-512, with or without such products.
    emulated = platform.machine() in ("x86_64", "AMD64") and not torch.cpu._is_avx512_bf16_supported()
    return not emulated and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def fitting_threads(model: torch.nn.Module, sentences: int) -> Iterator[None]:
    """Lowers torch's threads to one in its body for products so small that several would wait for each other."""
    given = torch.get_num_threads()
    weights = list(model.parameters())
    small = (
        weights[0].device.type == "cpu"
        and sentences * sum(weight.numel() for weight in weights) <= MAX_WORK_OF_ONE_THREAD
    )
    if small and given > 1:
        torch.set_num_threads(1)
        # It is this thread's own number and that of all threads that begin later, which keep it: so it is set back for
        # them where it is not this one's.
        other = threading.Thread(target=torch.set_num_threads, args=(given,))
        other.start()
        other.join()
    try:
        yield
    finally:
        torch.set_num_threads(given)
