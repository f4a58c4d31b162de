"""Limits on updates: the maximum norm of honest ones, by plan, independent of what their senders declare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.config import Config, LocalConfig
from hush.deploy.shared.roster import BUDGET, RosterEntry
from hush.engines.schedules import SUPPOSED_NOISE, privacy_schedules
from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import Output, PrivacySchedule, Stage, StageTable
from hush.privacy.side_release import ReleaseShape, SideRelease
from hush.privacy.update_bounds import largest_batches, longest_signal
from hush.recipes import Recipe
from hush.recipes.slots.weight import COUNT
from hush.types import Member, Policy


@dataclass(frozen=True)
class UpdateLimits:
    """Limits that honest updates satisfy, whatever the true values behind noisy declarations.

    Attributes:
        update: The maximum norm of an update, stages x members.
        noise: The maximum norm of the noise in it, stages x members.
    """

    update: Tensor
    noise: Tensor


def update_limits(
    config: Config,
    recipe: Recipe,
    members: Sequence[Member],
    facts: Sequence[RosterEntry],
    planned: Sequence[PrivacySchedule],
    outputs: Sequence[Output | None],
    stage_table: StageTable,
    orders: Sequence[tuple[int, ...]],
    size: int,
) -> UpdateLimits:
    """Return the limits of these members, from their schedules and those for the extremes of noisy declarations."""
    disclosed = [fact.costs() for fact in facts]
    possible = [[schedule] for schedule in planned]
    for client, fact in enumerate(facts):
        if not {COUNT, BUDGET} & set(fact.noised):
            continue
        for far in fact.extremes(members[client].batch):
            policy = Policy(far.epsilon, far.delta, far.relation, far.unit)
            member = replace(members[client], policy=policy, samples=far.samples)
            around = [member if each.client == client else each for each in members]
            possible[client].append(privacy_schedules(config, recipe, around, stage_table, orders, disclosed)[client])

    def largest(bound: Callable[[PrivacySchedule, Output | None, int, LocalConfig, int], float]) -> Tensor:
        return torch.tensor(
            [
                [
                    max(bound(schedule, output, stage, config.local, size) for schedule in each)
                    for each, output in zip(possible, outputs, strict=True)
                ]
                for stage in range(len(stage_table.specs))
            ],
            dtype=torch.float64,
        )

    return UpdateLimits(largest(_bound), largest(_noise_bound))


def _bound(schedule: PrivacySchedule, output: Output | None, stage: int, local: LocalConfig, size: int) -> float:
    """A norm that an honest update exceeds with probability at most 10^-13: clipped sums and a noise quantile."""
    return longest_signal(schedule.stages[stage].plan, float(local.lr)) + _noise_bound(
        schedule, output, stage, local, size
    )


def _noise_bound(schedule: PrivacySchedule, output: Output | None, stage: int, local: LocalConfig, size: int) -> float:
    """The maximum norm of the noise in an honest update; infinite if updates contain more than steps and noise."""
    plan = schedule.stages[stage].plan
    if not plan.private or output is not None or (local.weight_decay and not plan.whole_update):
        return math.inf
    return math.sqrt(plan.update_noise(float(local.lr), size)) * (1 + 8 / math.sqrt(size))


def side_limits(
    planned: Sequence[PrivacySchedule], facts: Sequence[RosterEntry], stage_table: StageTable, shape: ReleaseShape
) -> tuple[tuple[Mapping[str, float], ...], ...]:
    """The maximum norm of each side release, by stage and member, by name."""
    return tuple(
        tuple(_side_limits(each.stages[stage], fact, shape) for each, fact in zip(planned, facts, strict=True))
        for stage in range(len(stage_table.specs))
    )


def _side_limits(stage: Stage, fact: RosterEntry, shape: ReleaseShape) -> dict[str, float]:
    plan = stage.plan
    rows = max(plan.samples, *(far.samples for far in fact.extremes(plan.batch)))
    # A member with noisy declarations may have several times the noise that they suggest.
    wide = SUPPOSED_NOISE if fact.noised else 1.0
    return {
        release.what: wide * release.longest(shape, _rows_in(release, plan, rows), stage.noise_of(release.what))
        for release in stage.spec.sent
    }


def _rows_in(release: SideRelease, plan: PrivacyPlan, rows: float) -> float:
    """The most rows that an honest release is a sum over."""
    if release.held_out:
        # At most half of the rows are held out, by a hash of each.
        return rows + 8 * math.sqrt(rows) + 24
    return plan.batch * largest_batches(plan) if release.sampled else rows
