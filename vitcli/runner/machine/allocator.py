"""Keep freed memory in the process.

On a CPU glibc hands every large tensor back to the system and asks for it again: thousands of page
faults a training step.
"""

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**30
"""Blocks up to this size come from the heap, which is kept."""


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed, in the whole process; False where there is no glibc."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, -1))
