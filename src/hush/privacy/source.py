"""The source of a client's batches and noise, as an interface that plans draw from; `noise.py` implements it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class DeviceRng(Protocol):
    """A stream of standard normal numbers on a GPU, and one of random bits."""

    def fill(self, target: Tensor) -> None:
        """Write the next normal numbers into the target."""
        ...

    def words(self, target: Tensor) -> None:
        """Write random bits into the target, 64 in each of its int64 numbers."""
        ...


class Source(Protocol):
    """A stream of independent uniform and standard normal numbers."""

    def uniform(self, size: int) -> Tensor:
        """Return float64 numbers uniform in [0, 1)."""
        ...

    def chosen(self, size: int, rate: float) -> Tensor:
        """Return which of the numbers below `size` are chosen, each independently with probability `rate`."""
        ...

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        """Return standard normal numbers."""
        ...

    def keys(self, size: int) -> Tensor:
        """Fair 64-bit numbers (int64), from which dropout follows; drawing them changes no other numbers."""
        ...

    def device_rng(self, device: torch.device) -> DeviceRng | None:
        """Return the generator that draws on a GPU instead of this source; None if all draws must be made on the host.

        Its numbers differ from those of `normal` and `chosen`, but depend on the same seed and labels.
        """
        ...

    def discrete(self, size: int, sigma: int) -> Tensor:
        """Return integers from the discrete Gaussian distribution of scale sigma, sampled exactly."""
        ...
