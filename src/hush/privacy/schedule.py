"""A privacy schedule: everything that a client computes and releases in a run, by stage, with calibrated noise.

Rounds in which a recipe asks for the same belong to one stage: a full-batch round, warm-start rounds, rounds with a
noisy choice, ordinary rounds. What a client releases in addition to its update (a `SideRelease`) is a cost like any
other. All costs of a schedule are calibrated together: one factor scales every noise.

Guarantees:
    - `round_costs` of a stage are exactly what one of its rounds releases; the ledger is charged with these and no
      others.
    - `calibrated` returns the least scale at which all rounds of all stages together satisfy the policy.
    - The noise of a side release is relative to its bound, as the noise of a plan is relative to the clipping norm.

Edge cases:
    - Enrolment is round 0: a stage without training.
    - A client that is never invited has stages with no rounds, whose noise is that of a single round each.
    - `first` keeps as many of the client's rounds, in order, as a policy allows; None if not even one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.privacy.plan import NoisePer, PrivacyPlan
from hush.privacy.side_release import SideRelease
from hush.types import Accountant, Policy

ENROLMENT = 0
_CLOSE = 1e-4  # relative


@dataclass(frozen=True, kw_only=True)
class RoundSpec:
    """What a round asks of a client.

    Attributes:
        train: Whether clients train and send an update.
        full_batch: One step on all rows, instead of the client's own batches and steps.
        copies: How many times a full batch has each row: once as it is, and else perturbed.
        noise_per: Whether the noise of a full batch is for what a row moves, or for what one of its copies moves.
        still: Compute all gradients at the model that was sent.
        choose: Whether clients choose the model that fits best.
        side_releases: What clients release in addition to the update.
        idle: Whether clients do not train: their update is zero and costs nothing, and a round is for what else they
            release.
    """

    train: bool = True
    full_batch: bool = False
    copies: int = 1
    noise_per: NoisePer = "row"
    still: bool = False
    choose: bool = False
    side_releases: tuple[SideRelease, ...] = ()
    idle: bool = False

    @cached_property
    def sent(self) -> tuple[SideRelease, ...]:
        """The side releases whose sums are sent to the server."""
        return tuple(release for release in self.side_releases if release.sent)

    def __or__(self, other: RoundSpec) -> RoundSpec:
        """The union of what two options ask for."""
        return RoundSpec(
            train=self.train and other.train,
            full_batch=self.full_batch or other.full_batch,
            copies=max(self.copies, other.copies),
            noise_per="copy" if "copy" in (self.noise_per, other.noise_per) else "row",
            still=self.still or other.still,
            choose=self.choose or other.choose,
            side_releases=(*self.side_releases, *other.side_releases),
            idle=self.idle or other.idle,
        )


@dataclass(frozen=True)
class StageTable:
    """What each round of a recipe asks for: the distinct specs, and the index of the spec of each round.

    `of[0]` is enrolment; -1 if nothing is released in it.
    """

    specs: tuple[RoundSpec, ...]
    of: tuple[int, ...]

    @classmethod
    def from_rounds(cls, specs: Sequence[RoundSpec]) -> StageTable:
        """Return the table of what is asked for at enrolment (first) and in each round after it."""
        needed = [spec for spec in specs if spec.train or spec.side_releases]
        known = tuple(dict.fromkeys(needed))
        return cls(known, tuple(known.index(spec) if spec.train or spec.side_releases else -1 for spec in specs))

    def at(self, number: int) -> RoundSpec:
        """What a round asks for."""
        return self.specs[self.of[number]]


@dataclass(frozen=True)
class Stage:
    """The rounds of one client that ask for the same: how it trains, what else it releases, how often.

    `spare` is the number of additional rounds that its noise leaves budget for, since a client that crashes between a
    charge and its answer is charged again for the same round.
    """

    spec: RoundSpec
    plan: PrivacyPlan
    rounds: int
    ratios: tuple[float, ...] = ()
    spare: int = 0

    @cached_property
    def round_costs(self) -> tuple[Cost, ...]:
        """What one of its rounds releases, and what the ledger is charged with before each of them."""
        return self.costs(1)

    def costs(self, rounds: int) -> tuple[Cost, ...]:
        """What this many of its rounds release."""
        trained = (self.plan.cost(rounds),) if self.spec.train and not self.spec.idle else ()
        side_releases = zip(self.spec.side_releases, self.ratios, strict=True)
        return (*trained, *(self._side_cost(side_release, ratio, rounds) for side_release, ratio in side_releases))

    def noise_of(self, what: str) -> float:
        """The noise multiplier of a side release, or 0 if there is none of that name."""
        named = dict(zip((side_release.what for side_release in self.spec.side_releases), self.ratios, strict=True))
        return named.get(what, 0.0) * self.plan.noise_multiplier

    def _side_cost(self, side_release: SideRelease, ratio: float, rounds: int) -> Cost:
        noise = ratio * self.plan.noise_multiplier
        if side_release.sampled and self.plan.rate < 1:
            return replace(self.plan.cost(rounds), what=side_release.what, noise=noise, steps=rounds)
        return Cost(what=side_release.what, kind="gaussian", noise=noise, steps=rounds)


@dataclass(frozen=True)
class Output:
    """What is done to a trained model before it is sent: clipping to a norm, and noise with this standard deviation."""

    bound: float
    deviation: float


@dataclass(frozen=True)
class PrivacySchedule:
    """The stages of one client, in the order of the recipe's stages, including those without rounds for it."""

    stages: tuple[Stage, ...]

    @property
    def plan(self) -> PrivacyPlan:
        """The plan of most of the client's rounds."""
        return max(self.stages, key=lambda stage: (stage.spec.train, stage.rounds)).plan

    @property
    def rounds(self) -> int:
        """The number of training rounds."""
        return sum(stage.rounds for stage in self.stages if stage.spec.train)

    @property
    def steps(self) -> int:
        """The number of noisy steps."""
        return sum(stage.rounds * stage.plan.steps for stage in self.stages if stage.spec.train)

    def costs(self) -> tuple[Cost, ...]:
        """Everything that the schedule releases."""
        return tuple(cost for stage in self.stages if stage.rounds for cost in stage.costs(stage.rounds))

    def reserved(self) -> tuple[Cost, ...]:
        """The same including the spare rounds of every stage, which the noise is calibrated to."""
        return tuple(cost for s in self.stages if s.rounds for cost in s.costs(s.rounds + s.spare))


