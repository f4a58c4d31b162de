"""The run specification, which both sides compute from enrolment: the coordinator for all, a member for itself.

Both use the same functions of the same public numbers, so noise, rates and steps are neither sent nor changed by
anything that is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hush import models, recipes
from hush.config import Config, code_name, with_noise, with_unit
from hush.data import budgets
from hush.data.client_rows import Clients
from hush.data.datasets import Dataset
from hush.data.schema import Schema
from hush.deploy.admin.keys import PublicKey
from hush.deploy.shared.roster import BUDGET, RosterEntry, roster, weighted
from hush.deploy.shared.update_limits import side_limits, update_limits
from hush.engines import setup as engine
from hush.engines.noisy_counts import SUPPOSED_BATCHES, with_rows
from hush.engines.objective import task_of, with_objective
from hush.engines.schedules import privacy_schedules, timetable, training
from hush.engines.setup import Federation, with_rate
from hush.engines.side_releases import release_shape
from hush.models import Model
from hush.models.encoders import SCATTERING, encoder_of, is_factory
from hush.privacy.accounting.cost import Cost
from hush.privacy.schedule import ENROLMENT, Output, PrivacySchedule, Stage, StageTable
from hush.recipes import Recipe, secure_sums
from hush.recipes.limits import Ceiling, fixed, twice_even
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT
from hush.server.loop import RunTerms
from hush.server.participation import Participants
from hush.training import input_mean
from hush.types import HushError, Member, Policy

_MANY = 1 << 40
_PUBLIC = "what members declare at enrolment: public by each member's choice, unless it is noised and charged"


@dataclass(frozen=True, kw_only=True)
class MemberSpec:
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
    disclosed: tuple[Cost, ...] = ()
    noised: bool = False
    centre: str = ""
    sums: RunTerms | None = None
    peers: Mapping[int, PublicKey] = field(default_factory=dict)

    def costs(self) -> tuple[Cost, ...]:
        """Everything that the run releases, including what was disclosed at enrolment."""
        return (*self.disclosed, *training(self.schedule))


def assemble(config: Config, facts: Sequence[RosterEntry], test: Dataset, auto_rate: bool = False) -> Federation:
    """Return the federation as the coordinator knows it; `test` is its public test set.

    `auto_rate` says that the config file left the learning rate to be computed; if it still is "auto", it is computed
    here.
    """
    name, recipe = recipes.configured(config)
    inputs = tuple(test.x.shape[1:])
    model = with_objective(
        config, models.build_model(config.model, inputs, test.classes, config.seed), test, task_of(config, test)
    )
    recipe, left_out = engine.fitted(weighted(recipe, facts), model, inputs)
    members = roster(config, facts)
    federation = engine.build(
        config,
        name,
        recipe,
        members,
        model,
        Clients(dataset=test, shares=(), train=(), test=(), seed=config.seed),
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
        noised_budgets=frozenset(number for number, fact in enumerate(facts) if BUDGET in fact.noised),
        terms=replace(
            terms,
            bounds=limits.update,
            noise_bounds=limits.noise if config.max_weight != 1.0 else None,
            side_bounds=side_limits(federation.schedules, facts, rounds.stage_table, terms.shape),
            # Members declare their own facts here, so each member's share is limited.
            ceiling=ceiling_of(config),
        ),
    )


def as_offered(config: Config) -> dict[str, Any]:
    """Return a config as it is sent: what differs from the defaults, which both sides have alike.

    So a version with a new key can offer a run that does not use it to members that do not know the key.
    """
    return config.model_dump(exclude_defaults=True)


def ceiling_of(config: Config) -> Ceiling:
    """The largest share of one member: members declare their own facts, so it is limited without being configured."""
    return fixed(config.max_weight) if config.max_weight else twice_even


def sum_terms(config: Config, facts: Sequence[RosterEntry], model: Model, recipe: Recipe, schema: Schema) -> RunTerms:
    """Return the server's terms as a member computes them, to check what it is asked to add up (secure aggregation).

    All members' plans are in them, by what they declared.
    """
    recipe, members = weighted(recipe, facts), roster(config, facts)
    secure_sums.check(recipe, members, config.participation)
    rounds = timetable(config, recipe, len(members))
    planned = privacy_schedules(
        config, recipe, members, rounds.stage_table, rounds.orders, [fact.costs() for fact in facts]
    )
    shape = release_shape(config, model, schema.input_shape, schema.classes or 0)
    terms = engine.terms_of(config, recipe, members, rounds.stage_table, planned, model, rounds.participants, shape)
    return replace(terms, ceiling=ceiling_of(config))


def complete(config: Config, schema: Schema | None) -> Config:
    """The config of a federation, in which noise and the unit of privacy are no longer open.

    Persons are protected where the schema names their column, or the config asks for it: members can name it as well.
    """
    if config.privacy.declared is not None:
        raise HushError(
            "privacy.declared: members declare their own budgets; accepted: simulations, or left out",
            "privacy.declared",
        )
    persons = config.privacy.unit == "person" or (schema is not None and schema.person is not None)
    return with_unit(with_noise(config, lasting=True), persons)


def with_fingerprint(config: Config, shape: tuple[int, ...]) -> Config:
    """The config with the fingerprint of its frozen encoder, of which members must have the same; rows have a shape."""
    if config.model.encoder is None:
        return config
    _check_encoder(config)
    encoder = encoder_of(config.model, shape)
    assert encoder is not None
    named = config.model.model_copy(update={"fingerprint": encoder.fingerprint})
    return config.model_copy(update={"model": named})


def _check_encoder(config: Config) -> None:
    encoder = config.model.encoder
    if encoder is not None and encoder != SCATTERING and not is_factory(encoder):
        raise HushError(
            f"model.encoder: {encoder!r:.80} names files of one machine, in a federation of several; accepted: "
            "module:factory, whose code loads the weights at every member, or scattering",
            "model.encoder",
        )


def check_objective(config: Config, classes: int) -> None:
    """Raise a `HushError` for what members cannot train: anything but classes by cross-entropy; weights in a file."""
    asked = config.objective
    _check_encoder(config)
    if config.model.encoder is not None and config.model.fingerprint is None:
        raise HushError("model.fingerprint: missing; members compute features by the same encoder", "model.fingerprint")
    if config.model.weights is not None:
        raise HushError(
            "model.weights: a path of one machine, in a federation of several; accepted: module:factory, whose code "
            "loads the weights at every member",
            "model.weights",
        )
    if asked.task not in ("auto", "binary", "multiclass") or asked.loss not in ("auto", "cross-entropy"):
        raise HushError(
            f'objective: task "{asked.task}" with loss "{code_name(asked.loss)}" cannot be trained in a federation of '
            "several machines yet; accepted: binary or multiclass, with cross-entropy",
            "objective",
        )
    if any(":" in each for each in map(code_name, asked.metrics)):
        raise HushError(
            "objective.metrics: code of your own is not evaluated in a federation of several machines; accepted: "
            "metrics by name",
            "objective.metrics",
        )
    if asked.task == "binary" and classes != 2:
        raise HushError(f'objective.task: "binary" needs two classes, the run has {classes}', "objective.task")


def settled(config: Config, facts: Sequence[RosterEntry], test: Dataset) -> Config:
    """Return the config with the learning rate computed from the public plans, if it is "auto"."""
    return assemble(config, facts, test).config if config.local.lr == "auto" else config


def enrolment(
    config: Config, recipe: Recipe, fact: RosterEntry, number: int, policy: Policy
) -> tuple[PrivacySchedule, Stage | None]:
    """Return the schedule offered to a member before the other members are known, and what enrolment asks of it.

    `recipe` is as the run's model uses it. If the member's number of rows is noisy, the noise of the enrolment releases
    must not depend on the true number: both sides assume a fixed number of batches.
    """
    if COUNT in fact.noised:
        fact = replace(fact, samples=supposed_rows(config, number))
    facts = [fact if each == number else replace(fact, samples=_MANY) for each in range(config.data.clients)]
    members = list(roster(config, facts))
    members[number] = replace(members[number], policy=policy)
    schedule = _schedule(config, recipe, members, [replace(each, noised={}) for each in facts], number)
    stage = recipe.stage_table(config.rounds).of[ENROLMENT]
    return schedule, schedule.stages[stage] if stage >= 0 else None


def plausible(config: Config, recipe: Recipe, fact: RosterEntry, number: int) -> None:
    """Raise a `HushError` if no plan exists for a member's declaration, whatever client number it gets."""
    fact = replace(fact, samples=max(fact.samples, batch_of(config, number)))
    facts = [fact if each == number else replace(fact, samples=_MANY) for each in range(config.data.clients)]
    member = replace(roster(config, facts)[number], client=0)
    rounds = timetable(config, recipe, len(facts))
    table, orders = rounds.stage_table, [rounds.orders[number]]
    try:
        planned = privacy_schedules(config, recipe, [member], table, orders, [fact.costs()])
        outputs = recipe.protect.output([member], config.rounds)
        update_limits(with_rate(config, 1.0), recipe, [member], [fact], planned, outputs, table, orders, 1)
    except Exception as error:  # an impossible declaration excludes its sender only
        raise HushError(f"enrolment answer: no valid plan exists for it: {error}"[:300]) from None


