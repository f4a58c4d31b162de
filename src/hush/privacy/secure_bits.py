"""Secure bits: those of the operating system's generator, stretched by AES-256 in counter mode where many are needed.

Guarantees:
    - Every stretch has a key and a first counter of its own, fresh from the operating system. They are held for one
      call, and written nowhere: nothing can be drawn again, and two processes after a fork share no state.
    - Few bits are the operating system's own.

Edge cases:
    - Where the package `cryptography` is missing, all bits are the operating system's: as secure, and slower by an
      order of magnitude; a warning says so once.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

KEY_BYTES = 32
# A reader writes a number of bytes to the beginning of an array, which has room for `SPARE` more.
Reader = Callable[[np.ndarray, int], None]
SPARE = 16
_FEW = 3072  # bytes up to which a key costs more than it saves
_ZEROS = np.zeros(1 << 19, np.uint8)
_ZEROS.flags.writeable = False


def fresh_key(number: int = 1) -> bytearray:
    """Return keys from the operating system, one for each stream of bits; whoever takes them overwrites them."""
    return bytearray(os.urandom(number * KEY_BYTES))


def reader(size: int) -> Reader:
    """Return a function that reads that many fresh bytes, piece by piece."""
    if size <= _FEW or (cipher := _cipher()) is None:
        return _from_system
    encrypt = cipher.Cipher(cipher.algorithms.AES(os.urandom(KEY_BYTES)), cipher.modes.CTR(os.urandom(16))).encryptor()

    def read(target: np.ndarray, count: int) -> None:
        for begin in range(0, count, len(_ZEROS)):
            piece = min(count - begin, len(_ZEROS))
            encrypt.update_into(_ZEROS[:piece], target[begin:])

    return read


def words(size: int) -> np.ndarray:
    """Return that many independent uniform numbers of 64 bits."""
    drawn = np.empty(8 * size + SPARE, np.uint8)
    reader(8 * size)(drawn, 8 * size)
    return drawn[: 8 * size].view(np.uint64)


def _from_system(target: np.ndarray, count: int) -> None:
    target[:count] = np.frombuffer(os.urandom(count), np.uint8)


@cache
def _cipher() -> Any:
    """Return the package's module of ciphers, if it is there."""
    try:
        from cryptography.hazmat.primitives import ciphers
    except ImportError:
        warnings.warn(
            "the package cryptography is not installed: secure noise comes from the operating system alone, which is "
            "as secure, and much slower",
            stacklevel=2,
        )
        return None
    return ciphers
