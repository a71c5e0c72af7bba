"""A setting of glibc that keeps freed memory in the process.

By default glibc returns the memory of every large tensor to the system and requests it again. On a
CPU this causes thousands of page faults per training step.
"""

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**30, 2**25
"""Sizes in bytes of the largest blocks that come from the heap, which the process keeps. glibc
before 2.35 refuses the first one."""


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory in this process. Return whether it does."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    keeps_blocks = any(mallopt(M_MMAP_THRESHOLD, size) for size in LARGEST)
    return bool(mallopt(M_TRIM_THRESHOLD, -1)) and keeps_blocks