def drafted(specs: Sequence[RoundSpec], counts: Sequence[int], plan: PrivacyPlan, spare: int = 0) -> PrivacySchedule:
    """Return a schedule with the plan's noise, before calibration; `counts` has the number of rounds of each stage."""
    return PrivacySchedule(
        tuple(
            Stage(
                spec,
                _trained(spec, plan, n),
                n,
                tuple(side_release.ratio(plan) for side_release in spec.side_releases),
                spare,
            )
            for spec, n in zip(specs, counts, strict=True)
        )
    )


def with_noise(schedule: PrivacySchedule, noise_multiplier: float) -> PrivacySchedule:
    """Return the schedule with this noise multiplier in training, and side releases in proportion."""
    return PrivacySchedule(
        tuple(replace(stage, plan=replace(stage.plan, noise_multiplier=noise_multiplier)) for stage in schedule.stages)
    )


def calibrated(schedule: PrivacySchedule, policy: Policy) -> PrivacySchedule:
    """Return the schedule with the least noise that satisfies the policy over all its rounds, including spare ones.

    Side releases with a part of the budget of their own (`of_budget`) get their noise first, from that part alone.
    """
    unit = with_noise(schedule, 1.0)
    if any(release.of_budget for stage in schedule.stages for release in stage.spec.side_releases):
        return _with_parts(unit, policy)
    costs = unit.reserved() or tuple(cost for stage in unit.stages for cost in stage.round_costs)
    scale = api.noise_scale(costs, policy.epsilon, policy.delta, policy.relation, _accountant(schedule))
    return with_noise(schedule, scale)


