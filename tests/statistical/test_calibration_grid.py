"""Calibrated noise against dp_accounting's PLD on a fine grid, and epsilon against the PRV accountant of Opacus."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as dp_pld

from hush.privacy.accounting import api
from hush.seeds import rng
from hush.types import Relation

Client = tuple[float, float, float, int]

CORNERS: list[Client] = [
    (0.1, 1e-6, 1e-3, 20_000),
    (0.1, 1e-2, 1e-3, 20_000),
    (20.0, 1e-6, 1e-3, 1),
    (20.0, 9.9e-4, 1e-3, 1),
    (20.0, 1e-6, 1e-3, 20_000),
    (20.0, 1e-2, 1e-3, 20_000),
    (0.1, 1e-6, 1e-3, 1),
    (0.1, 9e-3, 1e-3, 10),
    (20.0, 1e-6, 0.5, 2),
    (20.0, 1e-2, 0.5, 20_000),
    (0.1, 1e-6, 0.999, 20_000),
    (0.1, 1e-2, 0.999, 1),
    (20.0, 1e-2, 0.999, 3),
    (1.0, 1e-5, 0.05, 2),
    (0.1, 1e-6, 1.0, 1),
    (0.1, 1e-2, 1.0, 20_000),
    (20.0, 1e-6, 1.0, 20_000),
    (20.0, 1e-2, 1.0, 1),
]


def random_clients(count: int, seed: int) -> list[Client]:
    draw = rng(seed, "calibration grid")
    low = np.log([0.1, 1e-6, 1e-3, 1.0])
    high = np.log([20.0, 1e-2, 1.0, 20_000.0])
    rows = np.exp(draw.uniform(low, high, (count, 4)))
    return [(float(e), float(d), float(q), round(float(t))) for e, d, q, t in rows]


def step_deviation(rate: float, z: float) -> float:
    """The standard deviation of one step's loss, straight from the two densities."""
    x = np.linspace(-9.0 * z, 1.0 + 9.0 * z, 4001)
    with_it, without = np.exp(-0.5 * ((x - 1.0) / z) ** 2), np.exp(-0.5 * (x / z) ** 2)
    weights = (1.0 - rate) * without + rate * with_it
    weights /= weights.sum()
    with np.errstate(divide="ignore"):
        loss = np.logaddexp(np.log(1.0 - rate), math.log(rate) + (x - 0.5) / z**2)
    return math.sqrt(weights @ (loss - weights @ loss) ** 2)


def keeps(z: float, client: Client, relation: Relation) -> bool:
    """Whether dp_accounting, on a grid three times finer than ours, finds the promise kept with noise `z`."""
    epsilon, delta, rate, steps = client
    if rate == 1.0:
        z, steps = z / math.sqrt(steps), 1
    # Epsilon is a grid point, where the discretisation of a single step is exact.
    interval = epsilon / math.ceil(epsilon / (0.03 * step_deviation(rate, z)))
    one = dp_pld.from_gaussian_mechanism(
        z,
        value_discretization_interval=interval,
        log_mass_truncation_bound=math.log(1e-8 * delta / steps),
        sampling_prob=rate,
        neighboring_relation=(
            NeighboringRelation.REPLACE_ONE if relation == "replace-one" else NeighboringRelation.ADD_OR_REMOVE_ONE
        ),
    )
    return bool(one.self_compose(steps, 1e-8 * delta).get_delta_for_epsilon(epsilon) <= delta)


def verdict(z: float, client: Client, relation: Relation) -> str:
    """What is wrong with this noise, if anything."""
    if not keeps(z, client, relation):
        return "too little"
    if z > api.LEAST_NOISE and keeps(z / 1.01, client, relation):
        return "too much"
    return "right"


@pytest.mark.parametrize("client", CORNERS + random_clients(22, 1), ids=lambda c: "-".join(f"{v:.3g}" for v in c))
def test_noise_is_enough_and_at_most_one_percent_more(client: Client) -> None:
    assert verdict(api.noise_multiplier(*client), client, "add-remove") == "right"


@pytest.mark.parametrize("client", random_clients(8, 2), ids=lambda c: "-".join(f"{v:.3g}" for v in c))
def test_the_same_for_replace_one(client: Client) -> None:
    assert verdict(api.noise_multiplier(*client, "replace-one"), client, "replace-one") == "right"


@pytest.mark.parametrize("client", CORNERS[:2] + CORNERS[4:6] + random_clients(4, 1))
def test_two_percent_off_is_noticed(client: Client) -> None:
    z = api.noise_multiplier(*client)
    assert verdict(0.98 * z, client, "add-remove") == "too little"
    assert verdict(1.02 * z, client, "add-remove") == "too much"


def test_replace_one_needs_more_than_add_remove_grants() -> None:
    client = (2.0, 1e-5, 0.02, 500)
    assert verdict(api.noise_multiplier(*client), client, "replace-one") == "too little"


@functools.cache
def prv_epsilon(rate: float, z: float, steps: int, delta: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(z, rate, steps)]
        return float(accountant.get_epsilon(delta, eps_error=0.005))


PRV_POINTS = [
    (0.01, 1.0, 500, 1e-5),
    (0.01, 1.5, 1000, 1e-5),
    (0.001, 1.0, 2000, 1e-6),
    (0.1, 2.0, 200, 1e-5),
    (0.02, 0.8, 100, 1e-4),
    (0.05, 3.0, 500, 1e-6),
    (0.01, 0.6, 30, 1e-5),
    (0.2, 1.5, 50, 1e-3),
    (0.001, 0.7, 500, 1e-5),
    (0.9, 10.0, 100, 1e-5),
    (0.3, 5.0, 100, 1e-4),
    (0.005, 1.2, 1000, 1e-5),
    (0.05, 1.0, 50, 1e-2),
    (0.1, 4.0, 20, 1e-5),
    (0.02, 6.0, 2000, 1e-6),
]


def agrees(ours: float, theirs: float) -> bool:
    return abs(ours - theirs) <= max(0.01, 0.01 * theirs)


@pytest.mark.parametrize(("rate", "z", "steps", "delta"), PRV_POINTS)
def test_an_independent_accountant_agrees(rate: float, z: float, steps: int, delta: float) -> None:
    pytest.importorskip("opacus")
    assert agrees(api.epsilon_after(rate, z, [steps], delta)[0], prv_epsilon(rate, z, steps, delta))


def test_the_independent_accountant_would_notice_a_wrong_rate() -> None:
    pytest.importorskip("opacus")
    noticed = [
        not agrees(api.epsilon_after(0.95 * rate, z, [steps], delta)[0], prv_epsilon(rate, z, steps, delta))
        for rate, z, steps, delta in PRV_POINTS[:4]
    ]
    assert all(noticed)
