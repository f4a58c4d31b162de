"""The only place in Hush where batches and noise are drawn.

Guarantees:
    - `Secure()` is keyed by the operating system's cryptographic generator: AES-256 on the host (`secure_bits`),
      ChaCha20 on a GPU (`chacha20`). It has no seed, so no one, its owner included, can draw the same noise twice. It
      is neither copied nor written, and after a fork the two processes share nothing of it. What it protects, it
      protects as well as the cipher (Theorem 15 of docs/proofs.md).
    - `Seeded(...)` depends on (seed, client, round) alone: an experiment gives the same numbers when its clients
      run alone, among others, or elsewhere on the same kind of device. Whoever knows the seed can subtract the noise:
      it protects no one, and its label says so wherever it is shown.

Edge cases:
    - Of all numbers of 53 bits, a part of at most `rate` is below `threshold(rate)`, and less than 2^-53 below that.
      A rate of one has a threshold above every number.
    - A seeded source makes its generators when it is first drawn from.
    - `uniform` is float64; it is in [0, 1) and never 1. `chosen` meets its rate to 53 bits, rounded down; a rate of one
      chooses everything and draws nothing.
    - `normal` is never infinite. It is floating-point Gaussian noise: attacks on its low bits (Mironov, CCS 2012) are
      outside the promise; see docs/privacy-promise.md. `discrete` has no such bits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from hush.privacy import box_muller, chacha20
from hush.privacy.discrete import BITS, discrete_gaussian
from hush.privacy.secure_bits import reader, words
from hush.privacy.source import DeviceRng
from hush.seeds import derive

SECURE = "secure"
SEEDED = "seeded (not private)"
_AHEAD = 1 << 16  # rows that are decided on, or numbers that are drawn, at a time


def threshold(rate: float) -> int:
    """What a uniform number of 53 bits must be below for a row to be chosen at that rate, on every device."""
    return math.floor(math.ldexp(min(rate, 1.0), 53))


class RowSampler:
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
        below = threshold(rate)
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


class NormalSampler:
    """Standard normal numbers, drawn ahead where few are asked for: up to four times as many each time."""

    def __init__(self, draw: Callable[[int, torch.dtype], Tensor]) -> None:
        self._draw, self._next = draw, 0
        self._waiting = torch.empty(0)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        """The next numbers; those that wait are given once, to the first who asks."""
        if not 0 < size < _AHEAD:
            return self._draw(size, dtype)
        if self._waiting.dtype != dtype:
            self._waiting, self._next = torch.empty(0, dtype=dtype), 0
        if len(self._waiting) < size:
            self._waiting = self._draw(max(1, self._next // size) * size, dtype)
            self._next = min(4 * len(self._waiting), _AHEAD)
        given, self._waiting = self._waiting[:size], self._waiting[size:]
        return given


class _TorchDeviceRng:
    """A `DeviceRng` of two generators of PyTorch."""

    def __init__(self, generator: torch.Generator, choosing: torch.Generator) -> None:
        self._generator, self._choosing = generator, choosing

    def fill(self, target: Tensor) -> None:
        torch.randn(target.shape, generator=self._generator, out=target)

    def words(self, target: Tensor) -> None:
        target.random_(-(2**63), None, generator=self._choosing)


@dataclass(eq=False)
class Seeded:
    """A stream that can be drawn again: for experiments only."""

    seed: int
    client: int
    round_number: int

    @cached_property
    def _derived(self) -> int:
        return derive(self.seed, "local", self.client, self.round_number)

    @cached_property
    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._derived)

    # Streams of their own, so that it does not matter when rows are drawn, nor where noise is.
    @cached_property
    def _choosing(self) -> torch.Generator:
        return torch.Generator().manual_seed(derive(self._derived, "rows"))

    @cached_property
    def _keys(self) -> torch.Generator:
        return torch.Generator().manual_seed(derive(self._derived, "keys"))

    @cached_property
    def _rows(self) -> RowSampler:
        return RowSampler(self._raw)

    def uniform(self, size: int) -> Tensor:
        """Float64 numbers in [0, 1)."""
        return torch.rand(size, generator=self._generator, dtype=torch.float64)

    def chosen(self, size: int, rate: float) -> Tensor:
        """The numbers below `size` that are chosen, each with probability `rate`."""
        return self._rows.chosen(size, rate)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(size, generator=self._generator, dtype=dtype)

    def keys(self, size: int) -> Tensor:
        """Fair 64-bit numbers."""
        return torch.randint(-(2**63), 2**63 - 1, (size,), generator=self._keys)

    def device_rng(self, device: torch.device) -> DeviceRng | None:
        """Streams of a GPU's own, which depend on the same things."""
        noise, rows = (
            torch.Generator(device).manual_seed(derive(self._derived, name)) for name in ("twin", "twin rows")
        )
        return _TorchDeviceRng(noise, rows)

    def discrete(self, size: int, sigma: int) -> Tensor:
        """Whole numbers of the discrete Gaussian of scale sigma."""
        return discrete_gaussian(size, sigma, self._words)

    def _raw(self, size: int) -> np.ndarray:
        drawn = torch.randint(-(2**63), 2**63 - 1, (size,), generator=self._choosing)
        return drawn.numpy().view(np.uint64)

    def _words(self, size: int) -> Tensor:
        return torch.randint(0, 2**BITS, (size,), generator=self._generator, dtype=torch.int64)


