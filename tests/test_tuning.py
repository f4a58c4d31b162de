"""Tuning inside the budget: what all candidates and their evaluation spend, what a row moves, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant

from hush import HushError, Simulation
from hush import tuning as tuning_module
from hush.privacy import noise
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger.statement import describe, export
from hush.tuning import SCORES, bound, noised_scores

GRID = {"lr": [0.05, 0.8]}
BUDGETS = [0.5, 2.0, 8.0]


def simulation(**more: Any) -> Simulation:
    given: dict[str, Any] = {"epsilon": BUDGETS, "delta": 1e-4, "clients": 3, "rounds": 2, "recipe": "dp-fedavg"}
    return Simulation("digits", "logreg", **{**given, "partition": "iid", "batch_size": 32, "lr": 0.1, **more})


def independent_epsilon(costs: list[Cost], delta: float) -> float:
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for cost in costs:
        accountant.compose(cost.event())
    return float(accountant.get_epsilon(delta))


def charges(path: Path) -> list[Cost]:
    rows = [row for row in export(path) if row["kind"] == "RESERVED"]
    return [Cost(**{**cost, "groups": ()}) for row in rows for cost in json.loads(row["detail"])]


@pytest.mark.slow
def test_every_charge_of_all_candidates_is_in_the_ledger_and_within_the_budget(tmp_path: Path) -> None:
    found = simulation().sweep(GRID, within_budget=True, ledgers=tmp_path / "ledgers", out=tmp_path / "out")
    for client, budget in enumerate(BUDGETS):
        path = tmp_path / "ledgers" / f"client-{client}.ledger"
        described, costs = describe(path), charges(path)
        updates = [cost for cost in costs if cost.what == "model update"]
        assert len(updates) == 2 * 2 and len(costs) == 5 and sum(cost.what == SCORES for cost in costs) == 1
        # One schedule, fixed beforehand: nothing is converted, and the filter counts what fixed composition does.
        assert described["filtered"] == described["spent"] and not described["planned"]["converted"]
        assert 0.97 * budget < described["spent"] <= budget
        assert independent_epsilon(costs, 1e-4) <= budget
        # One candidate fewer would leave a good part of the budget: none of the charges is decoration.
        assert independent_epsilon(costs[1:], 1e-4) < 0.9 * budget
    facts = json.loads((tmp_path / "out" / "tuning.json").read_bytes())
    assert facts["chosen"] == found.facts["tuning"]["chosen"] and facts["whole_score"] is None
    cards = [json.loads(path.read_bytes())["guarantees"] for path in (tmp_path / "out").glob("*/seed-*/result.json")]
    assert len(cards) == 2
    assert all(
        card["rounds"] == 5 and card["epsilon_budget"] == BUDGETS[card["client"]] for each in cards for card in each
    )
    with pytest.raises(HushError, match="budget"):
        simulation().sweep(GRID, within_budget=True, ledgers=tmp_path / "ledgers")


@pytest.mark.slow
def test_the_price_is_reported_and_the_better_candidate_is_chosen() -> None:
    found = simulation(epsilon=20.0, rounds=5).sweep({"lr": [1e-5, 0.5]}, within_budget=True)
    facts = found.facts["tuning"]
    assert facts["chosen"] == "local.lr=0.5" and found["chosen"] == (True, False)
    assert 1.05 < facts["noise_ratio"][0] < 1.5 and facts["score_error"] < 0.1
    scores = {each["name"]: each for each in facts["candidates"]}
    chosen = scores["local.lr=0.5"]
    assert abs(chosen["noised_score"] - chosen["score"]) < 5 * facts["score_error"]
    assert facts["whole_score"] >= chosen["score"] - 0.05
    assert all(spent <= 20.0 for spent in facts["epsilons"])


class Silent:
    """A source without noise."""

    def normal(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype)


def test_one_row_or_person_moves_the_scores_by_at_most_the_bound() -> None:
    """For rows and persons: the largest change over all single removals, and over replaced labels (twice the bound)."""
    for more in ({}, {"unit": "person"}):
        rng = np.random.default_rng(1)
        x, y = rng.normal(size=(120, 4)).astype(np.float32), rng.integers(0, 3, 120)
        who = np.arange(120) // 3
        given = {"person": who} if more else {}
        runs = tuning_module.tuned(
            {f"lr {lr}": _config(x, y, given, lr)[0] for lr in (0.1, 0.5, 2.0)},
            _config(x, y, given, 0.1)[1],
            compare=False,
        ).runs.values()
        listed, cost = list(runs), Cost(what=SCORES, kind="gaussian", noise=1.0, steps=1)
        federation = listed[0].federation
        whole = noised_scores(listed, 0, cost, Silent())  # type: ignore[arg-type]
        test = federation.data.test[0]
        assert len(test) > 5 and whole[-1] >= 2
        units = (
            [np.flatnonzero(who[test] == key) for key in np.unique(who[test])]
            if more
            else [[i] for i in range(len(test))]
        )
        for unit in units:
            kept = np.delete(test, unit)
            data = replace(federation.data, test=(kept, *federation.data.test[1:]))
            fewer = [replace(run, federation=replace(run.federation, data=data)) for run in listed]
            change = (whole - noised_scores(fewer, 0, cost, Silent())).norm()  # type: ignore[arg-type]
            assert 0 < change <= bound(3) * (1 + 1e-12)
        # The bound is tight for a row that every candidate gets right.
        assert bound(3) == pytest.approx(math.sqrt(3 / 4 + 1 / 4))


def _config(x: Any, y: Any, given: dict[str, Any], lr: float) -> Any:
    made = Simulation(
        (x, y), "logreg", clients=2, rounds=1, recipe="dp-fedavg", epsilon=4.0, delta=1e-3, batch_size=8, lr=lr,
        partition="iid", **given,
    )  # fmt: skip
    return made.config, made._preparation()


def test_the_noise_is_what_is_charged_and_half_of_it_would_be_noticed() -> None:
    x, y = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    config, prepared = _config(x, y, {}, 0.1)
    other = _config(x, y, {}, 0.5)[0]
    listed = list(tuning_module.tuned({"a": config, "b": other}, prepared, compare=False).runs.values())
    cost = Cost(what=SCORES, kind="gaussian", noise=2.5, steps=1)
    source = noise.Secure()

    def deviation(factor: float) -> float:
        exact = noised_scores(listed, 0, cost, Silent())  # type: ignore[arg-type]
        drawn = torch.stack([noised_scores(listed, 0, replace(cost, noise=factor * 2.5), source) for _ in range(300)])
        return float((drawn - exact).std()) / (cost.noise * bound(2))

    # 900 numbers: five standard errors are 12 %.
    assert abs(deviation(1.0) - 1.0) < 0.12
    assert abs(deviation(0.5) - 1.0) > 0.12


@pytest.mark.parametrize(
    ("more", "grid", "text"),
    [
        ({}, {"lr": [0.1]}, "nothing to choose"),
        ({"recipe": "minimum"}, GRID, "own budget"),
        ({"recipe": "fedavg"}, GRID, "own budget"),
        ({}, {"epsilon": [1.0, 2.0]}, "other budgets"),
        ({"recipe": {"name": "weiavg", "weight": {"rule": "samples", "counts": "noisy"}}}, GRID, "noisy number"),
        ({"unit": "client"}, GRID, "bounded"),
        ({}, {"test_fraction": [0.2, 0.3]}, "rows"),
    ],
)
def test_what_cannot_be_divided_is_refused(more: dict[str, Any], grid: Any, text: str) -> None:
    with patch.object(tuning_module, "_divided") as divided, pytest.raises(HushError, match=text):
        simulation(**more).sweep(grid, within_budget=True)
    divided.assert_not_called()


def test_rows_with_budgets_of_their_own_are_refused() -> None:
    x, y = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    made = Simulation(
        (x, y), "logreg", clients=2, rounds=1, recipe="dp-fedavg", epsilon=4.0, delta=1e-3, batch_size=8,
        row_budgets=np.where(np.arange(60) % 2, 1.0, 4.0),
    )  # fmt: skip
    with pytest.raises(HushError, match="budgets of their own"):
        made.sweep(GRID, within_budget=True)


@pytest.mark.parametrize("given", [{"seeds": 2}, {"resume": True}, {"track": "mlflow"}])
def test_options_of_plain_sweeps_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(HushError, match="within_budget"):
        simulation().sweep(GRID, within_budget=True, **given)
    with pytest.raises(HushError, match="within_budget"):
        simulation().sweep(GRID, ledgers="x")


def test_dp_accounting_agrees_that_the_evaluation_costs_a_tenth() -> None:
    config, prepared = simulation().config, simulation()._preparation()
    federation = prepared(config)
    for client, budget in enumerate(BUDGETS):
        cost = tuning_module.evaluation(federation, client)
        accountant = PLDAccountant().compose(dp.GaussianDpEvent(cost.noise))
        assert float(accountant.get_epsilon(1e-4)) == pytest.approx(0.1 * budget, rel=0.02)
