"""Random schedules before four judges who share no code with `hush.privacy.accounting.pld`.

The judges: dp_accounting's Renyi accountant (never below us), its PLD on a grid half as fine again as ours, the PRV
accountant of Opacus, and the closed form of the Gaussian. Every check is also shown a wrong accountant. The judges' own
grids were chosen for speed: next to grids two and four times finer they are wrong by at most a tenth of what the checks
allow, which a test holds them to.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant

from hush.privacy.accounting import api, events, gaussian, pld
from hush.privacy.accounting.cost import Cost
from hush.seeds import rng
from hush.types import Relation
from tests.support.reference_accountant import composed


class Schedule(NamedTuple):
    """A composition of (rate, noise, steps), a few kinds of them."""

    parts: tuple[tuple[float, float, int], ...]
    delta: float

    def event(self, *, rate: float = 1.0, noise: float = 1.0, steps: int = 0) -> dp.DpEvent:
        """The composition, with rates and noise scaled and a share of 1 / `steps` of the steps added."""
        return composed(
            Cost(
                what="x",
                kind="poisson-gaussian",
                noise=noise * z,
                steps=count + (count // steps + 1 if steps else 0),
                rate=min(1.0, rate * q),
            )
            for q, z, count in self.parts
        )


Cost_of = Callable[[dp.DpEvent, float, Relation], float]


def schedules(count: int, seed: int, *, most_parts: int = 3, hard: bool = False) -> list[Schedule]:
    """Random ones; `hard` has lower rates and less noise, where the judges take their time."""
    least_rate, least_noise = (-3.0, 0.4) if hard else (-2.3, 0.7)
    draw = rng(seed, "schedules")
    drawn = []
    for _ in range(count):
        kinds = int(draw.integers(1, most_parts + 1))
        parts = []
        for _ in range(kinds):
            rate = 1.0 if draw.random() < 0.2 else float(10 ** draw.uniform(least_rate, -0.1))
            steps = int(10 ** draw.uniform(0.0, 3.3))
            # Where epsilon is neither nothing nor everything, by the central limit theorem.
            share = 10 ** draw.uniform(-1.3, 0.3) / math.sqrt(kinds * steps)
            noise = 1.0 / share if rate == 1.0 else math.log1p((share / rate) ** 2) ** -0.5
            parts.append((rate, max(noise, least_noise), steps))
        drawn.append(Schedule(tuple(parts), float(10 ** draw.uniform(-7.0, -3.0))))
    return drawn


def close(ours: float, theirs: float) -> bool:
    return abs(ours - theirs) <= max(0.01, 0.01 * theirs)


def within_renyi(ours: float, schedule: Schedule) -> bool:
    return ours <= api.epsilon(schedule.event(), schedule.delta, "add-remove", "rdp") + 1e-3


def within_prv(ours: float, schedule: Schedule) -> bool:
    return close(ours, prv_epsilon(schedule))


def within_fine_pld(ours: float, schedule: Schedule, relation: Relation = "add-remove") -> bool:
    return close(ours, fine_epsilon(schedule, relation))


@functools.cache
def prv_epsilon(schedule: Schedule, error: float = 0.02) -> float:
    """Opacus's own estimate, without what it adds for the grid that belongs to an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(z, q, count) for q, z, count in schedule.parts]
        return float(accountant.get_epsilon(schedule.delta, eps_error=error)) - error


@functools.cache
def fine_epsilon(schedule: Schedule, relation: Relation, fineness: float = 1.5) -> float:
    direction: gaussian.Direction = "replace" if relation == "replace-one" else "remove"
    accountant = PLDAccountant(
        dp.NeighboringRelation.REPLACE_ONE if relation == "replace-one" else dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        pld.interval(pld.merge([pld.Part(*part) for part in schedule.parts]), direction) / fineness,
    )
    plain = sum(count / z**2 for q, z, count in schedule.parts if q == 1.0)
    if plain:
        accountant.compose(dp.GaussianDpEvent(plain**-0.5))
    for q, z, count in schedule.parts:
        if q < 1.0:
            accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), count)
    return float(accountant.get_epsilon(schedule.delta))


JUDGES = {"renyi": within_renyi, "prv": within_prv, "pld": within_fine_pld}


def objections(ours: float, schedule: Schedule) -> list[str]:
    return [name for name, holds in JUDGES.items() if not holds(ours, schedule)]


def epsilon(schedule: Schedule, relation: Relation = "add-remove") -> float:
    return api.epsilon(schedule.event(), schedule.delta, relation)


QUICK = schedules(60, 1)
# Loud enough that a small mistake is more than the tolerance, and sampled throughout.
TELLING = [s for s in QUICK if 0.5 < epsilon(s) < 3.0 and all(q < 0.5 for q, _, _ in s.parts)][:6]


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_the_fine_grid_agrees(start: int) -> None:
    for schedule in QUICK[start : start + 10]:
        assert within_fine_pld(epsilon(schedule), schedule), schedule


@pytest.mark.parametrize("start", range(0, 20, 5))
def test_renyi_is_never_below(start: int) -> None:
    for schedule in QUICK[start : start + 5]:
        assert within_renyi(epsilon(schedule), schedule), schedule


