"""A run as both sides compute it from what was enrolled: the coordinator for everyone, a member for itself.

The same functions of the same public numbers, so nothing about noise, rates or steps needs to be sent, and nothing that
is sent can change them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hush import models, recipes
from hush.config import Config, LocalConfig
from hush.data import budgets, transforms
from hush.data.clients import Clients
from hush.data.datasets import Dataset
from hush.engines import federation as engine
from hush.engines.federation import Federation
from hush.models import Model
from hush.privacy.course import Course, Outline, Output
from hush.recipes import Recipe
from hush.recipes.check import check
from hush.server.schedule import Schedule, schedule, stages_of
from hush.types import HushError, Member, Policy, Relation

_PUBLIC = "what members declare at enrolment (budget, and number of rows unless noised) is public by their own choice"


@dataclass(frozen=True)
class Fact:
    """What a member declared at enrolment."""

    name: str
    epsilon: float
    delta: float
    relation: Relation
    samples: int


class Enrolled(Federation):
    """A federation whose members are elsewhere."""

    def not_covered(self) -> tuple[str, ...]:
        """As in a simulation, but for what only a simulation shows."""
        return (*(gap for gap in super().not_covered() if "the simulation alone" not in gap), _PUBLIC)


@dataclass(frozen=True)
class Own:
    """A member's own part of a run."""

    config: Config
    recipe: Recipe
    model: Model
    client: int
    member: Member
    course: Course
    output: Output | None
    outline: Outline
    rounds: Schedule


def assemble(config: Config, facts: Sequence[Fact], test: Dataset) -> Enrolled:
    """The federation as the coordinator knows it; `test` is its public test set."""
    name, recipe = recipes.parse(config.recipe, config.mode)
    members = roster(config, facts)
    check(recipe, members, config.rounds)
    rounds, outline, orders = _timetable(config, recipe, len(members))
    policies = tuple(recipe.protect.policies(members))
    courses = tuple(recipe.protect.courses(members, outline, orders, config))
    model = models.build(config.model, tuple(test.x.shape[1:]), test.classes, config.seed)
    outputs = tuple(recipe.protect.output(members, config.rounds))
    terms = engine.terms_of(config, recipe, members, outline, courses, model, rounds)
    bounds = tuple(
        tuple(_bound(*each, stage, config.local, model.layout.size) for each in zip(courses, outputs, strict=True))
        for stage in range(len(outline.asks))
    )
    held = Clients(test, (), (), (), config.seed)
    return Enrolled(
        config, name, recipe, held, model, members, policies, courses, outputs, replace(terms, bounds=bounds),
        torch.device("cpu"),
    )  # fmt: skip


def own(config: Config, facts: Sequence[Fact], client: int, rows: Dataset, policy: Policy, classes: int) -> Own:
    """What a member will do, by its own numbers: its true number of rows, and its own policy."""
    _, recipe = recipes.parse(config.recipe, config.mode)
    members = list(roster(config, facts))
    members[client] = replace(members[client], policy=policy, samples=len(rows.y))
    rounds, outline, orders = _timetable(config, recipe, len(members))
    chosen = [client] if _alone(recipe) else list(range(len(members)))
    courses = recipe.protect.courses([members[c] for c in chosen], outline, [orders[c] for c in chosen], config)
    model = models.build(config.model, tuple(rows.x.shape[1:]), classes, config.seed)
    output = recipe.protect.output(members, config.rounds)[client]
    course = courses[chosen.index(client)]
    return Own(config, recipe, model, client, members[client], course, output, outline, rounds)


def shaped(data: Dataset, config: Config) -> Dataset:
    """Rows as a config wants them: each by itself, so it costs nothing."""
    return transforms.unit_rows(data) if config.data.rows == "unit-norm" else data


def roster(config: Config, facts: Sequence[Fact]) -> tuple[Member, ...]:
    """The members with their numbers and batch sizes."""
    if len(facts) != config.data.clients:
        raise HushError(f"data.clients: {config.data.clients}, but {len(facts)} members are enrolled", "data.clients")
    batches = budgets.batch_sizes(config.local.batch_size, len(facts), config.seed)
    members = tuple(
        Member(c, Policy(fact.epsilon, fact.delta, fact.relation), fact.samples, batches[c])
        for c, fact in enumerate(facts)
    )
    for member, fact in zip(members, facts, strict=True):
        if member.batch > member.samples:
            raise HushError(f"local.batch_size: {member.batch} is more than {fact.name} can take", "local.batch_size")
    return members


def _timetable(config: Config, recipe: Recipe, number: int) -> tuple[Schedule, Outline, list[tuple[int, ...]]]:
    rounds = schedule(config.seed, number, config.rounds, config.participation)
    outline = recipe.outline(config.rounds)
    return rounds, outline, stages_of(outline, rounds, number)


def _alone(recipe: Recipe) -> bool:
    """Whether a client's course depends on nobody else's numbers."""
    protect = recipe.protect
    return getattr(protect, "budget", "own") == "own" and getattr(protect, "spread", "all-rounds") == "all-rounds"


def _bound(course: Course, output: Output | None, stage: int, local: LocalConfig, size: int) -> float:
    """A norm that an honest update stays below but for one time in 10^13: clipped sums and a noise quantile."""
    plan, lr = course.stages[stage].plan, float(local.lr)
    if not plan.private or output is not None or local.weight_decay:
        return math.inf
    crowded = min(plan.samples, plan.batch + 8 * math.sqrt(plan.batch) + 24) / plan.batch
    noise = math.sqrt(plan.update_noise(lr, size)) * (1 + 8 / math.sqrt(size))
    return lr * plan.steps * plan.clip * crowded + noise
