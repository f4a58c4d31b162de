"""Schedules with noisy counts: the number of rows is disclosed with noise, and nothing else follows from the true one.

Enrolment is charged first, with noise that follows from public numbers alone; training is then planned from the
disclosed number. Rows are sampled at the planned rate whatever their true number, so the plan's cost is exact.

Guarantees:
    - The plans of two clients that disclosed the same number differ only in `samples`, which is never released.
    - Enrolment and training together satisfy the policy.

Edge cases:
    - A disclosed number below the batch size counts as one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hush.config import Config
from hush.engines.schedules import Timetable, privacy_schedules
from hush.privacy.schedule import ENROLMENT, PrivacySchedule, Stage, StageTable
from hush.recipes import Recipe
from hush.recipes.slots.weight import COUNT
from hush.types import HushError, Member

SUPPOSED_BATCHES = 20  # batches of rows that a client is assumed to have before its count is disclosed


def needs_noisy_counts(stage_table: StageTable) -> bool:
    """Whether enrolment asks for a noisy number of rows."""
    stage = stage_table.of[ENROLMENT]
    return stage >= 0 and any(side_release.what == COUNT for side_release in stage_table.specs[stage].side_releases)


def schedules_before_disclosure(
    config: Config, recipe: Recipe, members: Sequence[Member], rounds: Timetable
) -> tuple[PrivacySchedule, ...]:
    """Return schedules before disclosure, which determine the cost of enrolment."""
    if config.privacy.sampler == "fixed" or recipe.protect.fixed_batches:
        text = 'batches of a fixed size require the true number of rows; accepted with noisy counts: "poisson"'
        raise HushError(f"privacy.sampler: {text}", "privacy.sampler")
    return tuple(recipe.protect.schedules(with_supposed_counts(members), rounds.stage_table, rounds.orders, config))


def with_supposed_counts(members: Sequence[Member]) -> tuple[Member, ...]:
    """The members with the number of rows that is assumed before disclosure."""
    return tuple(replace(member, samples=SUPPOSED_BATCHES * member.batch) for member in members)


def schedules_after_disclosure(
    config: Config,
    recipe: Recipe,
    members: Sequence[Member],
    disclosed: Sequence[Member],
    offered: Sequence[PrivacySchedule],
    rounds: Timetable,
) -> tuple[PrivacySchedule, ...]:
    """Return schedules planned from the disclosed counts, for the rows that `members` really have."""
    table = rounds.stage_table
    charged = [offer.stages[table.of[ENROLMENT]].round_costs for offer in offered]
    everyone = range(len(members))
    drafts = privacy_schedules(config, recipe, disclosed, table, rounds.orders, charged, certain=everyone)
    return tuple(with_rows(draft, member.samples) for member, draft in zip(members, drafts, strict=True))


def with_rows(schedule: PrivacySchedule, rows: int) -> PrivacySchedule:
    """Return a schedule for the true number of rows, which changes nothing else."""
    return PrivacySchedule(tuple(on_rows(stage, rows) for stage in schedule.stages))


def with_disclosed_counts(members: Sequence[Member], counts: Sequence[int]) -> tuple[Member, ...]:
    """Return the members as the server knows them, with the disclosed numbers of rows."""
    pairs = zip(members, counts, strict=True)
    return tuple(replace(member, samples=max(count, member.batch)) for member, count in pairs)


def on_rows(stage: Stage, rows: int) -> Stage:
    """Return a stage for the true number of rows, which changes nothing else."""
    return replace(stage, plan=replace(stage.plan, samples=rows, disclosed=stage.plan.counted))
