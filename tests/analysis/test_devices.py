import itertools

import pytest
import torch

from vanilla_transformer.analysis import devices
from vanilla_transformer.analysis.devices import describe_device, device_peak, peak_memory

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def test_peak_memory_grows_with_what_is_held():
    before = peak_memory(CPU)
    held = torch.ones(200_000_000 // 4)
    assert peak_memory(CPU) >= max(before, held.nbytes)


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5e12),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12),
        ("NVIDIA H200", "bfloat16", 989.4e12),
    ],
)
def test_known_accelerators_have_their_published_dense_peak(monkeypatch, name, precision, expected):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    peak = device_peak(CUDA, precision)
    assert (peak.flops_per_second, peak.source) == (expected, "published")


def test_float32_products_in_tf32_are_measured_against_its_peak(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-40GB")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert device_peak(CUDA, "float32").flops_per_second == 156e12


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H200 NVL", "Tesla V100-SXM2-16GB"])
def test_parts_and_variants_and_what_a_sheet_does_not_say_are_measured(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(devices, "_measured_flops_per_second", lambda device, dtype: 1e9)
    assert device_peak(CUDA, "bfloat16") == devices.Peak(1e9, "measured")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_peak_of_a_cpu_is_measured(monkeypatch, precision):
    monkeypatch.setattr(devices, "_MEASURING_SECONDS", 0.05)
    monkeypatch.setitem(devices._MEASURED_SIZES, "cpu", (64, 256))
    peak = device_peak(CPU, precision)
    assert peak.source == "measured"
    assert 1e7 < peak.flops_per_second < 1e15


def test_the_best_product_counts_and_never_a_first_one(monkeypatch):
    """With a clock by which each product takes one second, but those of the first round none."""
    ticks = itertools.chain([0, 0, 0, 0], itertools.count())
    monkeypatch.setattr(devices.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setitem(devices._MEASURED_SIZES, "cpu", (8, 16))
    assert device_peak(CPU, "float32").flops_per_second == 2 * 16**3


def test_devices_are_named_with_their_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert describe_device(CUDA, 8) == "8 × NVIDIA H200"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert describe_device(CPU, 2) == "4 CPU threads"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert describe_device(CPU, 1) == "1 CPU thread"
