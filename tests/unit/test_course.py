"""Stages and asides are calibrated together, and what a round releases is what it costs."""

from __future__ import annotations

import math

import pytest

from hush.privacy import accounting
from hush.privacy.course import Aside, Ask, Course, calibrated, drafted, epsilon, first, outlined, with_noise
from hush.privacy.events import reference_epsilon
from hush.privacy.plan import PrivacyPlan
from hush.types import HushError, Policy, Relation

POLICY = Policy(2.0, 1e-5)
CHOICE = Aside("cluster choice", 0.3)
CLIPPED = Aside("clip quantile", 0.1, sampled=True)


def plan(relation: Relation = "add-remove") -> PrivacyPlan:
    return PrivacyPlan(1000, 50, 1, 1, 1.0, 1.0, relation, "pld")


def mixed(base: PrivacyPlan) -> Course:
    asks = [Ask(full_batch=True), Ask(), Ask(choose=True, asides=(CHOICE,)), Ask(still=True, asides=(CLIPPED,))]
    return drafted(asks, [1, 20, 10, 4], base)


def test_a_stage_costs_what_its_rounds_release() -> None:
    course = with_noise(mixed(plan()), 2.0)
    full, plain, choosing, still = (stage.costs() for stage in course.stages)
    assert [(c.what, c.rate, c.steps, c.noise) for c in full] == [("model update", 1.0, 1, 2.0)]
    assert [(c.what, c.rate, c.steps, c.noise) for c in plain] == [("model update", 0.05, 20, 2.0)]
    assert [(c.what, c.kind, c.steps) for c in choosing[1:]] == [("cluster choice", "gaussian", 1)]
    assert choosing[1].noise == pytest.approx(2.0 / (0.05 * math.sqrt(20 * 0.3)))
    assert [(c.what, c.kind, c.rate, c.steps) for c in still[1:]] == [("clip quantile", "poisson-gaussian", 0.05, 1)]
    assert still[1].noise == pytest.approx(2.0 / math.sqrt(20 * 0.1))
    assert course.stages[2].noise_of("cluster choice") == choosing[1].noise
    assert course.stages[1].noise_of("cluster choice") == 0.0
    assert (course.rounds, course.steps) == (35, 1 + 34 * 20)
    assert course.plan == course.stages[1].plan


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_all_stages_together_keep_the_budget_and_hardly_less(relation: Relation) -> None:
    policy = Policy(2.0, 1e-5, relation)
    course = calibrated(mixed(plan(relation)), policy)
    spent = epsilon(course, policy)
    assert 0.99 * policy.epsilon < spent <= policy.epsilon
    import dp_accounting as dp

    event = dp.ComposedDpEvent([cost.event() for cost in course.costs()])
    assert reference_epsilon(event, policy.delta, relation) == pytest.approx(spent, rel=5e-3)
    assert epsilon(with_noise(course, 0.99 * course.plan.noise_multiplier), policy) > policy.epsilon * 0.99


def test_one_stage_is_calibrated_as_a_plan_is() -> None:
    course = calibrated(drafted([Ask()], [30], plan()), POLICY)
    assert course.plan.noise_multiplier == accounting.noise_multiplier(2.0, 1e-5, 0.05, 600)


def test_an_aside_makes_training_noisier() -> None:
    alone = calibrated(drafted([Ask()], [30], plan()), POLICY)
    beside = calibrated(drafted([Ask(choose=True, asides=(CHOICE,))], [30], plan()), POLICY)
    ratio = beside.plan.noise_multiplier / alone.plan.noise_multiplier
    assert 1.05 < ratio < 1.25, "by about the square root of 1.3"


def test_batches_of_a_fixed_size_are_calibrated_under_replace_one() -> None:
    base = PrivacyPlan(1000, 50, 1, 1, 1.0, 1.0, "replace-one", "rdp", sampler="fixed")
    policy = Policy(2.0, 1e-5, "replace-one")
    course = calibrated(drafted([Ask()], [30], base), policy)
    assert {cost.kind for cost in course.costs()} == {"fixed-gaussian"}
    assert 0.98 * 2.0 < epsilon(course, policy) <= 2.0
    with pytest.raises(HushError, match=r"privacy\.sampler"):
        PrivacyPlan(1000, 50, 1, 1, 1.0, 1.0, "add-remove", "rdp", sampler="fixed")


def test_first_keeps_the_rounds_that_are_afforded_in_their_order() -> None:
    order = (0, *[1] * 20, *[2] * 10, *[3] * 4)
    course = calibrated(mixed(plan()), POLICY)
    assert first(course, order, POLICY) == course
    half = first(course, order, Policy(1.7, 1e-5))
    counts = [stage.rounds for stage in half.stages]
    assert counts[0] == 1 and counts[3] == 0 and 0 < sum(counts) < 35
    assert epsilon(half, POLICY) <= 1.7
    assert first(course, order, Policy(1e-3, 1e-5)).rounds == 0


def test_an_outline_groups_equal_rounds() -> None:
    found = outlined([Ask(train=False), Ask(still=True), Ask(), Ask(), Ask(still=True)])
    assert found.of == (-1, 0, 1, 1, 0)
    assert found.at(3) == Ask()
    counted = outlined([Ask(train=False, asides=(Aside("sample count", 1.0),)), Ask()])
    assert counted.of == (0, 1)
    assert (Ask(full_batch=True) | Ask(choose=True, asides=(CHOICE,))) == Ask(True, True, False, True, (CHOICE,))
