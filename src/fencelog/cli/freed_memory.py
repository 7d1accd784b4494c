"""Keeps memory that was freed: the C library gives it back to the system at once, and pays for it.

A frame of a megabyte needs new memory. Where what the frame before left is gone, the system clears
256 pages and maps them one by one, which costs as much as all else that is done with the frame.
"""

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
KEPT_BYTES = 32 * 1024 * 1024
"""Free memory that the process keeps at the end of its heap."""
KEPT_BLOCK_BYTES_MAX = 4 * 1024 * 1024
"""Larger blocks, which are rare, are still given back when they are freed."""


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, within limits; another C library stays as it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES_MAX)
