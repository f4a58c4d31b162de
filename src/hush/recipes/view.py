"""What the server knows in a round: the updates, and the public facts of enrolment. Nothing else may set a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class RoundView:
    """The clients that answered, a row each, in the order of their numbers."""

    round: int
    clients: tuple[int, ...]
    updates: Tensor
    samples: Tensor
    epsilon: Tensor
    planned_noise: Tensor

    def rows(self, chosen: Tensor) -> RoundView:
        """The view of some of the clients, by row number."""
        return RoundView(
            self.round,
            tuple(self.clients[i] for i in chosen.tolist()),
            self.updates[chosen],
            self.samples[chosen],
            self.epsilon[chosen],
            self.planned_noise[chosen],
        )


@dataclass(frozen=True)
class Weighing:
    """Weights that sum to one, and the noise energies they were made from, if any."""

    weights: Tensor
    noise: Tensor | None = None
