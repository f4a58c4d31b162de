from __future__ import annotations

import logging
import math
import subprocess
import sys
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_mechanism as mechanism
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.privacy.accounting import api, calibrate, gaussian, pld
from hush.privacy.accounting.pld import Part
from hush.types import Accountant, HushError, Relation
from tests.support.reference_accountant import reference_epsilon


def steps_event(rate: float, z: float, count: int) -> dp.DpEvent:
    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), count)


MIXED = dp.ComposedDpEvent([dp.GaussianDpEvent(20.0), steps_event(0.01, 2.0, 500), dp.NoOpDpEvent()])
EVENTS = [
    steps_event(0.01, 1.0, 1000),
    steps_event(0.001, 3.0, 20_000),
    steps_event(0.5, 20.0, 300),
    steps_event(0.002, 0.4, 50),
    steps_event(0.3, 3.0, 2),
    MIXED,
]


# events


def test_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    assert api.epsilon(dp.NoOpDpEvent(), 1e-5) == 0.0
    assert api.epsilon(dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 0), 1e-5) == 0.0
    for event in (
        dp.NonPrivateDpEvent(),
        dp.GaussianDpEvent(0.0),
        dp.ComposedDpEvent([MIXED, dp.NonPrivateDpEvent()]),
        dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(0.0)),
    ):
        assert api.epsilon(event, 1e-5) == math.inf
        assert api.epsilon(event, 1e-5, accountant="rdp") == math.inf
        assert reference_epsilon(event, 1e-5) == math.inf


def test_the_shape_of_a_composition_does_not_matter() -> None:
    step = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0))
    one = api.epsilon(dp.SelfComposedDpEvent(step, 6), 1e-5)
    assert api.epsilon(dp.ComposedDpEvent([step, dp.SelfComposedDpEvent(step, 5)]), 1e-5) == one
    assert api.epsilon(dp.SelfComposedDpEvent(dp.SelfComposedDpEvent(step, 2), 3), 1e-5) == one
    plain = api.epsilon(dp.GaussianDpEvent(2.0), 1e-5)
    assert api.epsilon(dp.PoissonSampledDpEvent(1.0, dp.GaussianDpEvent(2.0)), 1e-5) == plain
    assert api.epsilon(dp.SelfComposedDpEvent(dp.GaussianDpEvent(4.0), 4), 1e-5) == pytest.approx(plain)


@pytest.mark.parametrize(
    "event",
    [
        dp.LaplaceDpEvent(1.0),
        dp.PoissonSampledDpEvent(0.1, steps_event(0.1, 1.0, 2)),
        dp.PoissonSampledDpEvent(1.5, dp.GaussianDpEvent(1.0)),
        dp.GaussianDpEvent(-1.0),
        dp.GaussianDpEvent(math.nan),
    ],
)
def test_an_event_we_cannot_account_for_is_refused(event: dp.DpEvent) -> None:
    with pytest.raises(HushError, match=r"^event: .*accepted: Gaussian") as refused:
        api.epsilon(event, 1e-5)
    assert "\n" not in str(refused.value)


# epsilon


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
@pytest.mark.parametrize("event", EVENTS)
def test_epsilon_is_that_of_dp_accounting_on_the_same_grid(event: dp.DpEvent, delta: float, relation: Relation) -> None:
    ours, theirs = api.epsilon(event, delta, relation), reference_epsilon(event, delta, relation)
    assert theirs <= ours <= theirs * (1.0 + 1e-4)


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.3, 0.5), (1e-3, 4.0), (0.9, 0.1), (1.0, 2.0)])
def test_one_step_is_that_of_dp_accounting(rate: float, noise: float, direction: gaussian.Direction) -> None:
    eps = np.linspace(-2.0, 6.0, 401)
    kind = mechanism.AdjacencyType[direction.upper()]
    theirs = mechanism.GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=kind).get_delta_for_epsilon(eps)
    ours = np.clip(gaussian.divergences(eps, rate, noise, direction), 0.0, 1.0)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-13)


@pytest.mark.parametrize("event", EVENTS[:4])
def test_renyi_is_looser(event: dp.DpEvent) -> None:
    for delta in (1e-6, 1e-3):
        tight, loose = api.epsilon(event, delta), api.epsilon(event, delta, accountant="rdp")
        assert tight - 1e-3 <= loose <= 2.0 * tight + 0.5


