"""First round: noise and weights against formulas of the paper, computed anew."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hush.config import parse
from hush.engines.setup import prepare
from hush.privacy.accounting import api
from hush.reproduce import entry
from hush.reproduce.first_round import FIRST_ROUND, trained_updates
from hush.server.loop import enrolled
from hush.types import HushError

BUDGETS = [0.5, 1, 2, 4, 0.5, 1, 2, 4]
BASE = {
    "rounds": 3, "mode": "sound", "data": {"name": "digits", "clients": 8},
    "privacy": {"budgets": BUDGETS},
    "local": {"batch_size": [16, 64, 8, 8, 64, 64, 8, 8], "lr": 0.1},
}  # fmt: skip


def test_weights_by_budget_are_compared_with_those_of_least_noise() -> None:
    config = parse({**BASE, "recipe": {"name": "weiavg"}})
    planned = enrolled(prepare(config).terms).planned_noise.tolist()
    given = [each / sum(BUDGETS) for each in BUDGETS]
    best = [1 / each / sum(1 / other for other in planned) for each in planned]
    found = FIRST_ROUND["first-round-weights"](config, None)
    assert found[""] == pytest.approx(50 * sum(abs(a - b) for a, b in zip(given, best, strict=True)))
    least = 1 / sum(1 / each for each in planned)
    ours = sum(w**2 * each for w, each in zip(given, planned, strict=True))
    assert found["noise over the least"] == pytest.approx(ours / least) and ours / least > 1.05
    assert found["6 largest weights together"] == pytest.approx(100 * sum(sorted(given)[2:]))
    assert "error of the estimates" not in found


@pytest.mark.parametrize(("estimator", "most"), [("declared", 1e-6), ("pairwise", 25.0)])
def test_estimated_weights_are_near_those_of_least_noise(estimator: str, most: float) -> None:
    weight = {"rule": "estimated-noise", "estimator": estimator}
    found = FIRST_ROUND["first-round-weights"](
        parse({**BASE, "recipe": {"name": "robust-hdp", "weight": weight}}), None
    )
    by_budget = FIRST_ROUND["first-round-weights"](parse({**BASE, "recipe": {"name": "weiavg"}}), None)
    assert 0 <= found[""] <= most < by_budget[""] + most
    assert found["noise over the least"] < by_budget["noise over the least"]
    assert ("error of the estimates" in found) == (estimator == "pairwise")


def test_the_planned_noise_is_that_of_the_accountant() -> None:
    config = parse({**BASE, "recipe": {"name": "dp-fedavg"}})
    found = FIRST_ROUND["planned-noise"](config, None)
    plan = prepare(config).schedules[0].plan
    z = api.noise_multiplier(0.5, 1e-4, plan.rate, 3 * plan.steps, plan.relation, plan.accountant)
    assert found[""] == pytest.approx(z, rel=1e-3)
    assert found["N z^2"] == pytest.approx(plan.samples * z**2, rel=2e-3)
    size = prepare(config).model.layout.size
    assert found["noise of the update"] == pytest.approx(
        plan.steps * size * (0.1 * z * plan.clip / plan.batch) ** 2, rel=2e-3
    )


def test_noise_grows_less_than_in_proportion_to_the_sampling_rate() -> None:
    found = entry("robust-hdp/figure-8")
    z = {
        name: FIRST_ROUND[found.metric](
            found.configured(found.chosen([name])[0], "sound", ("data.name=digits",)), None
        )[""]
        for name in ("b=16:n=600", "b=64:n=600")
    }
    assert z["b=16:n=600"] < z["b=64:n=600"] < 4 * z["b=16:n=600"] and math.isfinite(z["b=64:n=600"])


def test_directions_of_updates_that_are_noise_and_of_updates_that_agree() -> None:
    small = {**BASE, "data": {"name": "digits", "clients": 8}, "recipe": {"name": "fedavg"}}
    alike = FIRST_ROUND["first-round-directions"](parse(small), None)
    noisy = FIRST_ROUND["first-round-directions"](
        parse({**small, "privacy": {"budgets": 0.01}, "recipe": {"name": "dp-fedavg"}}), None
    )
    for found in (alike, noisy):
        assert 0 < found[""] < found["in 2 directions"] < found["in 5 directions"] < 100
    # In isotropic noise each of eight directions has an eighth, and the largest somewhat more.
    assert 12.5 < noisy[""] < 45 < alike[""]


def test_directions_are_squares_of_singular_values() -> None:
    config = parse({**BASE, "model": {"name": "logreg"}, "recipe": {"name": "dp-fedavg"}})
    federation = prepare(config)
    updates = trained_updates(federation).double().numpy()
    assert updates.shape == (8, federation.model.layout.size)
    parts = np.split(updates, np.cumsum(federation.model.layout.sizes)[:-1], axis=1)
    squares = [np.linalg.svd(part, compute_uv=False) ** 2 for part in parts]
    expected = 100 * sum(each[0] for each in squares) / sum(each.sum() for each in squares)
    assert FIRST_ROUND["first-round-directions"](config, None)[""] == pytest.approx(expected)


def test_clusters_of_the_first_round_are_those_that_the_recipe_learns() -> None:
    assign = {"rule": "gmm-then-loss", "clusters": 2}
    clear = {
        **BASE,
        "data": {"name": "digits", "clients": 8, "partition": {"name": "rotation", "clusters": [3, 5]}},
        "privacy": {"budgets": 1000.0},
        "local": {"batch_size": 16, "lr": 0.1},
        "recipe": {"name": "rc-dpfl", "assign": assign},
    }
    found = FIRST_ROUND["first-round-clusters"](parse(clear), None)
    assert found[""] == 100 and found["largest overlap"] < 25
    drowned = FIRST_ROUND["first-round-clusters"](parse({**clear, "privacy": {"budgets": 0.001}}), None)
    assert 50 <= drowned[""] < 100
    with pytest.raises(HushError, match="assign = gmm-then-loss"):
        FIRST_ROUND["first-round-clusters"](parse({**BASE, "recipe": {"name": "dp-fedavg"}}), None)


def test_seconds_of_projecting() -> None:
    config = {**BASE, "model": {"name": "logreg"}, "recipe": {"name": "pfa-plus"}}
    found = FIRST_ROUND["projection-seconds"](parse(config), None)
    assert 0 < found[""] < 5 and 0 < found["seconds of a client"] < 5
    with pytest.raises(HushError, match="project = delayed-public-subspace"):
        FIRST_ROUND["projection-seconds"](parse({**BASE, "recipe": {"name": "pfa"}}), None)
