"""Privacy schedules of a run's clients, computed from public facts alike by a simulation, a coordinator and a member.

Nothing about noise, rates or steps needs to be sent between machines, and nothing that is sent can change them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hush.config import Config
from hush.privacy.accounting import privacy_filter
from hush.privacy.accounting.cost import Cost
from hush.privacy.accounting.events import parts_of_costs
from hush.privacy.ledger import BudgetSpentError, totals
from hush.privacy.schedule import PrivacySchedule, StageTable, with_noise
from hush.recipes import Recipe
from hush.server.participation import Participants, draw_participants, stages_of
from hush.types import Member, Policy

SUPPOSED_NOISE = 8.0  # factor on the planned noise that is assumed at most for a client whose declaration may be false
_MOST_NOISE = 1e4


@dataclass(frozen=True)
class Timetable:
    """The rounds of a run: who is invited to each, what each asks for, and the stages of each client's rounds."""

    participants: Participants
    stage_table: StageTable
    orders: tuple[tuple[int, ...], ...]


def timetable(config: Config, recipe: Recipe, clients: int) -> Timetable:
    """Return the rounds of a run with that many clients, from the config alone."""
    shared = recipe.protect.shared_draws
    participants = draw_participants(config.seed, clients, config.rounds, config.participation, shared)
    stage_table = recipe.stage_table(config.rounds)
    return Timetable(participants, stage_table, tuple(stages_of(stage_table, participants, clients)))


def privacy_schedules(
    config: Config,
    recipe: Recipe,
    members: Sequence[Member],
    stage_table: StageTable,
    orders: Sequence[tuple[int, ...]],
    disclosed: Sequence[Sequence[Cost]],
    *,
    certain: Collection[int] = (),
) -> tuple[PrivacySchedule, ...]:
    """Return the schedule of each member; members charged for disclosures at enrolment train with slightly more noise.

    Args:
        config: The config of the run.
        recipe: The recipe of the run.
        members: Some or all of the clients.
        stage_table: What each round asks for.
        orders: The stages of each member's rounds, in order.
        disclosed: What each member was charged at enrolment, before training is planned.
        certain: Positions in `members` whose numbers are known to be true: `BudgetSpentError` if their policy cannot be
            satisfied. For others at most `SUPPOSED_NOISE` times the noise is assumed, whatever they declare.
    """
    policies = recipe.protect.policies(members)
    drafts = recipe.protect.schedules(members, stage_table, orders, config)
    spreads = recipe.protect.spreads_budget
    return tuple(
        widened(draft, costs, policy, at in certain) if costs and spreads and draft.plan.private else draft
        for at, (draft, costs, policy) in enumerate(zip(drafts, disclosed, policies, strict=True))
    )


def widened(schedule: PrivacySchedule, disclosed: Sequence[Cost], policy: Policy, certain: bool) -> PrivacySchedule:
    """Return the schedule with the least noise that satisfies the policy together with what was disclosed.

    Raises `BudgetSpentError` if there is none; if not `certain`, `SUPPOSED_NOISE` times the noise is assumed instead.
    """
    noise, accountant = schedule.plan.noise_multiplier, schedule.plan.accountant

    def fits(scale: float) -> bool:
        # Training is planned after the disclosure, from what it released: fixed composition does not cover that, the
        # privacy filter does (Theorem 2 of docs/proofs.md).
        costs = training(with_noise(schedule, scale * noise), spare=True)
        both = [parts_of_costs(disclosed), parts_of_costs(costs)]
        if not math.isfinite(policy.epsilon):
            return True
        fixed = totals.epsilon(totals.add_costs({}, (*disclosed, *costs)), policy, accountant)
        if fixed > policy.epsilon:
            return False
        return privacy_filter.fits(privacy_filter.of_schedules(both, policy, accountant), fixed, policy, accountant)

    low, high = 1.0, 1.0
    while not fits(high):
        if not certain and high >= SUPPOSED_NOISE:
            return with_noise(schedule, high * noise)
        low, high = high, 2.0 * high
        if high > _MOST_NOISE:
            raise BudgetSpentError("enrolment: its noisy releases leave no budget for training")
    while high - low > 1e-3 * low:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return with_noise(schedule, high * noise)


def training(schedule: PrivacySchedule, *, spare: bool = False) -> tuple[Cost, ...]:
    """What all rounds of a schedule release, without enrolment; with `spare`, including the spare rounds."""
    stages = [stage for stage in schedule.stages if stage.rounds and stage.spec.train]
    return tuple(cost for s in stages for cost in s.costs(s.rounds + (s.spare if spare else 0)))
