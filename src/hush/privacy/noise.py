"""The only place in Hush where batches and noise are drawn.

Guarantees:
    - `secure()` takes every bit from the operating system's cryptographic generator. It has no seed, so no one,
      its owner included, can draw the same noise twice.
    - `replayable(...)` depends on (seed, client, round) alone: an experiment gives the same numbers when its clients
      run alone, among others, or elsewhere. Whoever knows the seed can subtract the noise: it protects no one, and
      its label says so wherever it is shown.

Edge cases:
    - `uniform` is float64; it is in [0, 1) and never 1. `chosen` meets its rate to 53 bits, rounded down; a rate of one
      chooses everything and draws nothing.
    - `normal` is never infinite. It is floating-point Gaussian noise: attacks on its low bits (Mironov, CCS 2012) are
      outside the promise; see docs/privacy-promise.md. `discrete` has no such bits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hush.privacy.discrete import BITS, discrete_gaussian
from hush.seeds import derive

SECURE = "secure"
REPLAYABLE = "replayable (not private)"


class Source(Protocol):
    """A stream of independent uniform and standard normal numbers."""

    def uniform(self, size: int) -> Tensor:
        """Float64 numbers in [0, 1)."""
        ...

    def chosen(self, size: int, rate: float) -> Tensor:
        """Which of the numbers below `size` are chosen, each independently with probability `rate`."""
        ...

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        """Standard normal numbers."""
        ...

    def discrete(self, size: int, sigma: int) -> Tensor:
        """Whole numbers of the discrete Gaussian of scale sigma, exactly."""
        ...


def choose(size: int, rate: float, words: Callable[[int], np.ndarray]) -> Tensor:
    """The numbers below `size` whose own uniform number is below the rate, as `Source.chosen` has it.

    A uniform number of 53 bits is compared from its first bits on: sixteen of them decide for all rows but one in
    65,536, and only the others ever get the rest of theirs.

    Args:
        size: How many numbers there are.
        rate: The probability, rounded down to a multiple of 2^-53.
        words: Draws that many independent words of 64 bits, as unsigned integers.
    """
    if rate >= 1.0:
        return torch.arange(size)
    bar = math.floor(math.ldexp(rate, 53))
    high, low = bar >> 37, bar & (2**37 - 1)
    heads = words(-(-size // 4)).view(np.uint16)[:size]
    (rows,) = (heads <= high).nonzero()
    tied = heads[rows] == high
    if tied.any():
        tied[tied] = (words(int(tied.sum())) >> np.uint64(27)) >= low
        rows = rows[~tied]
    return torch.from_numpy(rows)


class _Replayable:
    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def uniform(self, size: int) -> Tensor:
        return torch.rand(size, generator=self._generator, dtype=torch.float64)

    def chosen(self, size: int, rate: float) -> Tensor:
        return choose(size, rate, self._raw)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(size, generator=self._generator, dtype=dtype)

    def discrete(self, size: int, sigma: int) -> Tensor:
        return discrete_gaussian(size, sigma, self._words)

    def _raw(self, size: int) -> np.ndarray:
        drawn = torch.empty(size, dtype=torch.int64).random_(-(2**63), None, generator=self._generator)
        return drawn.numpy().view(np.uint64)

    def _words(self, size: int) -> Tensor:
        return torch.randint(0, 2**BITS, (size,), generator=self._generator, dtype=torch.int64)


class _Secure:
    def uniform(self, size: int) -> Tensor:
        return torch.from_numpy(self._unit(size))

    def chosen(self, size: int, rate: float) -> Tensor:
        return choose(size, rate, self._raw)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        half = (size + 1) // 2
        radius = np.sqrt(-2.0 * np.log1p(-self._unit(half)))
        angle = 2.0 * np.pi * self._unit(half)
        drawn = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
        return torch.from_numpy(drawn).to(dtype)

    def discrete(self, size: int, sigma: int) -> Tensor:
        return discrete_gaussian(size, sigma, self._words)

    def _words(self, size: int) -> Tensor:
        return torch.from_numpy((self._raw(size) >> np.uint64(64 - BITS)).astype(np.int64))

    def _unit(self, size: int) -> np.ndarray:
        return (self._raw(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _raw(self, size: int) -> np.ndarray:
        return np.frombuffer(os.urandom(8 * size), dtype=np.uint64)


def secure() -> Source:
    """Operating-system entropy: for data that must be protected."""
    return _Secure()


def replayable(seed: int, client: int, round_number: int) -> Source:
    """A stream that can be drawn again: for experiments only."""
    return _Replayable(derive(seed, "local", client, round_number))
