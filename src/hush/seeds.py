"""Independent random streams by name, from one seed.

Every random choice in Hush that is not privacy noise (partitions, budgets, initial weights, schedules) starts from
`rng(seed, "what", ...)`. Streams with different labels are independent, so adding one never shifts another.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive(seed: int, *labels: str | int) -> int:
    """Return a 63-bit seed that depends on every label and on their order."""
    text = "\x1f".join([str(seed), *(f"{type(label).__name__}:{label}" for label in labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def rng(seed: int, *labels: str | int) -> np.random.Generator:
    """Return a NumPy generator for the stream named by the labels."""
    return np.random.default_rng(derive(seed, *labels))
