"""The privacy filter: what equal and other schedules cost, and that conversions dominate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hush.privacy.accounting import api, gaussian, pld, privacy_filter
from hush.privacy.accounting.events import Fixed
from hush.privacy.accounting.pld import Part
from hush.privacy.accounting.privacy_filter import Conversion, State
from hush.types import Accountant, Policy, Relation

DELTA = 1e-5
KINDS = [(0.1, 200), (0.01, 1000), (1.0, 20), (0.05, 60), (0.5, 2)]


def schedule(kind: tuple[float, int], epsilon: float, relation: Relation = "add-remove", parts: int = 1) -> tuple[Part]:
    noise = api.noise_multiplier(epsilon, DELTA, kind[0], parts * kind[1], relation)
    return (Part(kind[0], noise, kind[1]),)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_ten_equal_runs_cost_a_thousandth_more_than_by_fixed_composition(
    kind: tuple[float, int], epsilon: float, relation: Relation
) -> None:
    policy, one = Policy(epsilon, DELTA, relation), schedule(kind, epsilon, relation, 10)
    found = privacy_filter.bound(privacy_filter.of_schedules([one] * 10, policy, "pld"), policy, "pld")
    fixed = pld.epsilon([one[0]._replace(steps=10 * one[0].steps)], DELTA, relation)
    assert fixed <= found * (1 + 1e-9)
    assert found <= 1.001 * fixed


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_schedule_that_fills_the_budget_is_admitted_and_nothing_after_it(kind: tuple[float, int]) -> None:
    policy, one = Policy(1.0, DELTA), schedule(kind, 1.0)
    fixed = pld.epsilon(one, DELTA, "add-remove")
    whole = State(one, one)
    assert privacy_filter.fits(whole, fixed, policy, "pld")
    for more in (one, schedule((0.2, 50), 0.5)):
        after = privacy_filter.after(whole, more, policy, "pld")
        assert not privacy_filter.fits(after, 0.99, policy, "pld")


@pytest.mark.parametrize(
    ("first", "second", "most"),
    [((0.1, 200), (0.2, 100), 0.01), ((0.01, 1000), (0.1, 100), 0.04), ((1.0, 20), (0.1, 100), 0.02)],
)
def test_another_schedule_costs_little_more(first: tuple[float, int], second: tuple[float, int], most: float) -> None:
    policy, pair = Policy(4.0, DELTA), [schedule(first, 2.0), schedule(second, 2.0)]
    found = privacy_filter.bound(privacy_filter.of_schedules(pair, policy, "pld"), policy, "pld")
    fixed = pld.epsilon([*pair[0], *pair[1]], DELTA, "add-remove")
    assert fixed <= found <= (1.0 + most) * fixed


def test_a_conversion_dominates_and_one_unit_less_does_not() -> None:
    """By closed forms where there are: Gaussian units and one sampled step."""
    policy, first, step = Policy(5.0, DELTA), (Part(1.0, 4.0, 10),), Part(0.3, 2.0, 1)
    cost = privacy_filter.convert(State(first, first), (step,), policy, "pld")
    eps = np.linspace(0.0, 12.0, 4000)

    def below(precision: float) -> bool:
        units = gaussian.divergences(eps, 1.0, 1.0 / math.sqrt(precision), "remove")
        found = [gaussian.divergences(eps, step.rate, step.noise, way) for way in ("remove", "add")]
        return all(bool((one <= cost.doubt + (1 - cost.doubt) * units).all()) for one in found)

    assert below(cost.units)
    assert not below(0.9 * cost.units)


def test_weaker_steps_cost_as_many_units_and_no_doubt() -> None:
    first = (Part(0.5, 1.0, 4),)
    cost = privacy_filter.convert(State(first, first), (Part(0.4, 1.3, 3),), Policy(30.0, DELTA), "pld")
    assert cost == Conversion(3.0, 0.0) or cost.units < 3.0


def test_the_other_steps_of_a_schedule_come_in_proportion() -> None:
    first = (Part(0.1, 2.0, 100), Part(1.0, 30.0, 1))
    assert privacy_filter._units(first, (Part(0.1, 2.0, 7), Part(1.0, 30.0, 1)), 0.0) == 7
    assert privacy_filter._units(first, (Part(1.0, 30.0, 2),), 0.0) == 101
    assert privacy_filter._chain(first, 101) == (Part(0.1, 2.0, 101), Part(1.0, 30.0, 2))
    assert privacy_filter._chain(first, 3) == (Part(0.1, 2.0, 3), Part(1.0, 30.0, 1))


@pytest.mark.parametrize("accountant", ["rdp", "rdp-64"])
def test_the_renyi_filter_keeps_one_order(accountant: Accountant) -> None:
    policy, one = Policy(3.0, DELTA), (Part(0.1, 4.0, 100),)
    ten = privacy_filter.bound(State(one, (one[0]._replace(steps=1000),)), policy, accountant)
    fixed = api._spent((one[0]._replace(steps=1000),), DELTA, "add-remove", accountant)
    assert fixed <= ten <= 1.1 * fixed
    whole = Policy(fixed, DELTA)
    many = (one[0]._replace(steps=1000),)
    assert privacy_filter.bound(State(many, many), whole, accountant) == pytest.approx(fixed, rel=1e-9)


def test_fixed_batches_are_counted_by_the_renyi_filter() -> None:
    policy, first = Policy(5.0, DELTA, "replace-one"), (Fixed(1000, 50, 3.0, 100),)
    found = privacy_filter.bound(State(first, first), policy, "rdp")
    assert api._spent(first, DELTA, "replace-one", "rdp") <= found < math.inf


def test_no_noise_costs_everything() -> None:
    policy, first = Policy(1.0, DELTA), (Part(0.1, 4.0, 10),)
    assert privacy_filter.convert(State(first, first), (Part(0.5, 0.0, 1),), policy, "pld").units == math.inf
    assert privacy_filter.bound(State((Part(1.0, 0.0, 1),)), policy, "pld") == math.inf
