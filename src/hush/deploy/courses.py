"""Everyone's course as both sides compute it, with what enrolment cost, and how long its updates can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hush.config import Config, LocalConfig
from hush.deploy.facts import BUDGET, Fact
from hush.privacy.cost import Cost
from hush.privacy.course import Course, Outline, Output, Stage, with_noise
from hush.privacy.ledger import BudgetSpentError, balance
from hush.privacy.plan import PrivacyPlan
from hush.recipes import Recipe
from hush.recipes.protect import BELOW
from hush.recipes.weigh import COUNT
from hush.types import Member, Policy

_MOST, _SUPPOSED = 1e4, 8.0


def courses(
    config: Config, recipe: Recipe, members: Sequence[Member], facts: Sequence[Fact], outline: Outline,
    orders: Sequence[Sequence[int]], *, sure: int | None = None,
) -> tuple[Course, ...]:  # fmt: skip
    """Everyone's course; who has told something at a price trains with a little more noise.

    `sure` is whose numbers are the true ones: an error if they cannot be kept. Of others one supposes no more than a
    few times the noise, whatever they declare.
    """
    policies = recipe.protect.policies(members)
    drafts = recipe.protect.courses(members, outline, [tuple(order) for order in orders], config)
    spread = getattr(recipe.protect, "spread", "all-rounds") == "all-rounds"
    return tuple(
        _widened(course, fact.costs(), policy, at == sure) if fact.noised and spread and course.plan.private else course
        for at, (course, fact, policy) in enumerate(zip(drafts, facts, policies, strict=True))
    )


def _widened(course: Course, told: tuple[Cost, ...], policy: Policy, sure: bool) -> Course:
    """The course with the least noise at which it keeps the policy together with what was told."""
    noise, accountant = course.plan.noise_multiplier, course.plan.accountant

    def fits(scale: float) -> bool:
        costs = (*told, *training(with_noise(course, scale * noise)))
        return balance.fits(balance.epsilon(balance.plus({}, costs), policy, accountant), policy)

    low, high = 1.0, 1.0
    while not fits(high):
        if not sure and high >= _SUPPOSED:
            return with_noise(course, high * noise)
        low, high = high, 2.0 * high
        if high > _MOST:
            raise BudgetSpentError("enrolment: what is noised there leaves no budget to train with")
    while high - low > 1e-3 * low:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return with_noise(course, high * noise)


def training(course: Course) -> tuple[Cost, ...]:
    """What all rounds of a course release, without enrolment."""
    return tuple(c for stage in course.stages if stage.rounds and stage.ask.train for c in stage.costs(stage.rounds))


def bounds(
    config: Config, recipe: Recipe, members: Sequence[Member], facts: Sequence[Fact], planned: Sequence[Course],
    outputs: Sequence[Output | None], outline: Outline, orders: Sequence[Sequence[int]], size: int,
) -> tuple[tuple[float, ...], ...]:  # fmt: skip
    """By stage and member, how long an honest update can be, whatever true number a noised one hides."""
    possible = [[course] for course in planned]
    for client, fact in enumerate(facts):
        if not {COUNT, BUDGET} & set(fact.noised):
            continue
        for far in fact.extremes(members[client].batch):
            policy = Policy(far.epsilon, far.delta, far.relation)
            member = replace(members[client], policy=policy, samples=far.samples)
            around = [member if each.client == client else each for each in members]
            possible[client].append(courses(config, recipe, around, facts, outline, orders)[client])
    return tuple(
        tuple(
            max(_bound(course, output, stage, config.local, size) for course in each)
            for each, output in zip(possible, outputs, strict=True)
        )
        for stage in range(len(outline.asks))
    )


def _bound(course: Course, output: Output | None, stage: int, local: LocalConfig, size: int) -> float:
    """A norm that an honest update stays below but for one time in 10^13: clipped sums and a noise quantile."""
    plan, lr = course.stages[stage].plan, float(local.lr)
    if not plan.private or output is not None or local.weight_decay:
        return math.inf
    crowded = _crowded(plan)
    noise = math.sqrt(plan.update_noise(lr, size)) * (1 + 8 / math.sqrt(size))
    return lr * plan.steps * plan.clip * crowded + noise


def fraction(stage: Stage, fact: Fact) -> float:
    """How far from a half an honest, noised fraction of gradients below the clip can be."""
    plan = stage.plan
    far = 0.5 * _crowded(plan) + 4 * stage.noise_of(BELOW) / plan.batch
    return _SUPPOSED * far if fact.noised else far


def _crowded(plan: PrivacyPlan) -> float:
    """The largest batch that is ever drawn, but for one time in 10^13, over the one to expect."""
    return min(plan.samples, plan.batch + 8 * math.sqrt(plan.batch) + 24) / plan.batch
