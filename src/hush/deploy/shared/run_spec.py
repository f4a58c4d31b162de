"""The run specification, which both sides compute from enrolment: the coordinator for all, a member for itself.

The same functions of the same public numbers, so nothing about noise, rates or steps needs to be sent, and nothing that
is sent can change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hush import models, recipes
from hush.config import Config
from hush.data import budgets
from hush.data.client_rows import Clients
from hush.data.datasets import Dataset
from hush.data.schema import Schema
from hush.deploy.shared.roster import RosterEntry, roster, weighted
from hush.deploy.shared.update_limits import side_limits, update_limits
from hush.engines import setup as engine
from hush.engines.noisy_counts import SUPPOSED_BATCHES, with_rows
from hush.engines.schedules import privacy_schedules, timetable, training
from hush.engines.setup import Federation, with_rate
from hush.models import Model
from hush.privacy.accounting.cost import Cost
from hush.privacy.schedule import ENROLMENT, Output, PrivacySchedule, Stage, StageTable
from hush.recipes import Recipe
from hush.recipes.limits import twice_even
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT
from hush.server.participation import Participants
from hush.training import input_mean
from hush.types import HushError, Member, Policy

_MANY = 1 << 40
_PUBLIC = "what members declare at enrolment: public by each member's choice, unless it is noised and charged"


@dataclass(frozen=True, kw_only=True)
class Own:
    """A member's own part of a run."""

    config: Config
    recipe: Recipe
    model: Model
    client: int
    member: Member
    schedule: PrivacySchedule
    output: Output | None
    stage_table: StageTable
    participants: Participants
    schema: Schema
    told: tuple[Cost, ...] = ()
    noised: bool = False
    centre: str = ""

    def costs(self) -> tuple[Cost, ...]:
        """What all of the run releases, with what was told at enrolment."""
        return (*self.told, *training(self.schedule))


def assemble(config: Config, facts: Sequence[RosterEntry], test: Dataset, auto_rate: bool = False) -> Federation:
    """The federation as the coordinator knows it; `test` is its public test set.

    `auto_rate` says that the learning rate was left open before; one that still is open is chosen here.
    """
    name, recipe = recipes.parse(config.recipe, config.mode)
    inputs = tuple(test.x.shape[1:])
    model = models.build_model(config.model, inputs, test.classes, config.seed)
    recipe, left_out = engine.fitted(weighted(recipe, facts), model, inputs)
    members = roster(config, facts)
    federation = engine.build(
        config,
        name,
        recipe,
        members,
        model,
        Clients(test, (), (), (), config.seed),
        device=torch.device("cpu"),
        disclosed=[fact.costs() for fact in facts],
        auto_rate=auto_rate,
        uncovered=(_PUBLIC,),
        left_out=left_out,
    )
    config, terms, rounds = federation.config, federation.terms, timetable(config, recipe, len(members))
    limits = update_limits(
        config,
        recipe,
        members,
        facts,
        federation.schedules,
        federation.outputs,
        rounds.stage_table,
        rounds.orders,
        federation.model.layout.size,
    )
    return replace(
        federation,
        terms=replace(
            terms,
            bounds=limits.update,
            noise_bounds=limits.noise if config.max_weight != 1.0 else None,
            side_bounds=side_limits(federation.schedules, facts, rounds.stage_table, terms.shape),
            # Here members declare what they like: nobody gets far more than its share by that.
            ceiling=terms.ceiling if config.max_weight else twice_even,
        ),
    )


def settled(config: Config, facts: Sequence[RosterEntry], test: Dataset) -> Config:
    """The config with a number for a learning rate that it leaves open, from the public plans alone."""
    return assemble(config, facts, test).config if config.local.lr == "auto" else config


