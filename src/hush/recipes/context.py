"""The context of a round on the server: the updates, a row each, and public facts from enrolment. Weights depend on
nothing else.

Recipes never need all numbers of the updates (n x p) at once. They ask for norms, for a sample of the columns, and for
weighted sums of the rows; what follows from these (a Gram matrix, clusters, a subspace, the next model) is small. So
one interface, `Rows`, serves a tensor in memory (`DenseRows`, here) and blocks on a disk or on the workers of a cluster
(`hush.recipes.stored_rows`), and memory is O(p + n x sample).

Guarantees:
    - `DenseRows` computes on the whole tensor at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from hush.types import Layout

State = Mapping[str, Tensor]
NO_MODEL = -1  # the model index of an update that changes no model
SAMPLE = 1 << 26  # numbers of a sample of all clients' columns
_RUN = 64  # neighbouring columns in a sample


@dataclass(frozen=True)
class Spaced:
    """Evenly spaced runs of columns, about `most` in total, or all columns if there are no more.

    The first run has the number `first`.
    """

    most: int
    run: int = _RUN
    first: int = 0

    def of(self, block: Tensor) -> Tensor:
        """Return these columns of some rows."""
        p = block.shape[1]
        if p <= self.most:
            return block
        whole = p // self.run
        if whole < 2:
            return block[:, : self.most]
        runs: Tensor = block[:, : whole * self.run].unflatten(1, (whole, self.run))
        return runs[:, self.first :: self._step(p)].flatten(1)

    def parts(self, columns: int, number: int) -> list[Spaced]:
        """Return so many disjoint choices of this kind among all columns, or as many as there are."""
        most = self._step(columns) if columns > self.most and columns >= 2 * self.run else 1
        return [replace(self, first=first) for first in range(min(number, most))]

    def _step(self, columns: int) -> int:
        """One run in so many is chosen."""
        return -(-(columns // self.run) * self.run // self.most)


@dataclass(frozen=True)
class Strided:
    """One column in every `step`."""

    step: int

    def of(self, block: Tensor) -> Tensor:
        """Return these columns of some rows."""
        return block[:, :: self.step]


@dataclass(frozen=True, eq=False)
class Listed:
    """The columns with these numbers."""

    index: Tensor

    def of(self, block: Tensor) -> Tensor:
        """Return these columns of some rows."""
        return block[:, self.index]


Columns = Spaced | Strided | Listed


class Rows(ABC):
    """The updates of a round, n x p."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def take(self, chosen: Tensor) -> Rows:
        """Return some of the rows."""

    @abstractmethod
    def norms(self) -> Tensor:
        """Return the norm of each row, in float64."""

    def squared_norms(self) -> Tensor:
        """Return the squared norm of each row, in float64."""
        return self.norms().square()

    @abstractmethod
    def scaled(self, factors: Tensor) -> Rows:
        """Return the rows times a factor each."""

    @abstractmethod
    def rebased(self, models: Tensor, worked: Sequence[int], to: Sequence[int]) -> Rows:
        """Return the rows as updates of other models: each plus the model it was computed on, minus the other."""

    @abstractmethod
    def columns(self, which: Columns) -> Tensor:
        """Return some columns of all rows, gathered."""

    @abstractmethod
    def combined(self, weights: Tensor) -> Tensor:
        """Return the sum of the rows with one weight each (p), or with several (k x p)."""

    @abstractmethod
    def combined_parts(self, weights: Tensor, layout: Layout) -> Tensor:
        """Return sums of the rows, k x p in float64, with weights of their own in each tensor: tensors x k x n."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield all rows, a block at a time, with their places."""

    def whole(self) -> Tensor:
        """Return all numbers, n x p."""
        return torch.cat([block for _, block in self.blocks()])

    def sample(self) -> Tensor:
        """Return all columns, or where there are very many numbers, evenly spaced ones."""
        n, p = self.shape
        return self.columns(Spaced(p if n * p <= SAMPLE else max(_RUN, SAMPLE // n)))


class DenseRows(Rows):
    """All rows in one tensor."""

    def __init__(self, values: Tensor) -> None:
        self._values = values

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
        return self._values.shape[0], self._values.shape[1]

    def take(self, chosen: Tensor) -> Rows:
        """Return some of the rows."""
        return DenseRows(self._values[chosen])

    def norms(self) -> Tensor:
        """Return the norm of each row, in float64."""
        found: Tensor = self._values.double().norm(dim=1)
        return found

    def squared_norms(self) -> Tensor:
        """Return the squared norm of each row, in float64."""
        return self._values.double().square().sum(1)

    def scaled(self, factors: Tensor) -> Rows:
        """Return the rows times a factor each."""
        return DenseRows(self._values * factors[:, None].to(self._values.dtype))

    def rebased(self, models: Tensor, worked: Sequence[int], to: Sequence[int]) -> Rows:
        """Return the rows as updates of other models."""
        return DenseRows(self._values + (models[list(worked)] - models[list(to)]))

    def columns(self, which: Columns) -> Tensor:
        """Return some columns of all rows."""
        return which.of(self._values)

    def combined(self, weights: Tensor) -> Tensor:
        """Return the sum of the rows with one weight each (p), or with several (k x p)."""
        total: Tensor = weights.to(self._values.dtype) @ self._values
        return total

    def combined_parts(self, weights: Tensor, layout: Layout) -> Tensor:
        """Return sums of the rows, with weights of their own in each tensor."""
        return summed_parts(self._values, weights, layout)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the tensor."""
        yield slice(None), self._values

    def whole(self) -> Tensor:
        """Return the tensor."""
        return self._values


def summed_parts(block: Tensor, weights: Tensor, layout: Layout) -> Tensor:
    """Return sums of a block's rows in float64, k x p, with weights of their own in each tensor, tensors x k x rows."""
    parts = zip(weights.double(), block.split(layout.sizes, dim=1), strict=True)
    return torch.cat([own @ part.double() for own, part in parts], dim=1)


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
        updates: The updates, n x p; without columns where they are stored elsewhere and no option needs them whole.
        samples: The number of training samples of each, as declared at enrolment.
        epsilon: The declared budget of each.
        planned_noise: The expected squared norm of the noise in each update, by the client's plan; in a round without
            training, in the means over rows of what is released.
        reach: Steps times learning rate of each, by the client's plan.
        layout: How an update splits into tensors.
        batch: The expected batch size of each, by the client's plan.
        answers: The side releases of the round, by name: noisy sums, n x width.
        budgets: The declared epsilon of all enrolled clients, including those that did not answer.
        groups: The true cluster of all clients, known in simulations only.
        rounds: The total number of rounds.
        stored: The updates, where they are stored elsewhere.
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
    stored: Rows | None = None

    @property
    def matrix(self) -> Rows:
        """The updates, wherever they are. An option that reads them through this never needs them all in memory."""
        return DenseRows(self.updates) if self.stored is None else self.stored

    def rows(self, chosen: Tensor) -> RoundView:
        """The view restricted to some of its rows."""
        return replace(
            self,
            clients=tuple(self.clients[i] for i in chosen.tolist()),
            updates=self.updates[chosen],
            stored=None if self.stored is None else self.stored.take(chosen),
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
