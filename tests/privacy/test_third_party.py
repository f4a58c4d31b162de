from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

import hush
from hush.privacy import third_party
from hush.types import HushError

# The paper's Tables 1 and 4 print the same T: epsilon 3, l = 0.05, s = 0.2, M = 100 users with R = 4,000 training rows.
PRINTED = {
    (10, 1): 542, (10, 5): 488, (10, 10): 428, (10, 20): 324, (10, 40): 72,
    (20, 1): 545, (20, 5): 502, (20, 10): 451, (20, 20): 352, (20, 40): 83,
    (40, 1): 546, (40, 5): 505, (40, 10): 457, (40, 20): 360, (40, 40): 86,
    (80, 1): 546, (80, 5): 506, (80, 10): 458, (80, 20): 362, (80, 40): 87,
    (160, 1): 546, (160, 5): 506, (160, 10): 458, (160, 20): 362, (160, 40): 87,
}  # fmt: skip
# Its epsilons in the text and under its figures: sigma_g, l, K, T, M, R, epsilon.
PRINTED_EPSILON = [
    (60, 0.2, 50, 400, 100, 4000, 13.0),
    (60, 0.2, 100, 400, 100, 4000, 13.0),
    (30, 0.2, 50, 400, 40, 2000, 11.4),
    (30, 0.2, 100, 400, 40, 2000, 11.5),
    (30, 0.2, 50, 100, 60, 800, 7.2),
    (60, 0.05, 50, 400, 100, 4000, 4.2),
]


def missed(R: int = 4000, gain: float = 1.0) -> dict[tuple[int, int], int]:
    """How many rounds more than printed, for each printed figure that is not met."""
    found = {key: third_party.claimed_rounds(3.0, gain * key[0], 0.2, 0.05, key[1], 100, R) for key in PRINTED}
    return {key: found[key] - rounds for key, rounds in PRINTED.items() if found[key] != rounds}


def test_every_printed_number_of_rounds_comes_out() -> None:
    assert missed() == {(160, 5): 1, (160, 10): 1, (160, 20): 1}


def test_another_reading_of_the_paper_would_be_noticed() -> None:
    whole_data = missed(R=5000)
    assert len(whole_data) == 25
    assert max(whole_data.values()) < -1
    without_the_gain_of_the_sum = missed(gain=(0.05 * 100) ** -0.5)
    assert min(without_the_gain_of_the_sum.values()) < -50


@pytest.mark.parametrize(("sigma_g", "ell", "K", "T", "M", "R", "printed"), PRINTED_EPSILON)
def test_every_printed_epsilon_comes_out(
    sigma_g: float, ell: float, K: int, T: int, M: int, R: int, printed: float
) -> None:
    epsilon = third_party.claimed_epsilon(sigma_g, 0.2, ell, K, T, M, R)
    assert math.ceil(10.0 * epsilon) / 10.0 == printed  # the paper rounds up


def test_rounds_are_the_most_that_epsilon_allows() -> None:
    for epsilon, sigma_g, K in [(3.0, 10.0, 5), (0.7, 25.0, 3), (13.0, 60.0, 50), (1.0, 3.0, 1)]:
        rounds = third_party.claimed_rounds(epsilon, sigma_g, 0.1, 0.05, K, 100, 4000)
        assert rounds > 1
        within, beyond = (
            third_party.claimed_epsilon(sigma_g, 0.1, 0.05, K, count, 100, 4000) for count in (rounds, rounds + 1)
        )
        assert within <= epsilon < beyond
    exact = third_party.claimed_epsilon(10.0, 0.2, 0.05, 5, 77, 100, 4000)
    assert third_party.claimed_rounds(exact, 10.0, 0.2, 0.05, 5, 100, 4000) == 77
    assert third_party.claimed_rounds(0.1, 10.0, 0.2, 0.05, 5, 100, 4000) == 0


def test_the_paper_s_epsilon_of_3_is_7_toward_the_server_by_the_same_bound() -> None:
    claim = third_party.claim(10.0, 0.2, 0.05, 5, 488, 100, 4000)
    assert (claim.rounds, claim.seen, claim.delta) == (488, 24, 2.5e-6)
    assert claim.epsilon == pytest.approx(3.0, abs=0.001)
    assert claim.server_epsilon == pytest.approx(7.34, abs=0.005)
    # What no bound can undercut: neighbours whose other rows all pull the other way look like this.
    attained = dp.pld.PLDAccountant(value_discretization_interval=1e-3)
    attained.compose(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(10.0)), 24 * 5)
    assert attained.get_epsilon(2.5e-6) < claim.tight_server_epsilon == pytest.approx(2.08, abs=0.01)


def test_the_claim_carries_what_it_rests_on() -> None:
    claim = third_party.claim(30.0, 0.2, 0.2, 50, 100, 60, 800, delta=1e-5, seen=40)
    assert (claim.delta, claim.seen) == (1e-5, 40)
    stored = json.loads(json.dumps(asdict(claim)))
    assert stored["assumption"] == third_party.ASSUMPTION
    for words in ("the paper's claim", "not proved for K > 1", "drift"):
        assert words in third_party.ASSUMPTION


