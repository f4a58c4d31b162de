"""weigh: how much each client counts. Noise-aware weights are what the server's listening consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from hush.recipes import estimate
from hush.recipes.option import Option
from hush.recipes.view import RoundView, State, Weighing
from hush.types import Release

_SAMPLES = Release("number of training samples", False, "taken as public at enrolment, and used as the weight")
_BUDGET = Release("privacy budget", False, "taken as public at enrolment, and used as the weight")
_PLAN = Release("privacy plan", False, "budget, batch and samples are taken as public at enrolment, and set the weight")


def _share(values: Tensor) -> Weighing:
    return Weighing(values / values.sum())


class _Public(Option):
    """Weights that need no update: what is foreseen is what is given."""

    def weigh(self, view: RoundView, state: State) -> tuple[Weighing, State]:
        """In proportion to `facts`."""
        return _share(self.facts(view)), state

    def foreseen(self, view: RoundView) -> Tensor:
        """The same."""
        return _share(self.facts(view)).weights

    def facts(self, view: RoundView) -> Tensor:
        """What the weights are in proportion to."""
        raise TypeError(f"{type(self).__name__} names no facts")


@dataclass(frozen=True)
class Samples(_Public):
    """By amount of data, as FedAvg does."""

    rule: ClassVar[str] = "samples"

    def facts(self, view: RoundView) -> Tensor:
        """In proportion to N_i."""
        return view.samples

    def releases(self) -> tuple[Release, ...]:
        """How much data each client has."""
        return (_SAMPLES,)


@dataclass(frozen=True)
class Impact(_Public):
    """By impact factors that are set at enrolment (PADPFL).

    `factors`: one for each client, or one for each client of a group; none means all alike. Over all clients they sum
    to one. `changes`: pairs of a round and the factors from that round on. The share of a client that does not answer
    is spread over the others in proportion; where all that answer have factor zero, nothing moves.
    """

    rule: ClassVar[str] = "impact"
    factors: list[float] = field(default_factory=list)
    changes: list[tuple[int, list[float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for at, listed in [(1, self.factors), *self.changes]:
            if any(not 0 <= factor <= 1 for factor in listed):
                raise ValueError(f"factors: expected numbers from 0 to 1 from round {at} on, found {listed}")

    def weigh(self, view: RoundView, state: State) -> tuple[Weighing, State]:
        """In proportion to the factors of those who answered."""
        facts = self.facts(view)
        total = facts.sum()
        return Weighing(facts / total if bool(total > 0) else torch.zeros_like(facts)), state

    def facts(self, view: RoundView) -> Tensor:
        """The factors of this round."""
        listed = self.at(view.round)
        if not listed:
            return torch.ones_like(view.samples)
        everyone = torch.tensor(listed, dtype=torch.float64)
        if len(listed) != len(view.budgets):
            everyone = everyone[view.groups]
        return everyone[list(view.clients)]

    def at(self, number: int) -> list[float]:
        """The factors that hold in a round, as they were given."""
        return [self.factors, *(listed for start, listed in sorted(self.changes) if start <= number)][-1]

    def releases(self) -> tuple[Release, ...]:
        """The factors."""
        return (Release("impact factor", False, "set at enrolment from what is known of a client, and public"),)


@dataclass(frozen=True)
class Uniform(_Public):
    """All alike."""

    rule: ClassVar[str] = "uniform"

    def facts(self, view: RoundView) -> Tensor:
        """One over n."""
        return torch.ones_like(view.samples)


@dataclass(frozen=True)
class Epsilon(_Public):
    """By declared budget, as WeiAvg does. It believes what clients declare."""

    rule: ClassVar[str] = "epsilon"

    def facts(self, view: RoundView) -> Tensor:
        """In proportion to epsilon_i."""
        return view.epsilon

    def releases(self) -> tuple[Release, ...]:
        """Each client's budget."""
        return (_BUDGET,)


@dataclass(frozen=True)
class EstimatedNoise(Option):
    """By the inverse of the noise energy in each update: the weights of least variance (Robust-HDP, equation 9).

    `rpca` is the paper's estimator, `pairwise` a cheaper and better one; both look at the updates alone, so that a
    client gains nothing by lying about its budget. `declared` takes the noise from the public plan.
    """

    rule: ClassVar[str] = "estimated-noise"
    estimator: Literal["rpca", "pairwise", "declared"] = "rpca"

    def weigh(self, view: RoundView, state: State) -> tuple[Weighing, State]:
        """In proportion to 1 / sigma_i^2."""
        if self.estimator == "declared":
            noise = view.planned_noise
        else:
            noise = (estimate.rpca if self.estimator == "rpca" else estimate.pairwise)(view.updates)
        return Weighing(estimate.inverse(noise), noise), state

    def foreseen(self, view: RoundView) -> Tensor:
        """As if the estimates were perfect."""
        return estimate.inverse(view.planned_noise)

    def releases(self) -> tuple[Release, ...]:
        """Nothing, unless the plan is used."""
        return (_PLAN,) if self.estimator == "declared" else ()
