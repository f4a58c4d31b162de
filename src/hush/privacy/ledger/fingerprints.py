"""Fingerprints of training rows: which rows a ledger covers, without saying what is in them.

Guarantees:
    - Equal rows (features as float32, and targets) have equal fingerprints, whatever their order and their client. Rows
      that differ have different ones, but for a chance of 2^-128 a pair.
    - Without the key a fingerprint says nothing about its row, not even to someone who guesses the row. How many there
      are is not hidden.

Edge cases:
    - Rows that are there several times are counted. Minus zero is zero. The shape of a row does not matter.
    - A whole number is the same target as an integer and as a real number.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = tuple[npt.NDArray[np.floating], npt.NDArray[np.integer | np.floating]]  # features and targets
Prints: TypeAlias = Counter[bytes]

_LENGTH = 16
_BLOCK = 256
_EXACT = 2.0**53  # whole numbers below are exact in float64


def of(rows: Rows, key: bytes) -> Prints:
    """The fingerprints of rows under a key, with how often each is there."""
    x, y = rows
    flat = x.reshape(len(y), -1)
    width, targets = 4 * flat.shape[1], _whole(y)
    text = np.empty((_BLOCK, width + 8 * targets.shape[1]), np.uint8)
    features, held = text[:, :width].view(np.float32), text[:, width:].view(np.int64)
    found: Prints = Counter()
    for start in range(0, len(y), _BLOCK):
        here = slice(start, start + _BLOCK)
        size = len(y[here])
        np.add(flat[here], np.float32(0), out=features[:size], casting="same_kind")
        held[:size] = targets[here]
        found.update(hashlib.blake2b(row, digest_size=_LENGTH, key=key).digest() for row in text[:size])
    return found


def _whole(y: npt.NDArray[np.integer | np.floating]) -> npt.NDArray[np.int64]:
    """Targets as integers, rows x targets; a number that is not whole is the bits of its float64."""
    columns = y.reshape(len(y), -1)
    if columns.dtype.kind != "f":
        return columns.astype(np.int64)
    real = columns.astype(np.float64)
    whole = (np.floor(real) == real) & (np.abs(real) < _EXACT)
    return np.where(whole, np.where(whole, real, 0.0).astype(np.int64), real.view(np.int64))


def write(prints: Prints) -> bytes:
    """Fingerprints as a ledger keeps them: in an order that says nothing about the rows' own."""
    return b"".join(sorted(prints.elements()))


def read(content: bytes) -> Prints:
    """What `write` wrote."""
    return Counter(content[at : at + _LENGTH] for at in range(0, len(content), _LENGTH))
