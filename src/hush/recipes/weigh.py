"""weigh: how much each client counts. Noise-aware weights are what the server's listening consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from hush.privacy.course import Aside, Ask
from hush.recipes import differ, estimate
from hush.recipes.option import Option
from hush.recipes.view import RoundView, State, Weighing
from hush.types import Release

COUNT = "number of training samples"
_SAMPLES = Release(COUNT, False, "taken as public at enrolment, and used as the weight")
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
    """By amount of data, as FedAvg does.

    `counts`: `public`, as enrolled, or `noisy`: each client tells a noised count once, at enrolment, and pays `share`
    of what a round of training costs.
    """

    rule: ClassVar[str] = "samples"
    counts: Literal["public", "noisy"] = "public"
    share: float = 0.2

    def __post_init__(self) -> None:
        if not self.share > 0:
            raise ValueError(f"share: expected a positive number, found {self.share}")

    def ask(self, number: int, rounds: int) -> Ask:
        """A noisy count at enrolment, if it is not public."""
        told = number == 0 and self.counts == "noisy"
        return Ask(train=number > 0, asides=(Aside(COUNT, self.share),) if told else ())

    def facts(self, view: RoundView) -> Tensor:
        """In proportion to N_i."""
        return view.samples

    def releases(self) -> tuple[Release, ...]:
        """How much data each client has."""
        if self.counts == "public":
            return (_SAMPLES,)
        return (Release(COUNT, True, "noised and charged once, at enrolment", "gaussian"),)


@dataclass(frozen=True)
class Impact(_Public):
    """By impact factors that are set at enrolment (PADPFL).

    `factors`: one for each client, or one for each client of a group; none means all alike. Over all clients they sum
    to one. `changes`: the factors from a round on, by its number, such as { 10 = [...] }. The share of a client that
    does not answer is spread over the others in proportion; where all that answer have factor zero, nothing moves.
    """

    rule: ClassVar[str] = "impact"
    factors: list[float] = field(default_factory=list)
    changes: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for at, listed in {"1": self.factors, **self.changes}.items():
            if not at.isdecimal() or int(at) < 1:
                raise ValueError(f"changes: expected numbers of rounds, found {at!r}")
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
        begun = [start for start in sorted(map(int, self.changes)) if start <= number]
        return self.changes[str(begun[-1])] if begun else self.factors

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

    `when`: `each-round`, as the paper says, or `once`, as its code does: what was estimated when a client was first
    seen is kept.
    """

    rule: ClassVar[str] = "estimated-noise"
    estimator: Literal["rpca", "pairwise", "declared"] = "rpca"
    when: Literal["each-round", "once"] = "each-round"

    def weigh(self, view: RoundView, state: State) -> tuple[Weighing, State]:
        """In proportion to 1 / sigma_i^2."""
        if self.when == "each-round":
            noise = self._noise(view)
            return Weighing(estimate.inverse(noise), noise), state
        known = state.get("noise", torch.full((len(view.budgets),), torch.nan, dtype=torch.float64))
        rows = list(view.clients)
        if bool(known[rows].isnan().any()):
            found = self._noise(view).double()
            known = known.index_put((torch.tensor(rows),), torch.where(known[rows].isnan(), found, known[rows]))
        return Weighing(estimate.inverse(known[rows]), known[rows]), {"noise": known}

    def _noise(self, view: RoundView) -> Tensor:
        if self.estimator == "declared":
            return view.planned_noise
        return (estimate.rpca if self.estimator == "rpca" else estimate.pairwise)(view.updates)

    def foreseen(self, view: RoundView) -> Tensor:
        """As if the estimates were perfect."""
        return estimate.inverse(view.planned_noise)

    def releases(self) -> tuple[Release, ...]:
        """Nothing, unless the plan is used."""
        return (_PLAN,) if self.estimator == "declared" else ()


@dataclass(frozen=True)
class Balanced(Option):
    """By the inverse of a client's noise and of how much clients differ: w ~ 1 / (sigma_i^2 + stress R tau^2).

    Weights of least variance, 1 / sigma_i^2, starve a client that has much noise, and what only it knows is lost: noise
    averages out over the R rounds of a run, while what is left out stays out. So the square tau^2 of the difference
    between clients counts R times. It is estimated from the sums of each client's updates so far, in which the noise
    has had time to average out; where clients are alike, it is near zero, and the weights are those of least variance.
    Noise is spread over all parameters, of which the data use few directions, while clients differ along just these:
    hence the `stress` on the difference.
    """

    rule: ClassVar[str] = "balanced"
    stress: float = 5.0

    def __post_init__(self) -> None:
        if not self.stress >= 0:
            raise ValueError(f"stress: expected 0 or more, found {self.stress}")

    def weigh(self, view: RoundView, state: State) -> tuple[Weighing, State]:
        """In proportion to 1 / (sigma_i^2 + stress R tau^2)."""
        noise = estimate.pairwise(view.updates)
        state = _remembered(view, noise, state)
        differing = self.stress * view.rounds * differ.difference(state["sum"], state["noise"], state["seen"])
        scale = view.updates.shape[1] / max(1, state["sum"].shape[1])
        return Weighing(estimate.inverse(noise + scale * differing), noise), state

    def foreseen(self, view: RoundView) -> Tensor:
        """As if the estimates were perfect and clients alike."""
        return estimate.inverse(view.planned_noise)


def _remembered(view: RoundView, noise: Tensor, state: State) -> State:
    """Per client: the sum of its updates so far (of some columns, where there are many), its noise, its rounds."""
    used = differ.columns(view.updates)
    clients, at = len(view.budgets), torch.tensor(view.clients)
    kept = dict(state) or {
        "sum": torch.zeros(clients, used.shape[1], dtype=used.dtype),
        "noise": torch.zeros(clients, dtype=torch.float64),
        "seen": torch.zeros(clients, dtype=torch.float64),
    }
    part = used.shape[1] / max(1, view.updates.shape[1])
    return {
        "sum": kept["sum"].index_add(0, at, used.cpu()),
        "noise": kept["noise"].index_add(0, at, part * noise.double().cpu()),
        "seen": kept["seen"].index_add(0, at, torch.ones(len(at), dtype=torch.float64)),
    }