def test_replace_one_of_a_gaussian_is_half_the_noise() -> None:
    event = dp.GaussianDpEvent(2.0)
    exact = dp.get_epsilon_gaussian(1.0, 1e-5)
    assert exact == pytest.approx(4.377, abs=1e-3)
    assert api.epsilon(event, 1e-5, "replace-one") == pytest.approx(exact, rel=1e-9)
    renyi = api.epsilon(event, 1e-5, "replace-one", "rdp")
    assert renyi == api.epsilon(dp.GaussianDpEvent(1.0), 1e-5, "add-remove", "rdp")
    assert exact <= renyi <= 1.1 * exact


def test_renyi_refuses_sampling_under_replace_one() -> None:
    with pytest.raises(HushError, match=r"^accountant: rdp .* accepted here: pld$"):
        api.epsilon(EVENTS[0], 1e-5, "replace-one", "rdp")
    with pytest.raises(HushError, match=r"^accountant: rdp"):
        api.noise_multiplier(1.0, 1e-5, 0.1, 10, "replace-one", "rdp")
    assert api.noise_multiplier(1.0, 1e-5, 1.0, 10, "replace-one", "rdp") > 0.0


def test_sampling_alone_can_keep_the_promise() -> None:
    assert api.epsilon(steps_event(1e-3, 0.05, 5), 5e-3) == 0.0
    assert api.epsilon(steps_event(1e-3, 0.05, 6), 5e-3) > 100.0


