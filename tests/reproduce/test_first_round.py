"""First round: noise and weights against formulas of the paper, computed anew."""

from __future__ import annotations

import math

import pytest

from hush.config import parse
from hush.engines.setup import prepare
from hush.privacy.accounting import api
from hush.reproduce import entry
from hush.reproduce.first_round import FIRST_ROUND
from hush.server.loop import enrolled

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
