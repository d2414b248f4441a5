"""Memory that a step of training or decoding frees stays with the process for the next one."""

import ctypes
import os

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keeps what is freed, and takes large tensors in large pages; True where the C library does so.

    Training takes and frees gigabytes a step, decoding tens of megabytes, in tensors of many megabytes. Left to
    itself glibc gives each of them back to the system at once, and Linux fills every page with zeros when it is taken
    anew: a tenth of a step of training on a CPU. To be called before the first large tensor is made, which is when
    torch looks for its setting. Elsewhere than on Linux with glibc nothing is changed.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    never = -1
    return bool(mallopt(_M_TRIM_THRESHOLD, never) and mallopt(_M_MMAP_THRESHOLD, _LARGEST_INT))
