"""The server's RNG: from the operating system where noise is secure, else from the run's seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hush.privacy import noise
from hush.privacy.source import Source
from hush.recipes.context import ServerRng
from hush.seeds import derive


@dataclass(frozen=True)
class _RoundRng:
    seed: int
    secure: bool
    number: int

    def uniform(self, name: str, *shape: int) -> Tensor:
        return self._source(name).uniform(math.prod(shape)).reshape(shape)

    def normal(self, name: str, *shape: int) -> Tensor:
        return self._source(name).normal(math.prod(shape), torch.float64).reshape(shape)

    def _source(self, name: str) -> Source:
        return noise.Secure() if self.secure else noise.Seeded(derive(self.seed, "server", name), 0, self.number)


def server_rng(seed: int, secure: bool) -> Callable[[int], ServerRng]:
    """Return the factory of the server's RNG of a round, by round number."""
    return partial(_RoundRng, seed, secure)
