"""The allocator of a worker: memory that a training step frees is kept for the next one.

Training frees and allocates the same activations in every step. By default the C library of Linux gives most of them
back to the operating system in between, which then clears each page again: a fifth of a worker's time. A worker is a
process of Hush, so its allocator may be set; that of a user's own process is left as it is.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)
_KEPT, _GROWTH = 256 << 20, 32 << 20
_LARGE = 32 << 20  # the largest that the C library takes; larger tensors are given back at once


def keep_freed_memory() -> bool:
    """Keep up to 256 MiB of what is freed, where the C library can; return whether it can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    settings = {_MMAP_THRESHOLD: _LARGE, _TRIM_THRESHOLD: _KEPT, _TOP_PAD: _GROWTH}
    taken = [mallopt(name, value) == 1 for name, value in settings.items()]
    return all(taken)
