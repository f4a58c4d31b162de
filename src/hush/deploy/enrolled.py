"""A run as both sides compute it from what was enrolled: the coordinator for everyone, a member for itself.

The same functions of the same public numbers, so nothing about noise, rates or steps needs to be sent, and nothing that
is sent can change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hush import models, recipes
from hush.config import Config
from hush.data import transforms
from hush.data.clients import Clients
from hush.data.datasets import Dataset
from hush.deploy.courses import bounds, courses, training
from hush.deploy.facts import Fact, roster, weighted
from hush.engines import federation as engine
from hush.engines.federation import Federation
from hush.models import Model
from hush.privacy.cost import Cost
from hush.privacy.course import Course, Outline, Output
from hush.recipes import Recipe
from hush.recipes.check import check
from hush.server.schedule import Schedule, schedule, stages_of
from hush.types import Member, Policy

_PUBLIC = "what members declare at enrolment is public by their own choice, unless it is noised and charged"


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
    told: tuple[Cost, ...] = ()

    def costs(self) -> tuple[Cost, ...]:
        """What all of the run releases, with what was told at enrolment."""
        return (*self.told, *training(self.course))


def assemble(config: Config, facts: Sequence[Fact], test: Dataset) -> Enrolled:
    """The federation as the coordinator knows it; `test` is its public test set."""
    name, recipe = recipes.parse(config.recipe, config.mode)
    recipe = weighted(recipe, facts)
    members = roster(config, facts)
    check(recipe, members, config.rounds)
    rounds, outline, orders = _timetable(config, recipe, len(members))
    policies = tuple(recipe.protect.policies(members))
    planned = courses(config, recipe, members, facts, outline, orders)
    model = models.build(config.model, tuple(test.x.shape[1:]), test.classes, config.seed)
    outputs = tuple(recipe.protect.output(members, config.rounds))
    terms = engine.terms_of(config, recipe, members, outline, planned, model, rounds)
    longest = bounds(config, recipe, members, facts, planned, outputs, outline, orders, model.layout.size)
    held = Clients(test, (), (), (), config.seed)
    return Enrolled(
        config, name, recipe, held, model, members, policies, planned, outputs, replace(terms, bounds=longest),
        torch.device("cpu"),
    )  # fmt: skip


def own(config: Config, facts: Sequence[Fact], client: int, rows: Dataset, policy: Policy, classes: int) -> Own:
    """What a member will do, by its own numbers: its true number of rows, and its own policy."""
    _, recipe = recipes.parse(config.recipe, config.mode)
    members = list(roster(config, facts))
    members[client] = replace(members[client], policy=policy, samples=len(rows.y))
    rounds, outline, orders = _timetable(config, recipe, len(members))
    chosen = [client] if _alone(recipe) else list(range(len(members)))
    planned = courses(
        config, recipe, [members[c] for c in chosen], [facts[c] for c in chosen], outline, [orders[c] for c in chosen]
    )
    model = models.build(config.model, tuple(rows.x.shape[1:]), classes, config.seed)
    output = recipe.protect.output(members, config.rounds)[client]
    course = planned[chosen.index(client)]
    told = facts[client].costs()
    return Own(config, recipe, model, client, members[client], course, output, outline, rounds, told)


def shaped(data: Dataset, config: Config) -> Dataset:
    """Rows as a config wants them: each by itself, so it costs nothing."""
    return transforms.unit_rows(data) if config.data.rows == "unit-norm" else data


def _timetable(config: Config, recipe: Recipe, number: int) -> tuple[Schedule, Outline, list[tuple[int, ...]]]:
    rounds = schedule(config.seed, number, config.rounds, config.participation)
    outline = recipe.outline(config.rounds)
    return rounds, outline, stages_of(outline, rounds, number)


def _alone(recipe: Recipe) -> bool:
    """Whether a client's course depends on nobody else's numbers."""
    protect = recipe.protect
    return getattr(protect, "budget", "own") == "own" and getattr(protect, "spread", "all-rounds") == "all-rounds"
