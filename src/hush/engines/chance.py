"""The server's own random numbers: from the operating system where noise is secure, else from the run's seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.privacy import noise
from hush.privacy.noise import Source
from hush.recipes.view import Chance
from hush.seeds import derive


@dataclass(frozen=True)
class _Drawn:
    source: Callable[[str], Source]

    def uniform(self, name: str, *shape: int) -> Tensor:
        return self.source(name).uniform(math.prod(shape)).reshape(shape)

    def normal(self, name: str, *shape: int) -> Tensor:
        return self.source(name).normal(math.prod(shape), torch.float64).reshape(shape)


def chance(seed: int, secure: bool) -> Callable[[int], Chance]:
    """What gives the numbers of a round."""

    def of(number: int) -> Chance:
        def source(name: str) -> Source:
            return noise.secure() if secure else noise.replayable(derive(seed, "server", name), 0, number)

        return _Drawn(source)

    return of