@pytest.mark.parametrize(("noise", "rate"), [(10.0, 0.2), (1.0, 0.01), (0.7, 0.3), (300.0, 0.9)])
def test_subsampling_is_the_formula_of_the_paper(noise: float, rate: float) -> None:
    found = third_party._subsampled(third_party._gaussian(noise), rate)
    for order in (2, 3, 4, 9, 16):
        square = math.exp(1.0 / noise**2)
        total = 1.0 + 2.0 * rate**2 * math.comb(order, 2) * min(2.0 * (square - 1.0), square)
        for j in range(3, order + 1):
            total += 2.0 * rate**j * math.comb(order, j) * math.exp(j * (j - 1) / (2.0 * noise**2))
        assert found[order - 2] == pytest.approx(math.log(total) / (order - 1), rel=1e-9)


def test_the_bound_for_any_mechanism_is_not_below_the_one_for_gaussians() -> None:
    sharper = RdpAccountant(third_party._ORDERS.tolist(), dp.NeighboringRelation.REPLACE_ONE)
    sharper.compose(dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(3.0)))
    ours = third_party._subsampled(third_party._gaussian(3.0), 0.1)
    assert ours[0] == pytest.approx(sharper.rdp[0])
    assert np.all(ours >= sharper.rdp * (1.0 - 1e-12))


def test_between_whole_orders_there_is_nothing_lower() -> None:
    delta = 2.5e-6
    moments = 488 * third_party._round(10.0, 0.2, 0.05, 5, 100) * (third_party._ORDERS - 1.0)
    fine = np.linspace(0.01, 99.0, 9900)
    between = (np.interp(fine, [0.0, *(third_party._ORDERS - 1.0)], [0.0, *moments]) - math.log(delta)) / fine
    assert third_party.claimed_epsilon(10.0, 0.2, 0.05, 5, 488, 100, 4000) <= between.min() + 1e-12


def test_without_sampling_it_is_the_plain_gaussian() -> None:
    noise, orders = 20.0 * math.sqrt(50), np.arange(2, 101)
    exact = np.min(7 * 10 * orders / (2.0 * noise**2) + math.log(1e5) / (orders - 1))
    assert third_party.claimed_epsilon(20.0, 1.0, 1.0, 7, 10, 50, 100, delta=1e-5) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("sigma_g", 0.0), ("s", 1.2), ("ell", 0.0), ("K", 0), ("T", 1.5), ("M", 0), ("R", math.inf), ("delta", 1.0)],
)
def test_a_wrong_argument_is_named(name: str, wrong: float) -> None:
    setting: dict[str, Any] = {
        "sigma_g": 10.0,
        "s": 0.2,
        "ell": 0.05,
        "K": 5,
        "T": 10,
        "M": 100,
        "R": 4000,
        name: wrong,
    }
    with pytest.raises(HushError, match=rf"^{name}: found .*accepted: ") as refused:
        third_party.claimed_epsilon(**setting)
    assert "\n" not in str(refused.value)


def test_a_run_of_the_papers_kind_shows_the_claim_as_claimed() -> None:
    config = {
        "rounds": 20,
        "participation": 0.2,
        "data": {"clients": 20, "name": "synthetic", "samples": 500},
        "privacy": {"budgets": 4.0, "sampler": "fixed", "relation": "replace-one", "accountant": "rdp"},
        "local": {"batch_size": 80, "steps": 10},
        "recipe": {"name": "dp-scaffold", "protect": {"rule": "dp-sgd", "spread": "equal-noise"}},
    }
    found = hush.preview(config)
    z = found["clients"][0]["noise_multiplier"]
    claimed = third_party.claimed_epsilon(z / 2, 0.2, 0.2, 10, 20, 20, 400)
    assert f"DP-SCAFFOLD would claim epsilon {claimed:.3g}" in found["third_party"]
    assert "not proved for K > 1" in found["third_party"]
    poisson = {**config, "privacy": {"budgets": 4.0}}
    assert "DP-SCAFFOLD" not in hush.preview(poisson)["third_party"], "the paper has no claim about Poisson batches"


def test_the_guarantee_for_a_user_is_that_of_plain_gaussians() -> None:
    """All rows of a user change: no sampling helps, and sigma_g / s is the noise over the sensitivity of a mean."""
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-3)
    accountant.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(5.0 / 0.2), 10 * 24))
    epsilon = third_party.user_epsilon(5.0, 0.2, 10, 24, 1e-5)
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    # The mean of clipped rows of another user altogether is up to two clips away, whatever the batch.
    rng = np.random.default_rng(0)
    one, other = (rng.normal(size=(50, 3)) for _ in range(2))
    clipped = [rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True) / 0.7) for rows in (one, other)]
    furthest = [np.tile([[0.7, 0.0, 0.0]], (50, 1)), np.tile([[-0.7, 0.0, 0.0]], (50, 1))]
    moved = [np.linalg.norm(a[:10].mean(0) - b[:10].mean(0)) for a, b in (clipped, furthest)]
    assert moved[0] < moved[1] == pytest.approx(1.4)
    # The paper accounts for it as for a sampled row at sigma_g, which is more.
    assert third_party.server_epsilon(5.0, 0.2, 10, 24, 100, 4000, 1e-5) > epsilon
    with pytest.raises(HushError):
        third_party.user_epsilon(0.0, 0.2, 10, 24, 1e-5)
