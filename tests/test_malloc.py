"""Memory that a step frees stays for the next one."""

import subprocess
import sys

import pytest

FREED_AND_KEPT = """
import ctypes, sys, torch
from vanilla_transformer.malloc import keep_freed_memory

class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

try:
    usage = ctypes.CDLL(None).mallinfo2
except (AttributeError, OSError, TypeError):
    sys.exit("this C library cannot be asked")
usage.restype = Usage
if sys.argv[1] == "kept":
    assert keep_freed_memory()
tensors = [torch.ones(8 << 20) for _ in range(4)]
before = usage().fordblks
del tensors
print(usage().fordblks - before)
"""


def kept(how):
    """Bytes that the allocator keeps after tensors of 128 MiB were freed, by its own account."""
    command = [sys.executable, "-c", FREED_AND_KEPT, how]
    result = subprocess.run(command, capture_output=True, text=True)
    if "cannot be asked" in result.stderr:
        pytest.skip("The C library is not glibc 2.33 or newer.")
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


def test_freed_memory_is_not_given_back():
    assert kept("as it is") < 1 << 20
    assert kept("kept") >= 128 << 20
