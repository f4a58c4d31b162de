"""Stages and side_releases are calibrated together, and what a round releases is what it costs."""

from __future__ import annotations

import math

import pytest

from hush.privacy.accounting import api
from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import (
    PrivacySchedule,
    RoundSpec,
    StageTable,
    calibrated,
    drafted,
    epsilon,
    first,
    with_noise,
)
from hush.recipes.slots.clusters import ClusterChoice
from hush.recipes.slots.protect import ClipQuantile
from hush.recipes.slots.weight import SampleCount
from hush.types import HushError, Policy, Relation
from tests.support.reference_accountant import reference_epsilon

POLICY = Policy(2.0, 1e-5)
CHOICE = ClusterChoice("cluster choice", 0.3)
CLIPPED = ClipQuantile("clip quantile", 0.1, sampled=True)


def plan(relation: Relation = "add-remove") -> PrivacyPlan:
    return PrivacyPlan(
        samples=1000, batch=50, epochs=1, rounds=1, clip=1.0, noise_multiplier=1.0, relation=relation, accountant="pld"
    )


def mixed(base: PrivacyPlan) -> PrivacySchedule:
    asks = [
        RoundSpec(full_batch=True),
        RoundSpec(),
        RoundSpec(choose=True, side_releases=(CHOICE,)),
        RoundSpec(still=True, side_releases=(CLIPPED,)),
    ]
    return drafted(asks, [1, 20, 10, 4], base)


def test_a_stage_costs_what_its_rounds_release() -> None:
    schedule = with_noise(mixed(plan()), 2.0)
    full, plain, choosing, still = (stage.round_costs for stage in schedule.stages)
    assert all(stage.round_costs is stage.round_costs for stage in schedule.stages)  # computed once
    assert [(c.what, c.rate, c.steps, c.noise) for c in full] == [("model update", 1.0, 1, 2.0)]
    assert [(c.what, c.rate, c.steps, c.noise) for c in plain] == [("model update", 0.05, 20, 2.0)]
    assert [(c.what, c.kind, c.steps) for c in choosing[1:]] == [("cluster choice", "gaussian", 1)]
    assert choosing[1].noise == pytest.approx(2.0 / (0.05 * math.sqrt(20 * 0.3)))
    assert [(c.what, c.kind, c.rate, c.steps) for c in still[1:]] == [("clip quantile", "poisson-gaussian", 0.05, 1)]
    assert still[1].noise == pytest.approx(2.0 / math.sqrt(20 * 0.1))
    assert schedule.stages[2].noise_of("cluster choice") == choosing[1].noise
    assert schedule.stages[1].noise_of("cluster choice") == 0.0
    assert (schedule.rounds, schedule.steps) == (35, 1 + 34 * 20)
    assert schedule.plan == schedule.stages[1].plan


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_all_stages_together_keep_the_budget_and_hardly_less(relation: Relation) -> None:
    policy = Policy(2.0, 1e-5, relation)
    schedule = calibrated(mixed(plan(relation)), policy)
    spent = epsilon(schedule, policy)
    assert 0.99 * policy.epsilon < spent <= policy.epsilon
    import dp_accounting as dp

    event = dp.ComposedDpEvent([cost.event() for cost in schedule.costs()])
    assert reference_epsilon(event, policy.delta, relation) == pytest.approx(spent, rel=5e-3)
    assert epsilon(with_noise(schedule, 0.99 * schedule.plan.noise_multiplier), policy) > policy.epsilon * 0.99


def test_one_stage_is_calibrated_as_a_plan_is() -> None:
    schedule = calibrated(drafted([RoundSpec()], [30], plan()), POLICY)
    assert schedule.plan.noise_multiplier == api.noise_multiplier(2.0, 1e-5, 0.05, 600)


def test_an_aside_makes_training_noisier() -> None:
    alone = calibrated(drafted([RoundSpec()], [30], plan()), POLICY)
    beside = calibrated(drafted([RoundSpec(choose=True, side_releases=(CHOICE,))], [30], plan()), POLICY)
    ratio = beside.plan.noise_multiplier / alone.plan.noise_multiplier
    assert 1.05 < ratio < 1.25, "by about the square root of 1.3"


def test_batches_of_a_fixed_size_are_calibrated_under_replace_one() -> None:
    base = PrivacyPlan(
        samples=1000,
        batch=50,
        epochs=1,
        rounds=1,
        clip=1.0,
        noise_multiplier=1.0,
        relation="replace-one",
        accountant="rdp",
        sampler="fixed",
    )
    policy = Policy(2.0, 1e-5, "replace-one")
    schedule = calibrated(drafted([RoundSpec()], [30], base), policy)
    assert {cost.kind for cost in schedule.costs()} == {"fixed-gaussian"}
    assert 0.98 * 2.0 < epsilon(schedule, policy) <= 2.0
    with pytest.raises(HushError, match=r"privacy\.sampler"):
        PrivacyPlan(
            samples=1000,
            batch=50,
            epochs=1,
            rounds=1,
            clip=1.0,
            noise_multiplier=1.0,
            relation="add-remove",
            accountant="rdp",
            sampler="fixed",
        )


def test_first_keeps_the_rounds_that_are_afforded_in_their_order() -> None:
    order = (0, *[1] * 20, *[2] * 10, *[3] * 4)
    schedule = calibrated(mixed(plan()), POLICY)
    assert first(schedule, order, POLICY) == schedule
    half = first(schedule, order, Policy(1.7, 1e-5))
    counts = [stage.rounds for stage in half.stages]
    assert counts[0] == 1 and counts[3] == 0 and 0 < sum(counts) < 35
    assert epsilon(half, POLICY) <= 1.7
    assert first(schedule, order, Policy(1e-3, 1e-5)).rounds == 0


def test_a_stage_table_groups_equal_rounds() -> None:
    found = StageTable.from_rounds(
        [RoundSpec(train=False), RoundSpec(still=True), RoundSpec(), RoundSpec(), RoundSpec(still=True)]
    )
    assert found.of == (-1, 0, 1, 1, 0)
    assert found.at(3) == RoundSpec()
    counted = StageTable.from_rounds(
        [RoundSpec(train=False, side_releases=(SampleCount("sample count", 1.0),)), RoundSpec()]
    )
    assert counted.of == (0, 1)
    assert (RoundSpec(full_batch=True) | RoundSpec(choose=True, side_releases=(CHOICE,))) == RoundSpec(
        train=True, full_batch=True, still=False, choose=True, side_releases=(CHOICE,)
    )
