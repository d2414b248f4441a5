"""Settings of the C library's allocator: freed memory stays with the process for the next step."""

import ctypes
import os

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keeps freed memory in the process and puts large tensors in huge pages; True if the C library supports it.

    Training allocates and frees gigabytes per step, decoding tens of megabytes, in tensors of many megabytes. By
    default glibc returns each of them to the system at once, and Linux zeroes every page when it is allocated again: a
    tenth of a training step on a CPU. Call it before the first large tensor is created, which is when torch reads its
    setting. It has no effect except on Linux with glibc.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    never = -1
    return bool(mallopt(_M_TRIM_THRESHOLD, never) and mallopt(_M_MMAP_THRESHOLD, _LARGEST_INT))