def batch_of(config: Config, number: int) -> int:
    """The batch size of a member by the config."""
    return int(budgets.batch_sizes(config.local.batch_size, config.data.clients, config.seed)[number])


def supposed_rows(config: Config, number: int) -> int:
    """The number of rows that is assumed for a member before it declares a noisy one."""
    return SUPPOSED_BATCHES * batch_of(config, number)


def width_of(model: Model) -> int:
    """The width of the input mean; an error if the model cannot have one."""
    return input_mean.linear_layer(model).width


def releases_input_mean(recipe: Recipe, rounds: int) -> bool:
    """Whether enrolment asks for a mean of the inputs."""
    stage_table = recipe.stage_table(rounds)
    stage = stage_table.of[ENROLMENT]
    return stage >= 0 and any(side_release.what == CENTRE for side_release in stage_table.specs[stage].side_releases)


def member_spec(
    config: Config, facts: Sequence[RosterEntry], client: int, policy: Policy, schema: Schema
) -> MemberSpec:
    """Return what a member will do, by its own policy and its disclosed number of rows.

    If that number is noisy, the true one affects neither rate nor noise nor steps, because those would reveal it.
    """
    model = models.build_model(config.model, schema.input_shape, schema.classes or 0, config.seed)
    recipe, _ = engine.fitted(recipes.configured(config)[1], model, schema.input_shape)
    members = list(roster(config, facts))
    members[client] = replace(members[client], policy=policy)
    rounds = timetable(config, recipe, len(members))
    schedule = _schedule(config, recipe, members, facts, client)
    if COUNT in facts[client].noised:
        # Raises an error for a sampler that needs the true number.
        schedule = with_rows(schedule, schedule.plan.samples)
    output = recipe.protect.output(members, config.rounds)[client]
    mine = facts[client]
    return MemberSpec(
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
        disclosed=mine.costs(),
        noised=COUNT in mine.noised,
    )


def expected_spec(config: Config, fact: RosterEntry, number: int, policy: Policy, schema: Schema) -> MemberSpec:
    """Return what a member would do before the other members are known."""
    facts = [
        fact if each == number else replace(fact, name="", samples=_MANY, noised={})
        for each in range(config.data.clients)
    ]
    return member_spec(config, facts, number, policy, schema)


def _schedule(
    config: Config, recipe: Recipe, members: Sequence[Member], facts: Sequence[RosterEntry], client: int
) -> PrivacySchedule:
    """Return one member's schedule, planning only those of other members that it depends on."""
    rounds = timetable(config, recipe, len(members))
    chosen = recipe.protect.planned_with(members, client)
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
