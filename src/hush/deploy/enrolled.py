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
from hush.data import budgets, transforms
from hush.data.clients import Clients
from hush.data.datasets import Dataset
from hush.deploy.courses import bounds, courses, training
from hush.deploy.facts import Fact, roster, weighted
from hush.engines import federation as engine
from hush.engines import pace
from hush.engines.federation import Federation, with_rate
from hush.local import centre
from hush.models import Model
from hush.privacy.cost import Cost
from hush.privacy.course import ENROLMENT, Course, Outline, Output, Stage
from hush.recipes import Recipe
from hush.recipes.check import check
from hush.recipes.protect import CENTRE
from hush.server.schedule import Schedule, schedule, stages_of
from hush.types import HushError, Member, Policy

_MANY = 1 << 40
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
    centre: str = ""

    def costs(self) -> tuple[Cost, ...]:
        """What all of the run releases, with what was told at enrolment."""
        return (*self.told, *training(self.course))


def assemble(config: Config, facts: Sequence[Fact], test: Dataset, paced: bool = False) -> Enrolled:
    """The federation as the coordinator knows it; `test` is its public test set.

    `paced` says that the learning rate was left open; while it still is, the terms are drawn up with a rate of 1.
    """
    if config.local.lr == "auto":
        config = with_rate(config, 1.0)
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
        torch.device("cpu"), paced,
    )  # fmt: skip


def settled(config: Config, facts: Sequence[Fact], test: Dataset) -> Config:
    """The config with a number for a learning rate that it leaves open, from the public plans alone."""
    if config.local.lr != "auto":
        return config
    return with_rate(config, pace.rate(assemble(config, facts, test).terms, config.participation))


def enrolment(config: Config, fact: Fact, number: int, policy: Policy) -> tuple[Course, Stage | None]:
    """The course that a member is offered before it is known who else comes, and what enrolment asks of it."""
    _, recipe = recipes.parse(config.recipe, config.mode)
    facts = [fact if each == number else replace(fact, samples=_MANY) for each in range(config.data.clients)]
    members = list(roster(config, facts))
    members[number] = replace(members[number], policy=policy)
    course = _course(config, recipe, members, [replace(each, noised={}) for each in facts], number)
    stage = recipe.outline(config.rounds).of[ENROLMENT]
    return course, course.stages[stage] if stage >= 0 else None


def plausible(config: Config, fact: Fact, number: int) -> None:
    """Raise a `HushError` if no plan can be made of what a member declares, whatever number it gets in the end."""
    _, recipe = recipes.parse(config.recipe, config.mode)
    fact = replace(fact, samples=max(fact.samples, batch_of(config, number)))
    facts = [fact if each == number else replace(fact, samples=_MANY) for each in range(config.data.clients)]
    member = replace(roster(config, facts)[number], client=0)
    _, outline, orders = _timetable(config, recipe, len(facts))
    wanted = ([member], [fact], outline, [orders[number]])
    try:
        planned = courses(config, recipe, *wanted)
        outputs = recipe.protect.output([member], config.rounds)
        bounds(with_rate(config, 1.0), recipe, [member], [fact], planned, outputs, *wanted[2:], 1)
    except Exception as error:  # a stranger's numbers may be impossible in any way, and cost the stranger alone
        raise HushError(f"facts: no plan can be made of them: {error}"[:300]) from None


def batch_of(config: Config, number: int) -> int:
    """The batch that a config has for a member."""
    return int(budgets.batch_sizes(config.local.batch_size, config.data.clients, config.seed)[number])


def width_of(model: Model) -> int:
    """How many numbers a centre has; an error if the model can have none."""
    return centre.form_of(model).width


def tells_centre(recipe: Recipe, rounds: int) -> bool:
    """Whether enrolment asks for a mean of the inputs."""
    outline = recipe.outline(rounds)
    stage = outline.of[ENROLMENT]
    return stage >= 0 and any(aside.what == CENTRE for aside in outline.asks[stage].asides)


def own(config: Config, facts: Sequence[Fact], client: int, rows: Dataset, policy: Policy, classes: int) -> Own:
    """What a member will do, by its own numbers: its true number of rows, and its own policy."""
    _, recipe = recipes.parse(config.recipe, config.mode)
    members = list(roster(config, facts))
    members[client] = replace(members[client], policy=policy, samples=len(rows.y))
    rounds, outline, _ = _timetable(config, recipe, len(members))
    course = _course(config, recipe, members, facts, client)
    model = models.build(config.model, tuple(rows.x.shape[1:]), classes, config.seed)
    output = recipe.protect.output(members, config.rounds)[client]
    told = facts[client].costs()
    return Own(config, recipe, model, client, members[client], course, output, outline, rounds, told)


def shaped(data: Dataset, config: Config) -> Dataset:
    """Rows as a config wants them: each by itself, so it costs nothing."""
    return transforms.unit_rows(data) if config.data.rows == "unit-norm" else data


def _timetable(config: Config, recipe: Recipe, number: int) -> tuple[Schedule, Outline, list[tuple[int, ...]]]:
    rounds = schedule(config.seed, number, config.rounds, config.participation, recipe.shared)
    outline = recipe.outline(config.rounds)
    return rounds, outline, stages_of(outline, rounds, number)


def _course(config: Config, recipe: Recipe, members: Sequence[Member], facts: Sequence[Fact], client: int) -> Course:
    """One member's course, with no more of the others' than it depends on."""
    _, outline, orders = _timetable(config, recipe, len(members))
    chosen = [client] if _alone(recipe) else list(range(len(members)))
    at = chosen.index(client)
    planned = courses(
        config, recipe, [members[c] for c in chosen], [facts[c] for c in chosen], outline, [orders[c] for c in chosen],
        sure=at,
    )  # fmt: skip
    return planned[at]


def _alone(recipe: Recipe) -> bool:
    """Whether a client's course depends on nobody else's numbers."""
    protect = recipe.protect
    return getattr(protect, "budget", "own") == "own" and getattr(protect, "spread", "all-rounds") == "all-rounds"
