"""What a step frees is there for the next one."""

import subprocess
import sys

import pytest

FAULTS_OF_LARGE_TENSORS = """
import resource, sys, torch
from vanilla_transformer.malloc import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit("this C library keeps nothing")
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(8 << 20) for _ in range(4)]
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    """Pages that the system had to find for tensors of 128 MB, after others of the same size were freed."""
    command = [sys.executable, "-c", FAULTS_OF_LARGE_TENSORS, how]
    result = subprocess.run(command, capture_output=True, text=True)
    if "keeps nothing" in result.stderr:
        pytest.skip("The C library is not glibc.")
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


def test_freed_memory_is_not_given_back():
    assert faults("given back") > 1000
    # A system that is short of memory takes pages away by itself.
    assert any(faults("kept") < 100 for _ in range(3))
