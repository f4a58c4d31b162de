"""Third parties: what the server's own noise is worth against them, computed where it is proved and nowhere else."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hush.config import parse
from hush.engines.setup import prepare
from hush.engines.simulator import run as run_federation
from hush.engines.third_party import UNPROVED, with_server_noise
from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.server.loop import enrolled

BASE: dict[str, Any] = {
    "seed": 1,
    "rounds": 5,
    "data": {"name": "digits", "clients": 4},
    "privacy": {"budgets": [0.5, 0.5, 2.0, 8.0], "delta": 1e-4},
    "local": {"lr": 0.2, "batch_size": 32, "steps": 1},
}


def found(deviation: float, recipe: str = "padpfl", **more: Any) -> list[float] | None:
    step = {"rule": "noisy", "deviation": deviation}
    run = prepare(parse({**BASE, "recipe": {"name": recipe, "step": step}, **more}))
    view = enrolled(run.terms)
    return with_server_noise(run.recipe, run.schedules, run.policies, view, run.config.participation)


def test_it_is_the_gaussian_mechanism_of_both_noises() -> None:
    """The multiplier is the noise in the model over what a row can move it by: both written out here."""
    deviation, lr, batch, weight = 0.002, 0.2, 32, 1 / 4
    run = prepare(parse({**BASE, "recipe": {"name": "padpfl"}}))
    computed = found(deviation)
    assert computed is not None
    for client, epsilon in enumerate(computed):
        plan = run.schedules[client].plan
        moves = weight * lr * plan.clip / batch
        noise = math.hypot(moves * plan.noise_multiplier, deviation) / moves
        cost = Cost(what="model update", kind="poisson-gaussian", noise=noise, steps=5, rate=plan.rate)
        assert epsilon == pytest.approx(api.epsilon_of([cost], 1e-4, "add-remove", "pld"), rel=1e-9)


def test_more_noise_is_worth_more_and_none_nothing() -> None:
    budgets = BASE["privacy"]["budgets"]
    little, some, much = (found(deviation) for deviation in (1e-9, 0.002, 1.0))
    assert little is not None
    assert some is not None
    assert much is not None
    assert little == pytest.approx(budgets, rel=0.01)
    assert all(a < b < c for a, b, c in zip(much, some, little, strict=True))


@pytest.mark.parametrize(
    "more",
    [
        {"local": {**BASE["local"], "steps": 2}},
        {"participation": 0.5},
        {"recipe": {"name": "robust-hdp", "step": {"rule": "noisy", "deviation": 0.1}}},
        {"recipe": {"name": "dp-scaffold", "step": {"rule": "noisy", "deviation": 0.1}}},
        {"recipe": {"name": "pfa", "step": {"rule": "noisy", "deviation": 0.1}}},
        {"recipe": {"name": "padpfl", "step": {"rule": "noisy", "deviation": 0.1, "inner": "momentum"}}},
        {"recipe": {"name": "padpfl", "step": {"rule": "two-sided"}}},
        # As many models as clusters are found.
        {
            "recipe": {
                "name": "padpfl",
                "step": {"rule": "noisy", "deviation": 0.1},
                "assign": {"rule": "by-input-mean"},
            },
        },
        # With the noise for the largest budget, clients with a smaller one leave before the end.
        {
            "privacy": {"budgets": [6.0, 6.0, 6.0, 8.0], "delta": 1e-4},
            "recipe": {
                "name": "padpfl",
                "step": {"rule": "noisy", "deviation": 0.1},
                "protect": {"rule": "dp-sgd", "spread": "equal-noise"},
            },
        },
    ],
)
def test_it_is_not_claimed_where_it_is_not_proved(more: dict[str, Any]) -> None:
    run = prepare(parse({**BASE, "recipe": {"name": "padpfl", "step": {"rule": "noisy", "deviation": 0.1}}, **more}))
    assert UNPROVED in run.third_party()


def test_a_server_that_limits_norms_or_weights_claims_nothing() -> None:
    run = prepare(parse({**BASE, "recipe": {"name": "padpfl", "step": {"rule": "noisy", "deviation": 0.1}}}))
    assert "by client, against someone who sees the models alone" in run.third_party()
    limited = replace(run, terms=replace(run.terms, ceiling=lambda clients: 0.3))
    assert UNPROVED in limited.third_party()


def test_nothing_is_claimed_for_a_run_that_a_client_left(tmp_path: Path) -> None:
    """Whoever stays has a larger weight than planned, and the server's noise hides less of what it sends."""
    privacy = {"budgets": [0.5, 0.5, 0.5, 8.0], "lifetime": [0.6, 0.6, 0.6, 20.0], "delta": 1e-4}
    recipe = {"name": "padpfl", "step": {"rule": "noisy", "deviation": 0.002}}
    config = parse({**BASE, "privacy": privacy, "recipe": recipe})
    claims = []
    for _ in range(2):
        done = run_federation(prepare(config, lasting=True), ledgers=tmp_path / "ledgers")
        claims.append({card.third_party for card in done.result.guarantees})
    assert set(done.records[-1].weights) == {3}
    (before,), (after,) = claims
    assert "by client, against someone who sees the models alone" in before
    assert UNPROVED in after