def test_a_delta_beyond_the_arithmetic_is_still_an_upper_bound() -> None:
    assert api.epsilon(steps_event(0.01, 1.0, 1000), 1e-14) == math.inf
    assert api.epsilon(dp.GaussianDpEvent(1.0), 1e-14) == pytest.approx(dp.get_epsilon_gaussian(1.0, 1e-14))
    with pytest.raises(HushError, match=r"^epsilon: pld finds no noise"):
        api.noise_multiplier(1.0, 1e-14, 0.01, 1000)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    rate=st.floats(1e-3, 0.9),
    z=st.floats(0.4, 30.0),
    count=st.integers(1, 2000),
    delta=st.sampled_from([1e-6, 1e-4, 1e-2]),
    relation=st.sampled_from(["add-remove", "replace-one"]),
)
def test_epsilon_is_monotone(rate: float, z: float, count: int, delta: float, relation: Relation) -> None:
    def cost(rate: float, z: float, count: int, delta: float) -> float:
        return api.epsilon_after(rate, z, [count], delta, relation)[0]

    base = cost(rate, z, count, delta)
    assert cost(1.1 * rate, z, count, delta) >= base
    assert cost(rate, 1.1 * z, count, delta) <= base
    assert cost(rate, z, count + count // 10 + 1, delta) >= base
    assert cost(rate, z, count, 1.5 * delta) <= base


@settings(deadline=None, max_examples=40, derandomize=True)
@given(rate=st.floats(1e-3, 0.99), z=st.floats(0.1, 50.0), delta=st.floats(1e-7, 0.1))
def test_one_step_by_closed_form_covers_both_directions(rate: float, z: float, delta: float) -> None:
    eps = np.array([api.epsilon_after(rate, z, [1], delta)[0]])
    for direction in ("remove", "add"):
        assert gaussian.divergences(eps, rate, z, direction)[0] <= delta * (1.0 + 1e-9)


def test_epsilon_after_is_the_curve_of_epsilon() -> None:
    counts = [0, 1, 7, 64, 65, 1000]
    curve = api.epsilon_after(0.02, 1.1, counts, 1e-5)
    assert curve == [api.epsilon(steps_event(0.02, 1.1, count), 1e-5) for count in counts]
    assert curve == sorted(curve)
    assert curve[0] == 0.0


# calibration


@pytest.mark.parametrize(("epsilon", "delta", "count"), [(0.1, 1e-6, 1), (1.0, 1e-5, 300), (20.0, 1e-2, 20_000)])
def test_without_sampling_noise_is_the_analytic_gaussian(epsilon: float, delta: float, count: int) -> None:
    exact = math.sqrt(count) * dp.get_sigma_gaussian(epsilon, delta)
    z = api.noise_multiplier(epsilon, delta, 1.0, count)
    assert exact <= z == pytest.approx(exact, rel=1e-6)
    assert api.noise_multiplier(epsilon, delta, 1.0, count, "replace-one") == pytest.approx(2.0 * z)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("client", [(1.0, 1e-5, 0.02, 500), (8.0, 1e-4, 0.2, 20), (0.5, 1e-5, 1.0, 10)])
def test_the_promise_is_kept_and_the_budget_used(
    client: tuple[float, float, float, int], accountant: Accountant
) -> None:
    epsilon, delta, rate, count = client
    z = api.noise_multiplier(*client, "add-remove", accountant)
    assert 0.995 * epsilon <= api.epsilon(steps_event(rate, z, count), delta, accountant=accountant) <= epsilon


def test_noise_is_monotone() -> None:
    def noise(epsilon: float = 2.0, delta: float = 1e-5, rate: float = 0.02, count: int = 400) -> float:
        return api.noise_multiplier(epsilon, delta, rate, count)

    assert noise(epsilon=1.0) > noise() > noise(epsilon=4.0)
    assert noise(delta=1e-6) > noise() > noise(delta=1e-4)
    assert noise(rate=0.04) > noise() > noise(rate=0.01)
    assert noise(count=800) > noise() > noise(count=200)
    assert api.noise_multiplier(2.0, 1e-5, 0.02, 400, "replace-one") > noise()
    assert api.noise_multiplier(2.0, 1e-5, 0.02, 400, accountant="rdp") > noise()


def test_noise_has_a_floor() -> None:
    assert api.noise_multiplier(1.0, 1e-2, 1e-3, 5) == api.LEAST_NOISE
    assert api.noise_multiplier(1.0, 1e-2, 1e-3, 1) == api.LEAST_NOISE
    assert api.noise_multiplier(1.0, 1e-2, 1e-3, 5, "replace-one") == api.LEAST_NOISE
    assert api.noise_multiplier(1.0, 1e-2, 1e-3, 20) > 2.0 * api.LEAST_NOISE


def test_equal_clients_cost_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    search = calibrate.least_noise
    monkeypatch.setattr(calibrate, "least_noise", lambda *args, **more: calls.append(1) or search(*args, **more))  # type: ignore[func-returns-value]
    first, second = (1.2345, 1e-5, 0.05, 100), (2.3456, 1e-5, 0.05, 100)
    noise = api.noise_multipliers([first, second, first, first])
    assert noise[0] == noise[2] == noise[3] > noise[1]
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("budget", "rate", "z", "relation"),
    [(2.0, 0.02, 1.0, "add-remove"), (5.0, 1.0, 50.0, "add-remove"), (1.0, 0.1, 3.0, "replace-one")],
)
def test_affordable_steps_is_the_last_affordable(budget: float, rate: float, z: float, relation: Relation) -> None:
    count = api.affordable_steps(budget, 1e-5, rate, z, relation)
    assert count > 1
    within, beyond = api.epsilon_after(rate, z, [count, count + 1], 1e-5, relation)
    assert within <= budget < beyond


def test_affordable_steps_has_ends() -> None:
    assert api.affordable_steps(0.01, 1e-5, 0.5, 0.6) == 0
    assert api.affordable_steps(1.0, 1e-5, 0.5, 0.001) == 0
    assert api.affordable_steps(20.0, 1e-3, 1e-3, 30.0) == api.MOST_STEPS
    assert api.affordable_steps(1.0, 1e-3, 1e-3, 0.05) == 1


@given(st.floats(1e-3, 1e3), st.floats(0.5, 6.0), st.floats(0.06, 1e3))
def test_the_search_finds_a_power_law_from_anywhere(target: float, power: float, guess: float) -> None:
    least = target ** (-1.0 / power)
    found = calibrate.least_noise(lambda noise: noise**-power, target, guess, floor=1e-9, ceiling=1e9)
    assert found is not None
    assert least * (1.0 - 1e-9) <= found <= least * (1.0 + 1e-3 / min(power, 1.0) + 1e-4)


def test_the_search_copes_with_a_cliff() -> None:
    def cliff(noise: float) -> float:
        return math.inf if noise < 0.7 else 0.0

    found = calibrate.least_noise(cliff, 1.0, 5.0, floor=0.05, ceiling=1e6)
    assert found is not None
    assert 0.7 <= found <= 0.701
    assert calibrate.least_noise(lambda noise: 2.0, 1.0, 5.0, floor=0.05, ceiling=1e6) is None
    assert calibrate.most_steps(lambda count: 0.0 if count < 777 else math.inf, 1.0, 3.0, most=10**6) == 776


