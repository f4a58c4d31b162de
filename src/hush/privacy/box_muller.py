"""The Box-Muller transform: two standard normal numbers from a uniform radius and a uniform angle, with full tails.

Guarantees:
    - The radius comes from 64 bits, a sign and 63 of magnitude, in float64: numbers reach 9.4, and those beyond 5 are
      as frequent as they should be. The angle has 32 bits for float32 and 64 for float64.
    - Every number has bits of its own; nothing is kept from one call to the next.

Edge cases:
    - A magnitude of zero counts as one half, so that no number is infinite.
    - Of an odd number of normals, the last one's partner is dropped.
"""

from __future__ import annotations

import math
from threading import local

import numpy as np
import torch

from hush.privacy.secure_bits import SPARE, Reader

_PAIRS = 1 << 15  # that are transformed at a time, in memory that stays in the cache
_LEAST = 2.0**-64


class _Scratch:
    """Working memory of a block."""

    def __init__(self, pairs: int) -> None:
        self.bits = np.empty(16 * pairs + SPARE, np.uint8)
        self.radius, self.angle, self.other = np.empty((3, pairs))
        self.short = np.empty((2, pairs), np.float32)


class _PerThread(local):
    """Every thread's own scratch, kept because making one costs more than a few numbers."""

    def __init__(self) -> None:
        self.scratch = _Scratch(_PAIRS)


_own = _PerThread()


def pair_bytes(dtype: np.dtype) -> int:
    """Return the bytes that a pair of numbers is made of."""
    return 12 if dtype == np.float32 else 16


def fill(out: np.ndarray, read: Reader) -> None:
    """Fill a vector of float32 or float64 with standard normal numbers."""
    scratch, block = _own.scratch, _float32 if out.dtype == np.float32 else _float64
    whole = len(out) - len(out) % (2 * _PAIRS)
    for begin in range(0, whole, 2 * _PAIRS):
        block(read, scratch, _PAIRS, out[begin : begin + 2 * _PAIRS])
    if whole == len(out):
        return
    last = out[whole:]
    if len(last) % 2 == 0:
        block(read, scratch, len(last) // 2, last)
    else:
        paired = np.empty(len(last) + 1, out.dtype)
        block(read, scratch, len(paired) // 2, paired)
        last[:] = paired[:-1]


def _float32(read: Reader, scratch: _Scratch, pairs: int, out: np.ndarray) -> None:
    """Transform with the logarithm in float64, which decides the tails, and sine and cosine in float32."""
    read(scratch.bits, 12 * pairs)
    radius, angle = scratch.short[:, :pairs]
    np.copyto(radius, _radius(scratch, pairs), casting="same_kind")
    np.copyto(angle, scratch.bits[8 * pairs : 12 * pairs].view(np.int32), casting="same_kind")
    np.multiply(angle, np.float32(math.pi * 2.0**-31), out=angle)
    np.cos(angle, out=out[:pairs])
    np.sin(angle, out=out[pairs:])
    np.multiply(out[:pairs], radius, out=out[:pairs])
    np.multiply(out[pairs:], radius, out=out[pairs:])


def _float64(read: Reader, scratch: _Scratch, pairs: int, out: np.ndarray) -> None:
    """Transform in float64; PyTorch is faster at sine and cosine."""
    read(scratch.bits, 16 * pairs)
    radius, angle, other = _radius(scratch, pairs), scratch.angle[:pairs], scratch.other[:pairs]
    np.copyto(angle, scratch.bits[8 * pairs : 16 * pairs].view(np.int64), casting="same_kind")
    np.multiply(angle, math.pi * 2.0**-63, out=angle)
    torch.cos(torch.from_numpy(angle), out=torch.from_numpy(other))
    torch.sin(torch.from_numpy(angle), out=torch.from_numpy(angle))
    np.multiply(other, radius, out=out[:pairs])
    np.multiply(angle, radius, out=out[pairs:])


def _radius(scratch: _Scratch, pairs: int) -> np.ndarray:
    """Return the square root of -2 ln u, u being the magnitude of a signed word as a part of its range."""
    radius = scratch.radius[:pairs]
    np.copyto(radius, scratch.bits[: 8 * pairs].view(np.int64), casting="same_kind")
    np.abs(radius, out=radius)
    np.multiply(radius, 2.0**-63, out=radius)
    np.maximum(radius, _LEAST, out=radius)
    np.log(radius, out=radius)
    np.multiply(radius, -2.0, out=radius)
    return np.sqrt(radius, out=radius)