def _with_parts(unit: PrivacySchedule, policy: Policy) -> PrivacySchedule:
    """Return a schedule whose releases with a part of the budget cost that part alone, and all of it the whole."""
    accountant = _accountant(unit)
    parts = {
        release.what: release.of_budget
        for stage in unit.stages for release in stage.spec.side_releases if release.of_budget
    }  # fmt: skip
    costs = unit.reserved() or tuple(cost for stage in unit.stages for cost in stage.round_costs)
    scaled = tuple(cost for cost in costs if cost.what not in parts)
    fixed = dict[str, float]()
    for what, part in parts.items():
        own = tuple(cost for cost in costs if cost.what == what)
        # A client that is in none of these rounds has the noise of one.
        own = own or tuple(c for stage in unit.stages for c in stage.round_costs if c.what == what)[:1]
        fixed[what] = api.noise_scale(own, part * policy.epsilon, policy.delta, policy.relation, accountant)
    fixed_costs = tuple(replace(cost, noise=fixed[cost.what]) for cost in costs if cost.what in parts)
    noise = least_noise(scaled, fixed_costs, policy, accountant)
    return PrivacySchedule(
        tuple(
            replace(
                stage,
                plan=replace(stage.plan, noise_multiplier=noise),
                ratios=tuple(
                    fixed[release.what] / noise if release.what in parts else ratio
                    for release, ratio in zip(stage.spec.side_releases, stage.ratios, strict=True)
                ),
            )
            for stage in unit.stages
        )
    )


@lru_cache(maxsize=1024)
def least_noise(scaled: tuple[Cost, ...], fixed: tuple[Cost, ...], policy: Policy, accountant: Accountant) -> float:
    """Return the least factor on the noise of some costs with which these and the others satisfy the policy."""

    def fits(scale: float) -> bool:
        costs = (*(replace(cost, noise=scale * cost.noise) for cost in scaled), *fixed)
        return api.epsilon_of(costs, policy.delta, policy.relation, accountant) <= policy.epsilon

    # Without the others, less noise than this does not do.
    low = high = api.noise_scale(scaled, policy.epsilon, policy.delta, policy.relation, accountant)
    while not fits(high):
        low, high = high, 1.1 * high
    while high - low > _CLOSE * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def epsilon(schedule: PrivacySchedule, policy: Policy, *, spare: bool = False) -> float:
    """The epsilon of the whole schedule; with `spare`, including the spare rounds."""
    costs = schedule.reserved() if spare else schedule.costs()
    return api.epsilon_of(costs, policy.delta, policy.relation, _accountant(schedule)) if costs else 0.0


def first(schedule: PrivacySchedule, order: Sequence[int], policy: Policy) -> PrivacySchedule:
    """Return the first rounds, whose stages are `order`, that the policy allows at the schedule's noise."""

    def cut(rounds: int) -> PrivacySchedule:
        counts = [order[:rounds].count(number) for number in range(len(schedule.stages))]
        return PrivacySchedule(
            tuple(
                replace(stage, rounds=n, plan=replace(stage.plan, rounds=n))
                for stage, n in zip(schedule.stages, counts, strict=True)
            )
        )

    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon(cut(middle), policy, spare=True) <= policy.epsilon:
            low = middle
        else:
            high = middle - 1
    return cut(low)


def _accountant(schedule: PrivacySchedule) -> Accountant:
    return schedule.stages[0].plan.accountant


def _trained(spec: RoundSpec, plan: PrivacyPlan, rounds: int) -> PrivacyPlan:
    if not spec.full_batch:
        return replace(plan, rounds=rounds)
    return replace(
        plan,
        rounds=rounds,
        batch=plan.samples,
        epochs=1,
        local_steps=1,
        copies=spec.copies,
        noise_per=spec.noise_per,
    )