class SharedSeeded(Seeded):
    """Batches and noise that are the same for everyone of a round, drawn as in DP-SCAFFOLD's public code.

    Its one generator is seeded anew for every batch of a fixed size, by 500 (seed + 1) round + step + 1; a seed for its
    loader, the order of the rows and the noise follow.
    """

    @cached_property
    def _derived(self) -> int:
        return (500 * (self.seed + 1) * self.round_number + 1) % 2**63

    def uniform(self, size: int) -> Tensor:
        """The ranks of a new order over their number: the least are the first rows of it."""
        self._derived += 1
        self._generator.manual_seed(self._derived)
        torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        order = torch.randperm(size, generator=self._generator)
        return order.argsort().double() / size

    def device_rng(self, device: torch.device) -> DeviceRng | None:
        """None: only the host draws what is shared."""
        return None


class Secure:
    """Noise that nobody can draw again: for data that must be protected."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process, self._rows, self._normals = os.getpid(), RowSampler(words), NormalSampler(_normal)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secure source is neither copied nor written: both copies would draw the same noise")

    def uniform(self, size: int) -> Tensor:
        """Float64 numbers in [0, 1)."""
        return torch.from_numpy((words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def chosen(self, size: int, rate: float) -> Tensor:
        """The numbers below `size` that are chosen, each with probability `rate`."""
        self._forget_after_fork()
        return self._rows.chosen(size, rate)

    def keys(self, size: int) -> Tensor:
        """Fair 64-bit numbers."""
        return torch.from_numpy(words(size).view(np.int64).copy())

    def device_rng(self, device: torch.device) -> DeviceRng | None:
        """A stream of ChaCha20 on the GPU itself; none where Triton's kernels cannot run, so that the host draws."""
        return chacha20.device_rng(device)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        """Standard normal numbers; what is shorter than float32 is rounded from it."""
        self._forget_after_fork()
        return self._normals.normal(size, dtype)

    def discrete(self, size: int, sigma: int) -> Tensor:
        """Whole numbers of the discrete Gaussian of scale sigma."""
        return discrete_gaussian(size, sigma, self._words)

    def _words(self, size: int) -> Tensor:
        return torch.from_numpy((words(size) >> np.uint64(64 - BITS)).astype(np.int64))

    def _forget_after_fork(self) -> None:
        """What was drawn ahead is the other process's."""
        if self._process != os.getpid():
            self._begin()


def _normal(size: int, dtype: torch.dtype) -> Tensor:
    drawn = np.empty(size, np.float64 if dtype == torch.float64 else np.float32)
    box_muller.fill(drawn, reader(box_muller.pair_bytes(drawn.dtype) * (size + 1) // 2))
    return torch.from_numpy(drawn).to(dtype)
