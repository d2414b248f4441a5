"""Products that the processor computes correctly and fast: the libraries are tested, not believed."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from searches import INPUTS, sharp

from vanilla_transformer.engine import cpu
from vanilla_transformer.engine.stacks import SearchDecoder

TESTS = Path(__file__).parents[1]
# What makes each library do as on a processor with AVX2 alone. ONNX Runtime has no such variable.
AS_ON_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
}
HELD_BACK = AS_ON_AVX2.items() <= os.environ.items()
FLAGS = set(Path("/proc/cpuinfo").read_text().split()) if sys.platform == "linux" else set()
AVX2_ALONE = "avx2" in FLAGS and not FLAGS & {"avx512f", "avx_vnni"}


@pytest.mark.skipif(HELD_BACK, reason="This is the second run.")
@pytest.mark.skipif("AVX" not in torch.backends.cpu.get_cpu_capability(), reason="There is no AVX2 to do as on.")
@pytest.mark.skipif(AVX2_ALONE, reason="The first run is one on such a processor.")
def test_marked_tests_pass_as_on_a_processor_without_avx512():
    marked = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "pytest.mark.processor" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-m", "processor", *marked]
    done = subprocess.run(command, env=os.environ | AS_ON_AVX2, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.processor
@pytest.mark.skipif(not (HELD_BACK or AVX2_ALONE), reason="The libraries may do all that the processor can.")
def test_the_libraries_are_held_back():
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert not cpu.has_bfloat16_products()


@pytest.mark.parametrize("known", ["_is_mkldnn_bf16_supported", "_is_avx512_bf16_supported"])
def test_bfloat16_needs_processor_and_library(monkeypatch, known: str):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: known == "_is_avx512_bf16_supported")
    supported = known == "_is_mkldnn_bf16_supported"
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    assert not cpu.has_bfloat16_products()
    monkeypatch.setattr(cpu.platform, "machine", lambda: "aarch64")  # There oneDNN alone is asked.
    assert cpu.has_bfloat16_products() == supported


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_16_bit_models_decode_in_float32_where_16_bits_are_emulated(monkeypatch, dtype, num_beams: int):
    monkeypatch.setattr(cpu, "has_bfloat16_products", lambda: False)
    asked, multiply = [], torch.bmm  # Of the engine alone: a model's own attention is a function of torch.

    def noted(one, other):
        asked.append(one.dtype)
        return multiply(one, other)

    monkeypatch.setattr(torch, "bmm", noted)
    search, rounded = {"num_beams": num_beams, "max_new_tokens": 8}, sharp(0).to(dtype)
    found = rounded.generate(**INPUTS, **search)
    assert set(asked) == {torch.float32}
    assert torch.equal(found, rounded.float().generate(**INPUTS, **search))


@pytest.mark.parametrize(("small", "expected"), [(cpu.MAX_WORK_OF_ONE_THREAD, 1), (0, 2)])
def test_a_call_has_the_threads_that_it_can_use_and_gives_them_back(monkeypatch, small: int, expected: int):
    model, seen = sharp(0), []

    def start(*_):
        seen.append(torch.get_num_threads())
        beginning = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        beginning.start()
        beginning.join()
        raise ZeroDivisionError

    monkeypatch.setattr(cpu, "MAX_WORK_OF_ONE_THREAD", small)
    monkeypatch.setattr(SearchDecoder, "__init__", start)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError):
            model.generate(**INPUTS)
        assert (seen, torch.get_num_threads()) == ([expected, 2], 2)
    finally:
        torch.set_num_threads(before)