@pytest.mark.parametrize("schedule", schedules(8, 2, most_parts=2))
def test_opacus_agrees(schedule: Schedule) -> None:
    pytest.importorskip("opacus")
    assert within_prv(epsilon(schedule), schedule)


@pytest.mark.parametrize("schedule", schedules(10, 3))
def test_the_fine_grid_agrees_under_replace_one(schedule: Schedule) -> None:
    assert within_fine_pld(epsilon(schedule, "replace-one"), schedule, "replace-one")


@pytest.mark.parametrize("schedule", TELLING)
def test_a_rate_that_is_wrong_by_five_percent_is_noticed(schedule: Schedule) -> None:
    for rate in (0.95, 1.05):
        assert not within_fine_pld(api.epsilon(schedule.event(rate=rate), schedule.delta), schedule), (
            "the check would let a wrong rate pass"
        )


def test_a_forgotten_factor_of_two_is_noticed() -> None:
    assert len(TELLING) == 6
    for schedule in TELLING:
        assert not within_fine_pld(epsilon(schedule, "add-remove"), schedule, "replace-one")
        assert not within_renyi(api.epsilon(schedule.event(noise=0.5), schedule.delta), schedule)


def test_opacus_would_notice_both() -> None:
    pytest.importorskip("opacus")
    for schedule in TELLING[:3]:
        assert not within_prv(api.epsilon(schedule.event(rate=0.95), schedule.delta), schedule)
        assert not within_prv(api.epsilon(schedule.event(noise=0.5), schedule.delta), schedule)


def closed_form_agrees(schedule: Schedule, relation: Relation) -> bool:
    """Whether the schedule with full batches, and with nearly full ones, costs what the closed form says."""
    full = Schedule(tuple((1.0, 3.0 * z * math.sqrt(count), count) for _, z, count in schedule.parts), schedule.delta)
    noise = sum(count / z**2 for _, z, count in full.parts) ** -0.5 / (2.0 if relation == "replace-one" else 1.0)
    exact = dp.get_epsilon_gaussian(noise, schedule.delta)
    found = api.epsilon(full.event(), schedule.delta, relation)
    # Just below a full batch nothing is merged or looked up: the grid itself has to find the same.
    near = api.epsilon(full.event(rate=1.0 - 1e-9), schedule.delta, relation)
    wrong = dp.get_epsilon_gaussian(noise * 1.05, schedule.delta)
    assert exact < 0.5 or not close(found, wrong), "the check would let a wrong noise pass"
    return found == pytest.approx(exact, rel=1e-6, abs=1e-9) and close(near, exact)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_closed_form_agrees_at_and_near_full_batches(relation: Relation) -> None:
    for schedule in QUICK:
        assert closed_form_agrees(schedule, relation)


def broken(cost: Cost_of, schedule: Schedule, relation: Relation = "add-remove") -> list[str]:
    """What fails of: more noise costs less, larger batches and more rounds cost more."""

    def change(**scaled: Any) -> float:
        return cost(schedule.event(**scaled), schedule.delta, relation)

    base = change()
    holds = {"noise": change(noise=1.1) < base, "rounds": base < change(steps=10)}
    if any(q < 1.0 for q, _, _ in schedule.parts):
        holds["batch"] = base < change(rate=1.1)
    return [name for name, kept in holds.items() if not kept]


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_epsilon_is_monotone_in_noise_rounds_and_batch(relation: Relation) -> None:
    assert [schedule for schedule in QUICK if broken(api.epsilon, schedule, relation)] == []


def test_noise_scaled_by_the_rate_is_noticed_as_not_monotone() -> None:
    def wrong(event: dp.DpEvent, delta: float, relation: Relation) -> float:
        parts = [part for part in events.parts_of(event) if isinstance(part, pld.Part)]
        costs = [
            Cost(
                what="x", kind="poisson-gaussian", noise=50.0 * part.noise * part.rate, steps=part.steps, rate=part.rate
            )
            for part in parts
        ]
        return api.epsilon(composed(costs), delta, relation)

    assert [broken(wrong, schedule) for schedule in TELLING] == [["batch"]] * len(TELLING)


@pytest.mark.parametrize("schedule", schedules(3, 5, hard=True))
def test_the_judges_grids_are_fine_enough(schedule: Schedule) -> None:
    """Grids that they could be asked for instead give the same, to a tenth of what agreeing means."""
    pytest.importorskip("opacus")
    scale = max(1.0, fine_epsilon(schedule, "add-remove"))
    assert abs(prv_epsilon(schedule) - prv_epsilon(schedule, 0.005)) < 1e-3 * scale
    assert abs(fine_epsilon(schedule, "add-remove") - fine_epsilon(schedule, "add-remove", 3.0)) < 1e-3 * scale


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 150))
def test_five_hundred_schedules_before_all_judges(seed: int) -> None:
    pytest.importorskip("opacus")
    for number, schedule in enumerate(schedules(10, seed, most_parts=2 + (seed % 5 == 0), hard=True)):
        assert objections(epsilon(schedule), schedule) == [], schedule
        assert broken(api.epsilon, schedule) == [], schedule
        assert closed_form_agrees(schedule, "replace-one" if number % 2 else "add-remove")
        if number % 5 == 0:
            assert within_fine_pld(epsilon(schedule, "replace-one"), schedule, "replace-one"), schedule
