"""Whole runs of every task: they learn, are measured by their own metrics, audited, resumed, and reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import hush
from hush.report import write
from hush.types import HushError

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(1600, 6)).astype(np.float32)
SIGNAL = X @ np.array([1.0, -1.0, 0.5, 0.0, 0.0, 2.0])
AMOUNT = 50.0 + 10.0 * SIGNAL + DRAW.normal(size=1600)
RARE = (SIGNAL + 0.3 * DRAW.normal(size=1600) > 3.5).astype(int)
LABELS = np.stack([SIGNAL > 0, X[:, 0] > 0.5, X[:, 1] < -1], axis=1).astype(int)
RUN: dict[str, Any] = {
    "seed": 1,
    "rounds": 6,
    "data": {"clients": 4},
    "privacy": {"budgets": [1.0, 2.0, 4.0, 8.0], "delta": 1e-4},
    "local": {"batch_size": 32, "lr": 0.5},
    "recipe": {"name": "robust-hdp"},
}


def absolute(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().mean()


def test_regression_beats_the_mean(tmp_path: Path) -> None:
    config = {**RUN, "objective": {"target_bounds": [0, 100]}}
    result = hush.simulate(config, dataset=(X, AMOUNT), out=tmp_path / "run")
    assert result.primary == "rmse" and result.accuracy == {} and result.accuracy_per_client == ()
    assert len(result.score_per_client) == 4
    baseline = result.metrics["baseline"]["value"]
    assert result.score["max"] < 0.5 * baseline
    assert result.metrics["pooled"]["r2"] > 0.7
    assert result.metrics["worst"]["rmse"] == pytest.approx(result.score["max"], rel=1e-12)
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["metrics"]["primary"] == "rmse" and written["score"]["mean"] == result.score["mean"]
    record = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    assert record["primary"] == "rmse" and record["score_per_client"] == list(result.score_per_client)
    found = hush.measure(tmp_path / "run", dataset=(X, AMOUNT))
    assert found["worst"] == pytest.approx(result.score["max"], rel=1e-4) and found["f_rmse"] >= 0
    page = write(tmp_path / "run").read_text(encoding="utf-8")
    assert "Mean RMSE" in page and "Final RMSE per client" in page and "Mean accuracy" not in page
    assert "test RMSE per client" in page


@pytest.mark.parametrize("changes", [{"model": {"name": "mlp", "hidden": 8}}, {"objective": {"loss": "huber"}}])
def test_regression_by_other_models_and_losses(changes: dict[str, Any]) -> None:
    objective = {"target_bounds": [0, 100], **changes.get("objective", {})}
    result = hush.simulate({**RUN, **changes, "rounds": 10, "objective": objective}, dataset=(X, AMOUNT))
    assert result.score["mean"] < result.metrics["baseline"]["value"]


def test_several_targets_have_bounds_of_their_own() -> None:
    several = np.stack([AMOUNT, -3.0 * SIGNAL], axis=1)
    config = {**RUN, "objective": {"target_bounds": [[0, 100], [-30, 30]]}}
    result = hush.simulate(config, dataset=(X, several))
    assert result.metrics["pooled"]["r2"] > 0.5


def test_whole_numbers_are_regression_where_the_task_says_so() -> None:
    amounts = np.rint(AMOUNT).astype(int)
    result = hush.simulate({**RUN, "objective": {"target_bounds": [0, 100]}}, dataset=(X, amounts), task="regression")
    assert result.metrics["task"] == "regression" and result.metrics["pooled"]["r2"] > 0.7


def test_several_labels_are_learned() -> None:
    result = hush.simulate({**RUN, "rounds": 12}, dataset=(X, LABELS))
    assert result.metrics["task"] == "multilabel" and len(result.accuracy_per_client) == 4
    assert result.score["mean"] > result.metrics["baseline"]["value"] + 0.03
    assert result.metrics["pooled"]["roc_auc"] > 0.85


@pytest.mark.parametrize("outputs", [0, 1, 2], ids=["by name", "one logit", "two logits"])
def test_rare_positives_are_found_and_seen(outputs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hush.terminal import show_run

    model = nn.Linear(6, outputs) if outputs else None
    result = hush.simulate({**RUN, "rounds": 15}, dataset=(X, RARE), model=model, out=tmp_path / "run")
    assert result.metrics["task"] == "binary"
    assert result.metrics["pooled"]["roc_auc"] > 0.9
    assert result.metrics["baseline"]["value"] > 0.9
    show_run(result, tmp_path / "run")
    shown = capsys.readouterr().out
    for words in ("Baseline, always the most frequent class: accuracy 9", "balanced accuracy", "ROC AUC"):
        assert words in shown
    page = write(tmp_path / "run").read_text(encoding="utf-8")
    assert "balanced accuracy" in page and "baseline: always the most frequent class" in page


def test_a_loss_and_metrics_of_the_user_by_object_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def halfway(y_true: np.ndarray, y_pred: np.ndarray) -> float:
        return float((np.abs(y_true - y_pred) < 5).mean())

    config = {**RUN, "objective": {"target_bounds": [0, 100]}}
    here = hush.simulate(config, dataset=(X, AMOUNT), loss=absolute, metrics=["mae", halfway])
    assert set(here.metrics["pooled"]) == {"rmse", "r2", "mae", "halfway"}
    assert here.metrics["pooled"]["r2"] > 0.5
    assert here.config["objective"]["loss"] == f"{__name__}:absolute"
    (tmp_path / "own_loss.py").write_text(
        "def absolute(output, target):\n    return (output - target).abs().mean()\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    named = {**RUN, "objective": {"target_bounds": [0, 100], "loss": "own_loss:absolute"}}
    assert hush.simulate(named, dataset=(X, AMOUNT)).score_per_client == here.score_per_client


def test_a_run_with_another_loss_of_the_same_name_is_not_resumed(tmp_path: Path) -> None:
    def stop(record: Any) -> None:
        raise KeyboardInterrupt

    def made(power: int) -> Any:
        def loss(output: Tensor, target: Tensor) -> Tensor:
            return (output - target).abs().pow(power).mean()

        return loss

    with pytest.raises(KeyboardInterrupt):
        hush.simulate(RUN, dataset=(X, AMOUNT), loss=made(2), out=tmp_path / "run", progress=stop)
    with pytest.raises(HushError, match="holds a run with another objective"):
        hush.simulate(RUN, dataset=(X, AMOUNT), loss=made(4), out=tmp_path / "run", resume=True)
    result = hush.simulate(RUN, dataset=(X, AMOUNT), loss=made(2), out=tmp_path / "run", resume=True)
    assert result.rounds == 6


def test_a_resumed_regression_ends_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    seen = []

    def stop(record: Any) -> None:
        seen.append(record.round)
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hush.simulate(RUN, dataset=(X, AMOUNT), out=tmp_path / "run", progress=stop)
    resumed = hush.simulate(RUN, dataset=(X, AMOUNT), out=tmp_path / "run", resume=True)
    whole = hush.simulate(RUN, dataset=(X, AMOUNT))
    assert resumed.score_per_client == whole.score_per_client and resumed.metrics == whole.metrics
    again = hush.simulate(RUN, dataset=(X, AMOUNT), out=tmp_path / "run", resume=True)
    assert again.metrics == resumed.metrics and again.score == resumed.score


def test_discrete_noise_and_input_centring_serve_regression() -> None:
    discrete = {**RUN, "rounds": 2, "privacy": {**RUN["privacy"], "discrete": True}, "recipe": {"name": "dp-fedavg"}}
    result = hush.simulate({**discrete, "objective": {"target_bounds": [0, 100]}}, dataset=(X, AMOUNT))
    assert math.isfinite(result.score["mean"])
    centred = {**RUN, "recipe": {"name": "hush"}, "objective": {"target_bounds": [0, 100]}}
    result = hush.simulate(centred, dataset=(X, AMOUNT))
    assert result.score["mean"] < result.metrics["baseline"]["value"]


def test_clients_choose_among_models_by_the_loss_of_their_task() -> None:
    config = {**RUN, "rounds": 3, "recipe": {"name": "f-cdpfl"}, "objective": {"target_bounds": [0, 100]}}
    assert math.isfinite(hush.simulate(config, dataset=(X, AMOUNT)).score["mean"])
    with pytest.raises(HushError, match=r"losses that are cut to \[0, privacy.loss_clip\]"):
        hush.simulate(config, dataset=(X, AMOUNT), loss=absolute)


@pytest.mark.parametrize(
    ("changes", "given", "words"),
    [
        ({"objective": {"task": "binary"}}, {"dataset": (X, LABELS.sum(1))}, '"binary" needs two classes'),
        ({"objective": {"task": "regresion"}}, {"dataset": (X, AMOUNT)}, "objective.task"),
        ({"objective": {"loss": "mse"}}, {"dataset": (X, RARE)}, "found 'mse' for task binary"),
        ({"objective": {"loss": "mae"}}, {"dataset": (X, AMOUNT)}, "expected one of auto, cross-entropy, mse, huber"),
        ({"objective": {"metrics": ["f1"]}}, {"dataset": (X, AMOUNT)}, "f1 is not defined for task regression"),
        ({"objective": {"metrics": ["auc"]}}, {"dataset": (X, RARE)}, "unknown metric 'auc'"),
        ({"objective": {"target_bounds": [3, 1]}}, {"dataset": (X, AMOUNT)}, "expected \\[low, high\\]"),
        ({"objective": {"target_bounds": [0, 1]}}, {"dataset": (X, RARE)}, "for regression only"),
        ({"objective": {"target_bounds": [[0, 1], [0, 1]]}}, {"dataset": (X, AMOUNT)}, "found 2 pairs for 1 targets"),
        ({"objective": {"loss": "nowhere:loss"}}, {"dataset": (X, AMOUNT)}, "'nowhere:loss' cannot be used"),
        ({}, {"dataset": (X, AMOUNT), "model": nn.Linear(6, 2)}, "returns 2 numbers per row for task regression"),
        ({}, {"dataset": (X, LABELS), "model": nn.Linear(6, 2)}, "accepted: 3, one for each label"),
        ({"data": {"clients": 4, "partition": {"name": "dirichlet", "alpha": 1.0}}}, {"dataset": (X, AMOUNT)},
         "divides rows by their classes"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_in_one_line(changes: dict[str, Any], given: dict[str, Any], words: str) -> None:
    with pytest.raises(HushError, match=words) as error:
        hush.simulate({**RUN, **changes}, **given)
    assert "\n" not in str(error.value)


def test_ledgers_know_the_rows_of_real_targets(tmp_path: Path) -> None:
    config = {**RUN, "rounds": 1}
    hush.simulate(config, dataset=(X, AMOUNT), ledgers=tmp_path / "ledgers")
    with pytest.raises(HushError, match="its training rows were changed"):
        hush.simulate(config, dataset=(X, AMOUNT + 0.25), ledgers=tmp_path / "ledgers")


def test_comparisons_are_ranked_by_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amounts.py").write_text(
        "import numpy as np\ndef amounts():\n    draw = np.random.default_rng(0)\n    x = draw.normal(size=(800, 4))\n"
        "    return x, 50 + 10 * x.sum(1)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    config = {**RUN, "data": {"clients": 4, "name": "amounts:amounts"}, "objective": {"target_bounds": [0, 100]}}
    summary = hush.compare(config, ["dp-fedavg", "fedavg"], seeds=2, out=tmp_path / "out")
    assert summary["primary"] == "rmse" and "accuracy" not in summary["recipes"]["fedavg"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "mean RMSE" in page and "Final RMSE by recipe" in page and "mean accuracy" not in page
    assert page.index(">fedavg<") < page.index(">dp-fedavg<")


@pytest.mark.parametrize("kind", ["one-run", "two-datasets"])
def test_a_regression_is_audited(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amounts_audited.py").write_text(
        "import numpy as np\ndef amounts():\n    draw = np.random.default_rng(0)\n    x = draw.normal(size=(80, 4))\n"
        "    return x, x.sum(1)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    config = {
        **RUN, "rounds": 1, "data": {"clients": 2, "name": "amounts_audited:amounts"},
        "privacy": {"budgets": 4.0, "delta": 1e-3},
    }  # fmt: skip
    found = hush.audit(config, kind=kind, runs=1000 if kind == "two-datasets" else 20, confidence=0.999)
    assert not found["refuted"] and math.isfinite(found["epsilon_if_gaussian"])
    if kind == "two-datasets":
        assert found["epsilon_lower"] > 0.3


def test_rows_that_are_far_off_do_not_stop_training() -> None:
    """A gradient beyond the range of float32 adds nothing, and the rows beside it are learned from."""
    wild = AMOUNT.copy()
    wild[::40] = 3e38
    config = {**RUN, "objective": {"target_bounds": [0, 100], "loss": "mse"}}
    result = hush.simulate(config, dataset=(X, wild))
    model = result.metrics["per_client"]
    assert all(math.isfinite(each["mae"]) for each in model.values())
