"""A course: all that one client does and releases in a run, stage by stage, and the noise that keeps its policy.

Rounds in which a recipe asks the same belong to one stage: a full-batch round, warm-start rounds, rounds with a noisy
choice, the ordinary rounds. What a client releases beside its update (an `Aside`) is a cost like any other. All costs
of a course are calibrated together: one number scales every noise.

Guarantees:
    - `costs` of a stage are exactly what one of its rounds releases; the ledger is charged with these and no others.
    - `calibrated` returns the least scale at which all rounds of all stages together keep the policy.
    - Noise of an aside is in units of what one row can change in it, as a plan's is in units of the clip.

Edge cases:
    - Enrolment is round 0: a stage without training.
    - A client that is never invited has stages of no rounds, whose noise is that of a single round each.
    - `first` keeps as many of the client's rounds, in their order, as a policy affords: none, if not even one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hush.privacy import accounting
from hush.privacy.cost import Cost
from hush.privacy.plan import PrivacyPlan
from hush.types import Accountant, Policy

ENROLMENT = 0


@dataclass(frozen=True)
class Aside:
    """A noisy release beside the update.

    Attributes:
        what: In the words of the promise.
        share: What it costs each time, over what an ordinary round of training costs. It sets its noise; the accountant
            then counts what that noise really costs.
        sampled: Whether it looks at one batch of the plan's sampler, in place of all rows.
    """

    what: str
    share: float
    sampled: bool = False

    def ratio(self, plan: PrivacyPlan) -> float:
        """Its noise multiplier over that of training, by the rule that costs add up as squares of rate over noise."""
        seen = plan.rate if self.sampled else 1.0
        return seen / (plan.rate * math.sqrt(plan.steps * self.share))


@dataclass(frozen=True)
class Ask:
    """What a round asks of a client.

    Attributes:
        train: Whether there is an update at all.
        full_batch: One step on all rows, in place of the client's own batches and steps.
        still: All gradients are taken at the model that was sent.
        choose: Whether the client says which of the models fits it best.
        asides: What it releases besides.
    """

    train: bool = True
    full_batch: bool = False
    still: bool = False
    choose: bool = False
    asides: tuple[Aside, ...] = ()

    def __or__(self, other: Ask) -> Ask:
        """What two choices of a recipe ask together."""
        return Ask(
            self.train and other.train,
            self.full_batch or other.full_batch,
            self.still or other.still,
            self.choose or other.choose,
            (*self.asides, *other.asides),
        )


@dataclass(frozen=True)
class Outline:
    """What each round of a recipe asks: the different asks, and which of them each round has.

    `of[0]` is enrolment, which is no stage (-1) where nothing is released in it.
    """

    asks: tuple[Ask, ...]
    of: tuple[int, ...]

    def at(self, number: int) -> Ask:
        """What a round asks."""
        return self.asks[self.of[number]]


def outlined(asks: Sequence[Ask]) -> Outline:
    """The outline of what is asked in enrolment and in each round after it."""
    needed = [ask for ask in asks if ask.train or ask.asides]
    known = tuple(dict.fromkeys(needed))
    return Outline(known, tuple(known.index(ask) if ask.train or ask.asides else -1 for ask in asks))


@dataclass(frozen=True)
class Stage:
    """The rounds of one client in which it is asked the same: how it trains, what else it releases, how often."""

    ask: Ask
    plan: PrivacyPlan
    rounds: int
    ratios: tuple[float, ...] = ()

    def costs(self, rounds: int = 1) -> tuple[Cost, ...]:
        """What that many of its rounds release."""
        trained = (self.plan.cost(rounds),) if self.ask.train else ()
        asides = zip(self.ask.asides, self.ratios, strict=True)
        return (*trained, *(self._aside(aside, ratio, rounds) for aside, ratio in asides))

    def noise_of(self, what: str) -> float:
        """The noise multiplier of an aside, or 0 if there is none by that name."""
        named = dict(zip((aside.what for aside in self.ask.asides), self.ratios, strict=True))
        return named.get(what, 0.0) * self.plan.noise_multiplier

    def _aside(self, aside: Aside, ratio: float, rounds: int) -> Cost:
        noise = ratio * self.plan.noise_multiplier
        if aside.sampled and self.plan.rate < 1:
            return replace(self.plan.cost(rounds), what=aside.what, noise=noise, steps=rounds)
        return Cost(aside.what, "gaussian", noise, rounds)


@dataclass(frozen=True)
class Output:
    """What is done to a trained model before it is sent: cut to a norm, and noise of this deviation added."""

    bound: float
    deviation: float


@dataclass(frozen=True)
class Course:
    """The stages of one client, in the order of the recipe's, whether or not it has rounds in each."""

    stages: tuple[Stage, ...]

    @property
    def plan(self) -> PrivacyPlan:
        """How the client trains in most of its rounds."""
        return max(self.stages, key=lambda stage: (stage.ask.train, stage.rounds)).plan

    @property
    def rounds(self) -> int:
        """Rounds of training in all."""
        return sum(stage.rounds for stage in self.stages if stage.ask.train)

    @property
    def steps(self) -> int:
        """Noisy steps in all."""
        return sum(stage.rounds * stage.plan.steps for stage in self.stages if stage.ask.train)

    def costs(self) -> tuple[Cost, ...]:
        """What all of it releases."""
        return tuple(cost for stage in self.stages if stage.rounds for cost in stage.costs(stage.rounds))


