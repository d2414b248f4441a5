"""Matrix multiplication in bfloat16 is used only where it is fast, and marked tests also run as on an older CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vanilla_transformer import machine

TESTS = Path(__file__).parent
# Variables that restrict each library to AVX2. ONNX Runtime has no such variable.
AS_ON_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
}
IS_RESTRICTED = AS_ON_AVX2.items() <= os.environ.items()
FLAGS = set(Path("/proc/cpuinfo").read_text().split()) if sys.platform == "linux" else set()
ONLY_AVX2 = "avx2" in FLAGS and not FLAGS & {"avx512f", "avx_vnni"}


@pytest.mark.skipif(IS_RESTRICTED, reason="This is the second run.")
@pytest.mark.skipif("AVX" not in torch.backends.cpu.get_cpu_capability(), reason="This CPU has no AVX2.")
@pytest.mark.skipif(ONLY_AVX2, reason="The first run is on such a CPU.")
def test_marked_tests_pass_as_on_a_cpu_without_avx512():
    marked = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "pytest.mark.processor" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-m", "processor", *marked]
    done = subprocess.run(command, env=os.environ | AS_ON_AVX2, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.processor
@pytest.mark.skipif(not (IS_RESTRICTED or ONLY_AVX2), reason="The libraries may use everything that the CPU has.")
def test_the_libraries_are_restricted():
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert not machine.has_bfloat16_products()


@pytest.mark.parametrize("known", ["_is_mkldnn_bf16_supported", "_is_avx512_bf16_supported"])
def test_bfloat16_needs_cpu_and_library(monkeypatch, known: str):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: known == "_is_avx512_bf16_supported")
    supported = known == "_is_mkldnn_bf16_supported"
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    assert not machine.has_bfloat16_products()
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")  # Only oneDNN is asked on Arm.
    assert machine.has_bfloat16_products() == supported
