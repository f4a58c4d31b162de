"""Fingerprints of training rows: they identify the rows that a ledger covers without revealing their content.

Guarantees:
    - Equal rows (features as float32, and targets) have equal fingerprints, independent of order and client. Different
      rows have different fingerprints, except with probability 2^-128 per pair.
    - Without the key a fingerprint reveals nothing about its row, not even to someone who guesses the row. The number
      of rows is not hidden.
    - Where persons are protected, a row has a second fingerprint, of its content and its person's key. Its first one is
      that of the row alone, so that the same rows are recognised whatever the unit of privacy.

Edge cases:
    - Duplicate rows are counted. Minus zero equals zero. The shape of a row does not matter.
    - A whole number is the same target as an integer and as a real number.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Prints: TypeAlias = Counter[bytes]


class Rows(NamedTuple):
    """Features, targets, and the keys of the persons whose rows they are, where persons are protected."""

    x: npt.NDArray[np.floating]
    y: npt.NDArray[np.integer | np.floating]
    persons: npt.NDArray[np.integer | np.str_] | None = None


_LENGTH = 16
_BLOCK = 256
_PERSON = b"person of a row"  # so that no fingerprint of a row alone is one of a row and its person
_EXACT = 2.0**53  # whole numbers below are exact in float64


def of(rows: Rows, key: bytes) -> Prints:
    """Return the fingerprints of rows under a key, with their multiplicities."""
    x, y, persons = rows
    flat = x.reshape(len(y), -1)
    width, targets = 4 * flat.shape[1], _whole(y)
    text = np.empty((_BLOCK, width + 8 * targets.shape[1]), np.uint8)
    features, integers = text[:, :width].view(np.float32), text[:, width:].view(np.int64)
    found: Prints = Counter()
    for start in range(0, len(y), _BLOCK):
        here = slice(start, start + _BLOCK)
        size = len(y[here])
        np.add(flat[here], np.float32(0), out=features[:size], casting="same_kind")
        integers[:size] = targets[here]
        found.update(hashlib.blake2b(row, digest_size=_LENGTH, key=key).digest() for row in text[:size])
        for row, person in zip(text[:size], () if persons is None else persons[here], strict=persons is not None):
            whose = hashlib.blake2b(row, digest_size=_LENGTH, key=key, person=_PERSON)
            whose.update(str(person).encode())
            found[whose.digest()] += 1
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
    """Serialise fingerprints, sorted, so that the order of the rows is not revealed."""
    return b"".join(sorted(prints.elements()))


def read(content: bytes) -> Prints:
    """Parse the output of `write`."""
    return Counter(content[at : at + _LENGTH] for at in range(0, len(content), _LENGTH))
