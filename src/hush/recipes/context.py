"""The context of a round on the server: the updates, and public facts of enrolment. Nothing else may set a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from hush.types import Layout

State = Mapping[str, Tensor]
NOWHERE = -1  # the model number of an update that moves none


class ServerRng(Protocol):
    """The server's own random numbers in one round: independent of all data, and independent by name."""

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Float64 numbers in [0, 1)."""
        ...

    def normal(self, name: str, *shape: int) -> Tensor:
        """Standard normal float64 numbers."""
        ...


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """The clients that answered, a row each, in the order of their numbers.

    Attributes:
        round: Its number.
        clients: Their numbers.
        updates: n x p.
        samples: Of each, as enrolled.
        epsilon: Of each, as declared.
        planned_noise: Expected squared norm of the noise in each update, by the client's plan.
        reach: Steps times learning rate of each, by the client's plan.
        layout: How an update splits into tensors.
        batch: Expected rows in a batch of each, by the client's plan.
        answers: The side releases of the round, by name: noised sums, n x width.
        budgets: Declared epsilon of all clients that are enrolled, whether or not they answered.
        groups: The true cluster of all clients, which only a simulation knows.
        rounds: How many rounds there are in all.
    """

    round: int
    clients: tuple[int, ...]
    updates: Tensor
    samples: Tensor
    epsilon: Tensor
    planned_noise: Tensor
    reach: Tensor = field(default_factory=lambda: torch.ones(0))
    layout: Layout = field(default_factory=lambda: Layout((), ()))
    batch: Tensor = field(default_factory=lambda: torch.ones(0))
    answers: Mapping[str, Tensor] = field(default_factory=dict)
    budgets: Tensor = field(default_factory=lambda: torch.ones(0))
    groups: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    rounds: int = 1

    def rows(self, chosen: Tensor) -> RoundView:
        """The view of some of the clients, by row number."""
        return replace(
            self,
            clients=tuple(self.clients[i] for i in chosen.tolist()),
            updates=self.updates[chosen],
            samples=self.samples[chosen],
            epsilon=self.epsilon[chosen],
            planned_noise=self.planned_noise[chosen],
            reach=self.reach[chosen] if len(self.reach) else self.reach,
            batch=self.batch[chosen] if len(self.batch) else self.batch,
            answers={what: values[chosen] for what, values in self.answers.items()},
        )


@dataclass(frozen=True)
class Weights:
    """Weights that sum to one, the noise energies they were made from, if any, and whose were below its plan's."""

    weights: Tensor
    noise: Tensor | None = None
    quiet: Tensor | None = None