@given(st.floats(0.3, 3.0), st.floats(0.1, 1e4), st.floats(0.0, 1e7))
def test_the_most_steps_are_exact(power: float, target: float, guess: float) -> None:
    count = calibrate.most_steps(lambda count: count**power, target, guess, most=10**5)
    assert count == 0 or count**power <= target
    assert count == 10**5 or (count + 1) ** power > target


# manners


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", math.inf),
        ("epsilon", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", "small"),
        ("sample_rate", 0.0),
        ("sample_rate", 1.01),
        ("steps", 0),
        ("steps", 2.5),
        ("steps", math.inf),
        ("relation", "add"),
        ("accountant", "prv"),
    ],
)
def test_a_wrong_argument_is_named(name: str, wrong: Any) -> None:
    arguments = {"epsilon": 1.0, "delta": 1e-5, "sample_rate": 0.1, "steps": 10, name: wrong}
    with pytest.raises(HushError, match=rf"^{name}: .*accepted: ") as refused:
        api.noise_multiplier(**arguments)
    assert "\n" not in str(refused.value)


def test_other_wrong_arguments_are_named() -> None:
    with pytest.raises(HushError, match=r"^delta: "):
        api.epsilon(dp.NoOpDpEvent(), 2.0)
    with pytest.raises(HushError, match=r"^z: "):
        api.affordable_steps(1.0, 1e-5, 0.1, 0.0)
    with pytest.raises(HushError, match=r"^steps: found -1"):
        api.epsilon_after(0.1, 1.0, [3, -1], 1e-5)


def test_whole_numbers_of_any_type_are_accepted() -> None:
    assert api.noise_multiplier(np.int64(1), 1e-5, 0.1, np.int64(10)) == api.noise_multiplier(1.0, 1e-5, 0.1, 10)  # type: ignore[arg-type]


def test_dp_accounting_is_quiet_and_the_loggers_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("absl")
    before = (logger.disabled, logger.level, logging.getLogger().level, list(logging.getLogger().handlers))
    loud = dp.rdp.RdpAccountant().compose(steps_event(0.5, 1.0, 100))
    loud.get_epsilon(1e-5)
    assert caplog.records, "this event no longer provokes a warning"
    caplog.clear()
    api.epsilon(steps_event(0.5, 1.0, 100), 1e-5, accountant="rdp")
    assert not caplog.records
    assert before == (logger.disabled, logger.level, logging.getLogger().level, list(logging.getLogger().handlers))


def test_importing_it_is_cheap() -> None:
    heavy = "{'dp_accounting', 'scipy', 'torch'} & set(sys.modules)"
    code = f"import sys, hush.privacy.accounting.api; sys.exit(str({heavy}) if {heavy} else 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parts_merge_without_changing_the_loss() -> None:
    parts = [Part(1.0, 3.0, 2), Part(0.1, 1.0, 2), Part(1.0, 4.0, 1), Part(0.1, 1.0, 5)]
    plain, sampled = pld.merge(parts)
    assert plain.rate == 1.0
    assert plain.noise == pytest.approx((2 / 9 + 1 / 16) ** -0.5)
    assert sampled == Part(0.1, 1.0, 7)


@pytest.mark.parametrize(("noise", "count", "delta"), [(30.0, 100, 1e-9), (300.0, 20_000, 1e-6), (1.0, 3, 1e-4)])
def test_the_grid_itself_is_right_where_the_truth_is_known(noise: float, count: int, delta: float) -> None:
    parts = (Part(1.0, noise, count),)  # not merged: composed on the grid, although a closed form exists
    for direction, halved in (("remove", 1.0), ("add", 1.0), ("replace", 2.0)):
        exact = dp.get_epsilon_gaussian(noise / halved / math.sqrt(count), delta)
        assert exact <= pld._composed(parts, delta, direction)[0] <= 1.0015 * exact


def test_a_tiny_rate_stays_within_memory() -> None:
    z = api.noise_multiplier(1.0, 1e-7, 1e-6, 10**6)
    assert api.epsilon_after(1e-6, z, [10**6], 1e-7)[0] <= 1.0 < api.epsilon_after(1e-6, 0.99 * z, [10**6], 1e-7)[0]
