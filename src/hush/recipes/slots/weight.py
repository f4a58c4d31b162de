"""weight: how much each client counts. Noise-aware weights follow from the noise that the server estimates."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from hush.privacy.schedule import RoundSpec
from hush.privacy.side_release import RowModel, SideRelease
from hush.recipes.context import RoundView, State, Weights
from hush.recipes.estimators import heterogeneity, noise_energy
from hush.recipes.interfaces import Weight
from hush.types import Release

COUNT = "number of training samples"
_DIRECTIONS = 100  # in which the data of clients are supposed to differ
_CLOSE = 0.25  # estimates for clients that follow their plan are nearer to it, but for very small models
_SAMPLES = Release(COUNT, False, "treated as public at enrolment; used as the weight")
_BUDGET = Release("privacy budget", False, "treated as public at enrolment; used as the weight")
_PLAN = Release(
    "privacy plan",
    False,
    "budget, batch size and sample count are treated as public at enrolment and determine the weight",
)


@dataclass(frozen=True)
class SampleCount(SideRelease):
    """How many rows there are."""

    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        """One."""
        return torch.ones(1)


def _share(values: Tensor) -> Weights:
    return Weights(values / values.sum())


class _Public(Weight):
    """Weights that need no update: what is foreseen is what is given."""

    @property
    def public(self) -> bool:
        """They do."""
        return True

    def weight(self, view: RoundView, state: State) -> tuple[Weights, State]:
        """In proportion to `facts`."""
        return _share(self.facts(view)), state

    def foreseen(self, view: RoundView) -> Tensor:
        """The same."""
        return _share(self.facts(view)).weights

    @abstractmethod
    def facts(self, view: RoundView) -> Tensor:
        """What the weights are in proportion to."""


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

    def round_spec(self, number: int, rounds: int) -> RoundSpec:
        """A noisy count at enrolment, if it is not public."""
        discloses = number == 0 and self.counts == "noisy"
        return RoundSpec(train=number > 0, side_releases=(SampleCount(COUNT, self.share),) if discloses else ())

    def facts(self, view: RoundView) -> Tensor:
        """In proportion to N_i."""
        return view.samples

    def releases(self) -> tuple[Release, ...]:
        """How much data each client has."""
        if self.counts == "public":
            return (_SAMPLES,)
        return (Release(COUNT, True, "noised and charged once at enrolment", "gaussian"),)


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

    def weight(self, view: RoundView, state: State) -> tuple[Weights, State]:
        """In proportion to the factors of those who answered."""
        facts = self.facts(view)
        total = facts.sum()
        return Weights(facts / total if bool(total > 0) else torch.zeros_like(facts)), state

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
        return (Release("impact factor", False, "set at enrolment from public information about the client"),)


@dataclass(frozen=True)
class Uniform(_Public):
    """Equal weights."""

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
class EstimatedNoise(Weight):
    """By the inverse of the noise energy in each update: the weights of least variance (Robust-HDP, equation 8).

    `rpca` is the paper's estimator, `pairwise` a cheaper and better one; both look at the updates alone, so that a
    client gains nothing by lying about its budget. `declared` takes the noise from the public plan.

    `when`: `each-round`, as the paper says, or `once`, as its code does: what was estimated when a client was first
    seen is kept.

    `floor`: `plan` counts an update with far less noise than its client's plan must produce as having the plan's, so
    that nobody gains weight by leaving its noise out. Federations between machines always do so.

    `parts` and `columns` are Q and p' of the paper's section 3.6: `rpca` looks at Q sub-matrices of p' parameters each,
    and the estimates are averaged. A model of at most p' parameters is one matrix.
    """

    rule: ClassVar[str] = "estimated-noise"
    estimator: Literal["rpca", "pairwise", "declared"] = "rpca"
    when: Literal["each-round", "once"] = "each-round"
    floor: Literal["none", "plan"] = "none"
    parts: int = 1
    columns: int = noise_energy.FEW_COLUMNS.most

    def __post_init__(self) -> None:
        if self.parts < 1 or self.columns < 1:
            raise ValueError(f"parts, columns: expected 1 or more, found {self.parts}, {self.columns}")

    @property
    def public(self) -> bool:
        """If the noise is taken from the plan."""
        return self.estimator == "declared" and self.when == "each-round"

    def weight(self, view: RoundView, state: State) -> tuple[Weights, State]:
        """In proportion to 1 / sigma_i^2."""
        if self.when == "each-round":
            noise, below = _floored(view, self._noise(view), self.floor)
            return Weights(noise_energy.inverse(noise), noise, below), state
        known = state.get("noise", torch.full((len(view.budgets),), torch.nan, dtype=torch.float64))
        rows = list(view.clients)
        if bool(known[rows].isnan().any()):
            found = _floored(view, self._noise(view).double(), self.floor)[0]
            known = known.index_put((torch.tensor(rows),), torch.where(known[rows].isnan(), found, known[rows]))
        return Weights(noise_energy.inverse(known[rows]), known[rows]), {"noise": known}

    def _noise(self, view: RoundView) -> Tensor:
        if self.estimator == "declared":
            return view.planned_noise
        if self.estimator == "pairwise":
            return _pairwise(view)
        columns = replace(noise_energy.FEW_COLUMNS, most=self.columns)
        found = [
            noise_energy.estimated(view.matrix, lambda sample, p: noise_energy.rpca(sample, parameters=p), part)
            for part in columns.parts(view.matrix.shape[1], self.parts)
        ]
        return found[0] if len(found) == 1 else torch.stack(found).mean(0)

    def foreseen(self, view: RoundView) -> Tensor:
        """As if the estimates were perfect."""
        return noise_energy.inverse(view.planned_noise)

    def releases(self) -> tuple[Release, ...]:
        """Nothing, unless the plan is used."""
        return (_PLAN,) if self.estimator == "declared" else ()


@dataclass(frozen=True)
class Precision(Weight):
    """By the inverse of the expected error of a client's mean statistics: w ~ 1 / (noise_i + spread / N_i).

    The noise is the planned one; `spread` is the square of what one row contributes, by which a mean of N_i rows errs
    without any noise. For rounds without training, as `step = "ridge"` asks for.
    """

    rule: ClassVar[str] = "precision"
    spread: float = 2.0

    def __post_init__(self) -> None:
        if not self.spread > 0:
            raise ValueError(f"spread: expected a positive number, found {self.spread}")

    def weight(self, view: RoundView, state: State) -> tuple[Weights, State]:
        """As foreseen."""
        return Weights(self.foreseen(view)), state

    def foreseen(self, view: RoundView) -> Tensor:
        """By public facts alone."""
        return noise_energy.inverse(view.planned_noise.double() + self.spread / view.samples.double())

    def releases(self) -> tuple[Release, ...]:
        """The plan, as public."""
        return (_PLAN,)


@dataclass(frozen=True)
class Balanced(Weight):
    """By the inverse of a client's noise and of how much clients differ: w ~ 1 / (sigma_i^2 + stress R tau^2).

    Weights of least variance, 1 / sigma_i^2, starve a client that has much noise, and what only it knows is lost: noise
    averages out over the R rounds of a run, while what is left out stays out. So the square tau^2 of the difference
    between clients counts R times. Noise is spread over all p parameters, of which the data use few directions, while
    clients differ along just these: hence the `stress` on the difference, by default p / 100 and at least 1.

    tau^2 is estimated from the sums of each client's updates so far, in which the noise has had time to average out. In
    the first rounds the error of the estimate is larger than most differences. So tau^2 is the `usual` one, as a part
    of the squared length of the longest signal, as far as the estimate is within two standard errors of it, and else
    what of these two errors is nearest to it. With too little weight on others much more is lost, where clients differ,
    than with too much, where they are alike. `floor`: as for estimated noise.
    """

    rule: ClassVar[str] = "balanced"
    stress: float | Literal["auto"] = "auto"
    usual: float = 0.003
    floor: Literal["none", "plan"] = "none"

    def __post_init__(self) -> None:
        if not self.usual >= 0:
            raise ValueError(f"usual: expected 0 or more, found {self.usual}")
        if self.stress != "auto" and not self.stress >= 0:
            raise ValueError(f"stress: expected 0 or more, found {self.stress}")

    def weight(self, view: RoundView, state: State) -> tuple[Weights, State]:
        """In proportion to 1 / (sigma_i^2 + stress R tau^2)."""
        noise, below = _floored(view, _pairwise(view), self.floor)
        state = _remembered(view, _known(view, noise), state)
        parameters = view.matrix.shape[1]
        stress = max(1.0, parameters / _DIRECTIONS) if self.stress == "auto" else self.stress
        part = max(1, state["sum"].shape[1]) / max(1, parameters)
        found = heterogeneity.difference(state["sum"], state["noise"], state["seen"])
        differing = found.likely(part * self.usual * float(view.reach.mean()) ** 2) / part
        return Weights(noise_energy.inverse(noise + stress * view.rounds * differing), noise, below), state

    def foreseen(self, view: RoundView) -> Tensor:
        """As if the estimates were perfect and clients alike."""
        return noise_energy.inverse(view.planned_noise)


def _pairwise(view: RoundView) -> Tensor:
    return noise_energy.estimated(view.matrix, noise_energy.pairwise, noise_energy.COLUMNS)


def _known(view: RoundView, noise: Tensor) -> Tensor:
    """Noise energies by the plan, which has no error, but where the estimate says that a client does not follow it."""
    planned = view.planned_noise.to(noise.device)
    return torch.where((noise - planned).abs() <= _CLOSE * planned, planned, noise)


def _floored(view: RoundView, noise: Tensor, floor: str) -> tuple[Tensor, Tensor | None]:
    """Noise energies with the floor that is asked for, and whose were below it."""
    return noise_energy.quiet(noise, view.planned_noise.to(noise.device)) if floor == "plan" else (noise, None)


def _remembered(view: RoundView, noise: Tensor, state: State) -> State:
    """Per client: the sum of its updates so far (of some columns, where there are many), its noise, its rounds."""
    clients, at, parameters = len(view.budgets), torch.tensor(view.clients), view.matrix.shape[1]
    used = view.matrix.columns(heterogeneity.columns(parameters, clients))
    kept = dict(state) or {
        "sum": torch.zeros(clients, used.shape[1], dtype=used.dtype),
        "noise": torch.zeros(clients, dtype=torch.float64),
        "seen": torch.zeros(clients, dtype=torch.float64),
    }
    part = used.shape[1] / max(1, parameters)
    return {
        "sum": kept["sum"].index_add(0, at, used.cpu()),
        "noise": kept["noise"].index_add(0, at, part * noise.double().cpu()),
        "seen": kept["seen"].index_add(0, at, torch.ones(len(at), dtype=torch.float64)),
    }
