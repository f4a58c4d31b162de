"""The only place in Hush where batches and noise are drawn.

Guarantees:
    - `secure()` takes every bit from the operating system's cryptographic generator. It has no seed, so no one,
      its owner included, can draw the same noise twice.
    - `replayable(...)` depends on (seed, client, round) alone: an experiment gives the same numbers when its clients
      run alone, among others, or elsewhere on the same kind of device. Whoever knows the seed can subtract the noise:
      it protects no one, and its label says so wherever it is shown.

Edge cases:
    - `uniform` is float64; it is in [0, 1) and never 1. `chosen` meets its rate to 53 bits, rounded down; a rate of one
      chooses everything and draws nothing.
    - `normal` is never infinite. It is floating-point Gaussian noise: attacks on its low bits (Mironov, CCS 2012) are
      outside the promise; see docs/privacy-promise.md. `discrete` has no such bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hush.privacy.bar import bar
from hush.privacy.discrete import BITS, discrete_gaussian
from hush.seeds import derive

SECURE = "secure"
REPLAYABLE = "replayable (not private)"
_AHEAD = 1 << 16  # rows that are decided on at a time


class Twin:
    """A stream of standard normal numbers on an accelerator, and one of fair bits."""

    def __init__(self, generator: torch.Generator, choosing: torch.Generator) -> None:
        self._generator, self._choosing = generator, choosing

    def fill(self, target: Tensor) -> None:
        """Write the next numbers into the target."""
        torch.randn(target.shape, generator=self._generator, out=target)

    def words(self, target: Tensor) -> None:
        """Write fair bits into the target, 64 in each of its int64 numbers."""
        target.random_(-(2**63), None, generator=self._choosing)


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

    def twin(self, device: torch.device) -> Twin | None:
        """What draws on an accelerator in place of this source; none if only the host may draw.

        Its numbers are not those of `normal` and `chosen`, but they depend on the same things.
        """
        ...

    def discrete(self, size: int, sigma: int) -> Tensor:
        """Whole numbers of the discrete Gaussian of scale sigma, exactly."""
        ...


class Rows:
    """Rows chosen independently at a rate, some batches ahead: four times as many each time while size and rate stay.

    A uniform number of 53 bits is compared with the rate from its first bits on: sixteen of them decide for all rows
    but one in 65,536, and only the others ever get the rest of theirs.
    """

    def __init__(self, words: Callable[[int], np.ndarray]) -> None:
        self._words = words
        self._kind: tuple[int, float] | None = None
        self._waiting: list[np.ndarray] = []
        self._batches = 1

    def chosen(self, size: int, rate: float) -> Tensor:
        """The next batch, as `Source.chosen` has it. The rate counts as a multiple of 2^-53, rounded down."""
        if rate >= 1.0:
            return torch.arange(size)
        if self._kind != (size, rate):
            self._kind, self._waiting, self._batches = (size, rate), [], 1
        if not self._waiting:
            self._draw(size, rate)
        return torch.from_numpy(self._waiting.pop())

    def _draw(self, size: int, rate: float) -> None:
        below = bar(rate)
        high, low = below >> 37, below & (2**37 - 1)
        whole = self._batches * size
        heads = self._words(-(-whole // 4)).view(np.uint16)[:whole]
        inside = heads < high
        (tied,) = (heads == high).nonzero()
        if len(tied):
            inside[tied] = (self._words(len(tied)) >> np.uint64(27)) < low
        (found,) = inside.nonzero()
        ends = found.searchsorted(np.arange(1, self._batches + 1) * size)
        begins = np.concatenate([[0], ends[:-1]])
        self._waiting = [found[a:b] - k * size for k, (a, b) in enumerate(zip(begins, ends, strict=True))][::-1]
        self._batches = max(1, min(4 * self._batches, _AHEAD // max(1, size)))


class _Replayable:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        # Streams of their own, so that it does not matter when rows are drawn, nor where noise is.
        self._choosing: torch.Generator | None = None
        self._rows = Rows(self._raw)

    def uniform(self, size: int) -> Tensor:
        return torch.rand(size, generator=self._generator, dtype=torch.float64)

    def chosen(self, size: int, rate: float) -> Tensor:
        return self._rows.chosen(size, rate)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(size, generator=self._generator, dtype=dtype)

    def twin(self, device: torch.device) -> Twin | None:
        noise, rows = (torch.Generator(device).manual_seed(derive(self._seed, name)) for name in ("twin", "twin rows"))
        return Twin(noise, rows)

    def discrete(self, size: int, sigma: int) -> Tensor:
        return discrete_gaussian(size, sigma, self._words)

    def _raw(self, size: int) -> np.ndarray:
        if self._choosing is None:
            self._choosing = torch.Generator().manual_seed(derive(self._seed, "rows"))
        drawn = torch.randint(-(2**63), 2**63 - 1, (size,), generator=self._choosing)
        return drawn.numpy().view(np.uint64)

    def _words(self, size: int) -> Tensor:
        return torch.randint(0, 2**BITS, (size,), generator=self._generator, dtype=torch.int64)


class _Shared(_Replayable):
    """Batches and noise that are the same for everyone of a round, drawn as in DP-SCAFFOLD's public code.

    Its one generator is seeded anew for every batch of a fixed size, by 500 (seed + 1) round + step + 1; a seed for its
    loader, the order of the rows and the noise follow.
    """

    def __init__(self, seed: int, round_number: int) -> None:
        super().__init__((500 * (seed + 1) * round_number + 1) % 2**63)

    def uniform(self, size: int) -> Tensor:
        """The ranks of a new order over their number: the least are the first rows of it."""
        self._seed += 1
        self._generator.manual_seed(self._seed)
        torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        order = torch.randperm(size, generator=self._generator)
        return order.argsort().double() / size

    def twin(self, device: torch.device) -> None:
        return None


class _Secure:
    def __init__(self) -> None:
        self._rows = Rows(self._raw)

    def uniform(self, size: int) -> Tensor:
        return torch.from_numpy(self._unit(size))

    def chosen(self, size: int, rate: float) -> Tensor:
        return self._rows.chosen(size, rate)

    def twin(self, device: torch.device) -> None:
        return None

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


def replayable(seed: int, client: int, round_number: int, shared: bool = False) -> Source:
    """A stream that can be drawn again: for experiments only. What is `shared` is that of all clients of a round."""
    return _Shared(seed, round_number) if shared else _Replayable(derive(seed, "local", client, round_number))