def drafted(asks: Sequence[Ask], counts: Sequence[int], plan: PrivacyPlan) -> Course:
    """A course with the plan's noise, before calibration: `counts` says in how many rounds each thing is asked."""
    return Course(
        tuple(
            Stage(ask, _trained(ask, plan, n), n, tuple(aside.ratio(plan) for aside in ask.asides))
            for ask, n in zip(asks, counts, strict=True)
        )
    )


def with_noise(course: Course, noise_multiplier: float) -> Course:
    """The course with this noise multiplier in training, and the asides in proportion."""
    return Course(
        tuple(replace(stage, plan=replace(stage.plan, noise_multiplier=noise_multiplier)) for stage in course.stages)
    )


def calibrated(course: Course, policy: Policy) -> Course:
    """The course with the least noise that keeps the policy over all its rounds."""
    unit = with_noise(course, 1.0)
    costs = unit.costs() or tuple(cost for stage in unit.stages for cost in stage.costs())
    scale = accounting.noise_scale(costs, policy.epsilon, policy.delta, policy.relation, _accountant(course))
    return with_noise(course, scale)


def epsilon(course: Course, policy: Policy) -> float:
    """What all of the course costs."""
    costs = course.costs()
    return accounting.epsilon_of(costs, policy.delta, policy.relation, _accountant(course)) if costs else 0.0


def first(course: Course, order: Sequence[int], policy: Policy) -> Course:
    """As many of the rounds, whose stages in turn are `order`, as the policy affords at the course's noise."""

    def cut(rounds: int) -> Course:
        counts = [order[:rounds].count(number) for number in range(len(course.stages))]
        return Course(
            tuple(
                replace(stage, rounds=n, plan=replace(stage.plan, rounds=n))
                for stage, n in zip(course.stages, counts, strict=True)
            )
        )

    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon(cut(middle), policy) <= policy.epsilon:
            low = middle
        else:
            high = middle - 1
    return cut(low)


def _accountant(course: Course) -> Accountant:
    return course.stages[0].plan.accountant


def _trained(ask: Ask, plan: PrivacyPlan, rounds: int) -> PrivacyPlan:
    if not ask.full_batch:
        return replace(plan, rounds=rounds)
    return replace(plan, rounds=rounds, batch=plan.samples, epochs=1, local_steps=1)
