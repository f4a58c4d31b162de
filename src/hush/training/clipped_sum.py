"""The interfaces `ClippedSum`, one way to compute the clipped gradient sums of many clients, and `ClientGroup`.

`hush.training.select` chooses one of its implementations; README.md beside this file compares them.

Guarantees:
    - In every implementation, each example moves its client's sum by at most its client's clip, in the arithmetic used:
      clip factors are rounded down and leave room for the rounding of the sum (`hush.privacy.sensitivity`). Sums are
      float64, or integers.
    - How an example is clipped does not depend on the other examples.
    - An example whose gradient is not finite adds nothing: NaN and Inf cannot get around the clip.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from hush.training.job import Job


class ClientGroup(ABC):
    """Clients that take their steps together; those with more steps come first.

    Attributes:
        jobs: What each client trains.
        steps: Steps to take: those of the first client.
        done: Steps taken.
        stream: The CUDA stream of this group's work, if it has its own.
    """

    jobs: Sequence[Job]
    steps: int
    done: int = 0
    stream: torch.cuda.Stream | None = None

    @property
    @abstractmethod
    def vectors(self) -> Tensor:
        """Where the clients are now, clients x p."""

    @abstractmethod
    def step(self) -> None:
        """Take step number `done`: sample, sum clipped gradients, add noise, apply the update rule."""


class ClippedSum(ABC):
    """How clipped gradient sums are computed.

    Attributes:
        physical_batch: Examples whose gradients are in memory at a time, of all clients together.
        threaded: Whether groups run on CPU threads of their own.
        subtracts_input_mean: Whether a job's input mean is subtracted on the fly. If not, jobs must come without one.
    """

    physical_batch: int
    threaded: bool = False
    subtracts_input_mean: bool = False

    @abstractmethod
    def groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Return which jobs step together, by number; those with more steps come first in a group."""

    @abstractmethod
    def start(self, jobs: Sequence[Job], number: int, resources: ExitStack) -> ClientGroup:
        """Return the group of that number, ready to take its steps; `resources` is closed when all groups are done."""
