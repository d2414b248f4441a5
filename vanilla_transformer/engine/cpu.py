"""Abilities of the processor, asked of the libraries that multiply.

They decide by more than what the processor has: oneDNN emulates bfloat16, fbgemm makes no use of AVX-VNNI without
AVX-512, and `ONEDNN_MAX_CPU_ISA` and `FBGEMM_ENABLE_INSTRUCTIONS` hold them back.
"""

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

# Tokens a second in bfloat16 to those in float32, where the processor multiplies it: 1.05 to 1.10 with layers of width
# 128, 1.16 to 1.28 of 256, 1.33 to 1.55 of 512. Elsewhere it is multiplied in float32, and only rounded for nothing.
BFLOAT16_FROM_WIDTH = 128


def fastest_dtype(width: int, device: torch.device) -> torch.dtype:
    """The type in which a model decodes fastest of those that lose nothing measurable; accelerators are untested."""
    if device.type == "cpu" and width >= BFLOAT16_FROM_WIDTH and has_bfloat16_products():
        return torch.bfloat16
    return torch.float32


def computing_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The type in which products of `dtype` are computed: float32 where the processor would only emulate them."""
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return dtype
    return dtype if dtype == torch.bfloat16 and has_bfloat16_products() else torch.float32


def has_bfloat16_products() -> bool:
    """Tells whether the processor multiplies bfloat16, and oneDNN lets it."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported"):
        return False
    # oneDNN calls it supported wherever there is AVX-512, with or without such products.
    emulated = platform.machine() in ("x86_64", "AMD64") and not torch.cpu._is_avx512_bf16_supported()
    return not emulated and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def multiplies_few_rows_unpacked() -> bool:
    """Tells whether few rows of float32 multiply faster with a large weight as it is than packed by oneDNN.

    So it is without AVX-512, by MKL.
    """
    return torch.backends.cpu.get_cpu_capability() == "AVX2" and torch.backends.mkl.is_available()


@cache
def saturates(engine: str) -> bool:
    """Tells whether `engine`, one of `torch.backends.quantized`, adds pairs of 8-bit products in 16 bits.

    Without VNNI x86 has no other instruction. The sum 2 · 255 · 127 does not fit; 2 · 255 · 64 does.
    """
    ones = torch.ones(16, 64)
    with int8_engine(engine), without_deprecation():
        weight = torch.quantize_per_tensor(ones, 1 / 127, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, None)
        return bool(torch.ops.quantized.linear_dynamic(ones[:1], packed).min() < 60)


def describe() -> dict[str, str | bool | int | None]:
    """The instructions that torch's libraries use on this processor, and the bits of an 8-bit weight they use."""
    engine = torch.backends.quantized.engine
    return {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "vnni": torch.cpu._is_vnni_supported(),
        "amx": torch.cpu._is_amx_tile_supported(),
        "bfloat16_products": has_bfloat16_products(),
        "int8_engine": engine,
        "int8_weight_bits": None if engine == "none" else 7 if saturates(engine) else 8,
    }


@contextmanager
def int8_engine(engine: str) -> Iterator[None]:
    """Weights of 8 bits that are packed in the body are multiplied by `engine`, wherever that happens."""
    usual = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        yield
    finally:
        torch.backends.quantized.engine = usual


@contextmanager
def without_deprecation() -> Iterator[None]:
    """No word of torch that it means to give 8 bits up for torchao, which has no such product for processors yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)
        yield


__all__ = [
    "computing_dtype",
    "describe",
    "fastest_dtype",
    "has_bfloat16_products",
    "int8_engine",
    "multiplies_few_rows_unpacked",
    "saturates",
    "without_deprecation",
]