def enrolment(
    config: Config, recipe: Recipe, fact: RosterEntry, number: int, policy: Policy
) -> tuple[PrivacySchedule, Stage | None]:
    """The schedule that a member is offered before it is known who else comes, and what enrolment asks of it.

    `recipe` is as the run's model uses it. Where the member's number of rows is noised, the noise of what enrolment
    asks may not follow from it: both sides suppose so many batches of rows.
    """
    if COUNT in fact.noised:
        fact = replace(fact, samples=SUPPOSED_BATCHES * batch_of(config, number))
    facts = [fact if each == number else replace(fact, samples=_MANY) for each in range(config.data.clients)]
    members = list(roster(config, facts))
    members[number] = replace(members[number], policy=policy)
    schedule = _schedule(config, recipe, members, [replace(each, noised={}) for each in facts], number)
    stage = recipe.stage_table(config.rounds).of[ENROLMENT]
    return schedule, schedule.stages[stage] if stage >= 0 else None


def plausible(config: Config, recipe: Recipe, fact: RosterEntry, number: int) -> None:
    """Raise a `HushError` if no plan can be made of what a member declares, whatever number it gets in the end."""
    fact = replace(fact, samples=max(fact.samples, batch_of(config, number)))
    facts = [fact if each == number else replace(fact, samples=_MANY) for each in range(config.data.clients)]
    member = replace(roster(config, facts)[number], client=0)
    rounds = timetable(config, recipe, len(facts))
    table, orders = rounds.stage_table, [rounds.orders[number]]
    try:
        planned = privacy_schedules(config, recipe, [member], table, orders, [fact.costs()])
        outputs = recipe.protect.output([member], config.rounds)
        update_limits(with_rate(config, 1.0), recipe, [member], [fact], planned, outputs, table, orders, 1)
    except Exception as error:  # a stranger's numbers may be impossible in any way, and cost the stranger alone
        raise HushError(f"enrolment answer: no valid plan exists for it: {error}"[:300]) from None


def batch_of(config: Config, number: int) -> int:
    """The batch that a config has for a member."""
    return int(budgets.batch_sizes(config.local.batch_size, config.data.clients, config.seed)[number])


def width_of(model: Model) -> int:
    """How many numbers a centre has; an error if the model can have none."""
    return input_mean.linear_layer(model).width


def tells_centre(recipe: Recipe, rounds: int) -> bool:
    """Whether enrolment asks for a mean of the inputs."""
    stage_table = recipe.stage_table(rounds)
    stage = stage_table.of[ENROLMENT]
    return stage >= 0 and any(side_release.what == CENTRE for side_release in stage_table.specs[stage].side_releases)


def own(config: Config, facts: Sequence[RosterEntry], client: int, policy: Policy, schema: Schema) -> Own:
    """What a member will do: by its own policy, and by the number of rows that it told.

    Its true number, where that is noised, sets neither rate nor noise nor steps: whoever knows these would know it.
    """
    model = models.build_model(config.model, schema.input_shape, schema.classes or 0, config.seed)
    recipe, _ = engine.fitted(recipes.parse(config.recipe, config.mode)[1], model, schema.input_shape)
    members = list(roster(config, facts))
    members[client] = replace(members[client], policy=policy)
    rounds = timetable(config, recipe, len(members))
    schedule = _schedule(config, recipe, members, facts, client)
    if COUNT in facts[client].noised:
        # Refuses a sampler that needs the true number.
        schedule = with_rows(schedule, schedule.plan.samples)
    output = recipe.protect.output(members, config.rounds)[client]
    mine = facts[client]
    return Own(
        config=config,
        recipe=recipe,
        model=model,
        client=client,
        member=members[client],
        schedule=schedule,
        output=output,
        stage_table=rounds.stage_table,
        participants=rounds.participants,
        schema=schema,
        told=mine.costs(),
        noised=COUNT in mine.noised,
    )


def _schedule(
    config: Config, recipe: Recipe, members: Sequence[Member], facts: Sequence[RosterEntry], client: int
) -> PrivacySchedule:
    """One member's schedule, with no more of the others' than it depends on."""
    rounds = timetable(config, recipe, len(members))
    alone = recipe.protect.own_budgets and recipe.protect.spreads_budget
    chosen = [client] if alone else list(range(len(members)))
    at = chosen.index(client)
    planned = privacy_schedules(
        config,
        recipe,
        [members[c] for c in chosen],
        rounds.stage_table,
        [rounds.orders[c] for c in chosen],
        [facts[c].costs() for c in chosen],
        certain=[at],
    )
    return planned[at]
