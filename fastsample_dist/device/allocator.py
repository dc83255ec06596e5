"""What happens to memory that a batch has freed.

Every step allocates and frees the same few hundred megabytes. glibc returns large blocks to the kernel at once
and takes new ones page by page, each zeroed by the kernel first (tests/device/test_allocator.py counts the faults).
"""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # <malloc.h>
LARGEST_INT = 2**31 - 1
TOP_PAD_BYTES = 64 << 20


def reuse_freed_memory() -> bool:
    """Make this process keep freed memory for its next allocation instead of returning it to the kernel.

    The process stays as large as its largest step. Affects every allocation by malloc from now on, so call it
    once, early.

    Returns:
      Whether the C library offers it (glibc does; elsewhere nothing changes).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, LARGEST_INT), (M_TOP_PAD, TOP_PAD_BYTES))
    return all([mallopt(name, value) == 1 for name, value in settings])
