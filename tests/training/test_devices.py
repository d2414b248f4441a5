import pytest
import torch

from vanilla_transformer.training.devices import device_peak, peak_memory

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
        ("NVIDIA H200", "bfloat16", 989.4e12),
    ],
)
def test_known_accelerators_have_their_published_dense_peak(named, name, precision, expected):
    named(name)
    peak = device_peak(CUDA, precision)
    assert (peak.flops_per_second, peak.source) == (expected, "published")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_peak_of_a_cpu_is_measured(precision):
    peak = device_peak(CPU, precision)
    assert peak.source == "measured"
    assert 1e7 < peak.flops_per_second < 1e15
