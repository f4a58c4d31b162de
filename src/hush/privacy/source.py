"""The source of a client's batches and noise, as an interface: a plan draws from it, and only `noise.py` makes one."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class DeviceRng(Protocol):
    """A stream of standard normal numbers on a GPU, and one of fair bits."""

    def fill(self, target: Tensor) -> None:
        """Write the next normal numbers into the target."""
        ...

    def words(self, target: Tensor) -> None:
        """Write fair bits into the target, 64 in each of its int64 numbers."""
        ...


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

    def keys(self, size: int) -> Tensor:
        """Fair 64-bit numbers (int64), from which dropout follows; drawing them changes no other numbers."""
        ...

    def device_rng(self, device: torch.device) -> DeviceRng | None:
        """What draws on a GPU in place of this source; none if only the host may draw.

        Its numbers are not those of `normal` and `chosen`, but they depend on the same things.
        """
        ...

    def discrete(self, size: int, sigma: int) -> Tensor:
        """Whole numbers of the discrete Gaussian of scale sigma, exactly."""
        ...
