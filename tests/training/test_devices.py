import itertools
from contextlib import nullcontext

import pytest
import torch

from vanilla_transformer.training.devices import describe_device, device_peak, peak_memory

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_peak_memory_grows_with_what_is_held():
    before = peak_memory(CPU)
    held = torch.ones(200_000_000 // 4)
    assert peak_memory(CPU) >= max(before, held.nbytes)


@pytest.fixture
def named(monkeypatch):
    """Makes the accelerator of this machine one of another name."""
    return lambda name: monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5e12),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12),
        ("NVIDIA H200", "bfloat16", 989.4e12),
    ],
)
def test_known_accelerators_have_their_published_dense_peak(named, name, precision, expected):
    named(name)
    peak = device_peak(CUDA, precision)
    assert (peak.flops_per_second, peak.source) == (expected, "published")


def test_float32_products_in_tf32_are_measured_against_its_peak(named):
    named("NVIDIA A100-SXM4-40GB")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert device_peak(CUDA, "float32").flops_per_second == 156e12
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H200 NVL", "Tesla V100-SXM2-16GB"])
def test_parts_and_variants_and_what_a_sheet_does_not_say_are_measured(named, name):
    named(name)
    # Where there is no such device, measuring it fails.
    with nullcontext() if torch.cuda.is_available() else pytest.raises((AssertionError, RuntimeError)):
        assert device_peak(CUDA, "bfloat16").source == "measured"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_peak_of_a_cpu_is_measured(precision):
    peak = device_peak(CPU, precision)
    assert peak.source == "measured"
    assert 1e7 < peak.flops_per_second < 1e15


def test_the_best_product_counts_and_never_a_first_one(monkeypatch):
    """With a clock by which each product takes one second, but those of the first round none."""
    ticks = itertools.chain([0, 0, 0, 0], itertools.count())
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    assert device_peak(CPU, "float32").flops_per_second == 2 * 1024**3


def test_devices_are_named_with_their_number(named):
    named("NVIDIA H200")
    assert describe_device(CUDA, 8) == "8 × NVIDIA H200"
    torch.set_num_threads(2)
    assert describe_device(CPU, 2) == "4 CPU threads"
    torch.set_num_threads(1)
    assert describe_device(CPU, 1) == "1 CPU thread"
