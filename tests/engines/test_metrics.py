"""The papers' measures, against the references written from the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hush
from hush.config import parse
from hush.engines.metrics import dissimilarity, measures, optimum, rows_of
from hush.engines.results import by_group
from hush.engines.setup import prepare
from hush.types import HushError
from tests.conformance.references import dp_scaffold, rc_dpfl, toy

SMALL: dict[str, Any] = {
    "rounds": 3,
    "data": {"clients": 3, "partition": {"name": "rotation", "clusters": [1, 2]}},
    "privacy": {"budgets": 5.0},
    "local": {"batch_size": 32, "weight_decay": 0.01},
    "recipe": {"name": "dp-fedavg"},
}


def clients(rows: Any) -> list[toy.Client]:
    return [toy.Client(each.x.flatten(1).numpy(), each.y.numpy(), len(each.y)) for each in rows]


def test_loss_gap_and_dissimilarity_are_the_references() -> None:
    federation = prepare(parse(SMALL))
    vector = federation.model.start + 0.01
    found = measures(federation, vector[None], [0, 0, 0], 1)
    rows = rows_of(federation, 1)
    theta, data = vector.double().numpy(), clients(rows)
    assert found["train_loss"] == pytest.approx(dp_scaffold.objective(theta, data, 0.01), rel=1e-9)
    assert found["gradient_dissimilarity"] == pytest.approx(
        dp_scaffold.gradient_dissimilarity(theta, data, 0.01), rel=1e-9
    )
    best = optimum(federation.model, rows, 0.01)
    gradients = [toy.mean_gradient(best.numpy(), each, 0.01) for each in data]
    assert np.linalg.norm(np.mean(gradients, axis=0)) < 1e-6, "there is no way down from the optimum"
    gap = dp_scaffold.objective(theta, data, 0.01) - dp_scaffold.objective(best.numpy(), data, 0.01)
    assert found["train_loss_gap"] == pytest.approx(gap, rel=1e-6)


def test_fairness_is_the_reference() -> None:
    federation = prepare(parse(SMALL))
    found = measures(federation, federation.model.start[None] + 0.01, [0, 0, 0], 1)
    assert found["disparity"] >= 0 and found["worst"] <= found["minority"]
    assert found["f_acc"] >= 0 and found["f_loss"] >= 0
    accuracy, groups = [0.5, 0.9, 0.7, 0.8], [1, 0, 0, 0]
    minority, majority = rc_dpfl.minority_majority(accuracy, groups)
    assert by_group(accuracy, groups) == pytest.approx({"minority": minority, "majority": majority})
    assert by_group(accuracy, [0] * 4) == {}


def test_equal_gradients_do_not_differ() -> None:
    same = torch.ones(4, 3, dtype=torch.float64)
    assert dissimilarity(same)["gradient_dissimilarity"] == pytest.approx(0.0)
    assert dissimilarity(same)["gradient_log_dissimilarity"] == pytest.approx(0.0)


def test_a_run_is_measured_by_its_directory(tmp_path: Path) -> None:
    result = hush.simulate(SMALL, out=tmp_path / "run")
    assert {"minority", "majority"} <= set(result.accuracy)
    found = hush.measure(tmp_path / "run")
    assert found["worst"] == pytest.approx(result.accuracy["min"])
    assert found["minority"] == pytest.approx(result.accuracy["minority"])
    clustered = hush.simulate({**SMALL, "recipe": {"name": "rc-dpfl"}}, out=tmp_path / "clusters")
    assert hush.measure(tmp_path / "clusters")["worst"] == pytest.approx(clustered.accuracy["min"])
    with pytest.raises(HushError, match="no such file"):
        hush.measure(tmp_path / "nowhere")
