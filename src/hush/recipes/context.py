"""The context of a round on the server: updates, and public facts from enrolment. Weights depend on nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from hush.recipes.rows import DenseRows, Rows
from hush.types import Layout

State = Mapping[str, Tensor]
NOWHERE = -1  # the model index of an update that changes no model


class ServerRng(Protocol):
    """The server's random numbers of one round: independent of all data, and independent by name."""

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Return float64 numbers uniform in [0, 1)."""
        ...

    def normal(self, name: str, *shape: int) -> Tensor:
        """Return standard normal float64 numbers."""
        ...


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """The clients that answered, one row each, in order of client number.

    Attributes:
        round: The round number.
        clients: The client numbers.
        updates: The updates, n x p; without columns where they are held elsewhere and no option needs them whole.
        samples: The number of training samples of each, as declared at enrolment.
        epsilon: The declared budget of each.
        planned_noise: The expected squared norm of the noise in each update, by the client's plan.
        reach: Steps times learning rate of each, by the client's plan.
        layout: How an update splits into tensors.
        batch: The expected batch size of each, by the client's plan.
        answers: The side releases of the round, by name: noisy sums, n x width.
        budgets: The declared epsilon of all enrolled clients, including those that did not answer.
        groups: The true cluster of all clients, known in simulations only.
        rounds: The total number of rounds.
        held: The updates, where they are held elsewhere.
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
    held: Rows | None = None

    @property
    def matrix(self) -> Rows:
        """The updates, wherever they are. An option that reads them through this never needs them all in memory."""
        return DenseRows(self.updates) if self.held is None else self.held

    def rows(self, chosen: Tensor) -> RoundView:
        """The view restricted to some of its rows."""
        return replace(
            self,
            clients=tuple(self.clients[i] for i in chosen.tolist()),
            updates=self.updates[chosen],
            held=None if self.held is None else self.held.take(chosen),
            samples=self.samples[chosen],
            epsilon=self.epsilon[chosen],
            planned_noise=self.planned_noise[chosen],
            reach=self.reach[chosen] if len(self.reach) else self.reach,
            batch=self.batch[chosen] if len(self.batch) else self.batch,
            answers={what: values[chosen] for what, values in self.answers.items()},
        )


@dataclass(frozen=True)
class Weights:
    """Weights that sum to one, the noise energies behind them (if any), and clients with less noise than planned."""

    weights: Tensor
    noise: Tensor | None = None
    quiet: Tensor | None = None
