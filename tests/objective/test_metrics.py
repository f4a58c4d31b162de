"""Metrics: scikit-learn's values, NaN with a note where they are undefined, and a user's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from hush.objective import BinaryCrossEntropy, CrossEntropy, MeanSquaredError, Objective, TargetBounds, metric_named
from hush.objective.evaluation import evaluate_metrics
from hush.objective.metrics import Answers, baseline, user_metric, value_of
from hush.types import HushError

DRAW = np.random.default_rng(0)
TRUTH = DRAW.integers(0, 2, 200)
LIKELY = np.clip(0.5 * TRUTH + 0.6 * DRAW.random(200), 0.01, 0.99)
BINARY = Answers(TRUTH, (LIKELY > 0.5).astype(int), np.stack([1 - LIKELY, LIKELY], 1))
CLASSES = DRAW.integers(0, 3, 200)
PROBABLE = DRAW.dirichlet(np.ones(3), 200) + 0.5 * np.eye(3)[CLASSES]
PROBABLE /= PROBABLE.sum(1, keepdims=True)
SEVERAL = Answers(CLASSES, PROBABLE.argmax(1), PROBABLE)
LABELS = Answers(np.stack([TRUTH, 1 - TRUTH], 1), np.stack([LIKELY > 0.5, LIKELY < 0.4], 1).astype(int),
                 np.stack([LIKELY, 1 - LIKELY], 1))  # fmt: skip
REAL = Answers(DRAW.normal(size=(50, 2)), DRAW.normal(size=(50, 2)))


@pytest.mark.parametrize(
    ("name", "answers", "expected"),
    [
        ("accuracy", BINARY, sklearn.accuracy_score(TRUTH, BINARY.predicted)),
        ("balanced_accuracy", BINARY, sklearn.balanced_accuracy_score(TRUTH, BINARY.predicted)),
        ("f1", BINARY, sklearn.f1_score(TRUTH, BINARY.predicted)),
        ("roc_auc", BINARY, sklearn.roc_auc_score(TRUTH, LIKELY)),
        ("average_precision", BINARY, sklearn.average_precision_score(TRUTH, LIKELY)),
        ("log_loss", BINARY, sklearn.log_loss(TRUTH, LIKELY)),
        ("f1", SEVERAL, sklearn.f1_score(CLASSES, SEVERAL.predicted, average="macro")),
        ("roc_auc", SEVERAL, sklearn.roc_auc_score(CLASSES, PROBABLE, multi_class="ovr")),
        ("log_loss", SEVERAL, sklearn.log_loss(CLASSES, PROBABLE)),
        ("accuracy", LABELS, (LABELS.truth == LABELS.predicted).mean()),
        ("f1", LABELS, sklearn.f1_score(LABELS.truth, LABELS.predicted, average="macro")),
        ("roc_auc", LABELS, sklearn.roc_auc_score(LABELS.truth, LABELS.probability)),
        ("average_precision", LABELS, sklearn.average_precision_score(LABELS.truth, LABELS.probability)),
        ("rmse", REAL, math.sqrt(sklearn.mean_squared_error(REAL.truth, REAL.predicted))),
        ("mae", REAL, sklearn.mean_absolute_error(REAL.truth, REAL.predicted)),
        ("r2", REAL, sklearn.r2_score(REAL.truth, REAL.predicted)),
    ],
)
def test_a_metric_has_the_value_of_scikit_learn(name: str, answers: Answers, expected: float) -> None:
    value, why = value_of(metric_named(name), answers)
    assert value == pytest.approx(expected) and why == ""


def test_the_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    probability = np.repeat([[0.2, 0.8]], 100, axis=0)
    truth = (np.arange(100) < 60).astype(int)
    found = Answers(truth, np.ones(100, int), probability)
    assert value_of(metric_named("calibration_error"), found)[0] == pytest.approx(0.2)
    # Halves that are right and wrong by as much, in different bins, do not cancel.
    apart = np.concatenate([np.repeat([[0.1, 0.9]], 50, axis=0), np.repeat([[0.4, 0.6]], 50, axis=0)])
    truth = np.concatenate([np.arange(50) < 40, np.arange(50) < 40]).astype(int)
    found = Answers(truth, np.ones(100, int), apart)
    assert value_of(metric_named("calibration_error"), found)[0] == pytest.approx(0.5 * 0.1 + 0.5 * 0.2)


@pytest.mark.parametrize("name", ["balanced_accuracy", "roc_auc"])
def test_a_metric_of_one_class_is_not_a_number(name: str) -> None:
    rows = BINARY.truth == 1
    assert BINARY.probability is not None
    one = Answers(BINARY.truth[rows], BINARY.predicted[rows], BINARY.probability[rows])
    value, why = value_of(metric_named(name), one)
    assert math.isnan(value) and why == "undefined for these rows"
    assert math.isnan(value_of(metric_named("r2"), Answers(np.ones(3), np.zeros(3)))[0])
    assert math.isnan(
        value_of(metric_named("f1"), Answers(np.zeros(3, int), np.zeros(3, int), np.eye(2)[[0, 0, 0]]))[0]
    )


def test_outputs_that_are_not_finite_have_no_metrics() -> None:
    bad = Answers(np.ones(3), np.array([1.0, np.nan, 2.0]))
    value, why = value_of(metric_named("mae"), bad)
    assert math.isnan(value) and why == "the model's outputs are not finite"


def test_a_metric_of_the_user_gets_predictions_or_probabilities() -> None:
    def share(y_true: np.ndarray, y_pred: np.ndarray) -> float:
        return float(y_pred.mean())

    def brier(y_true: np.ndarray, y_prob: np.ndarray) -> float:
        return float(np.square(y_true - y_prob).mean())

    def fails(y_true: np.ndarray, y_pred: np.ndarray) -> float:
        raise ValueError("no such rows")

    assert value_of(user_metric(share, "share"), BINARY)[0] == BINARY.predicted.mean()
    assert value_of(user_metric(brier, "brier"), BINARY)[0] == pytest.approx(np.square(TRUTH - LIKELY).mean())
    assert value_of(user_metric(sklearn.brier_score_loss, "brier"), BINARY)[0] == pytest.approx(
        np.square(TRUTH - LIKELY).mean()
    )
    value, why = value_of(user_metric(fails, "fails"), BINARY)
    assert math.isnan(value) and why == "no such rows"


def test_an_unknown_metric_is_named_with_those_there_are() -> None:
    with pytest.raises(HushError, match=r"objective\.metrics: unknown metric 'auc'.*roc_auc"):
        metric_named("auc")


def test_the_baseline_is_the_best_constant() -> None:
    assert baseline(SEVERAL) == np.bincount(CLASSES).max() / 200
    assert baseline(LABELS) == pytest.approx(max(TRUTH.mean(), 1 - TRUTH.mean()))
    assert baseline(Answers(REAL.truth[:, 0], REAL.predicted[:, 0])) == pytest.approx(REAL.truth[:, 0].std())


def test_metrics_are_pooled_per_client_and_of_the_worst() -> None:
    objective = Objective(task="binary", loss=CrossEntropy(), outputs=2, classes=2)
    outputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 1.0], [1.0, 0.0], [3.0, 0.0]])
    targets = torch.tensor([0, 1, 0, 1, 0])
    found = evaluate_metrics(objective, outputs, targets, [2, 2, 1], ["north", "south", "west"])
    assert found["primary"] == "accuracy" and found["task"] == "binary"
    assert found["pooled"]["accuracy"] == 0.6 and found["worst"]["accuracy"] == 0.0
    assert [each["accuracy"] for each in found["per_client"].values()] == [1.0, 0.0, 1.0]
    assert math.isnan(found["per_client"]["west"]["roc_auc"]) and found["mean"]["roc_auc"] == 0.5
    assert "ROC AUC: left out of the mean for 1 of 3 clients: undefined for these rows" in found["notes"]
    assert found["baseline"] == {"what": "always the most frequent class", "value": 0.6}
    assert found["worst"]["log_loss"] == max(each["log_loss"] for each in found["per_client"].values())


def test_real_targets_are_scaled_by_public_bounds_and_back() -> None:
    bounds = TargetBounds((0.0, -10.0), (100.0, 10.0))
    objective = Objective(task="regression", loss=MeanSquaredError(), outputs=2, bounds=bounds)
    y = torch.tensor([[0.0, 10.0], [100.0, -10.0], [50.0, 5.0]])
    scaled = objective.scaled(y)
    assert scaled.tolist() == [[-1.0, 1.0], [1.0, -1.0], [0.0, 0.5]]
    torch.testing.assert_close(objective.truth(scaled), y.double())
    torch.testing.assert_close(objective.predictions(scaled), y.double())
    off = scaled + torch.tensor([0.1, 0.0])
    score = objective.score_of(objective.row_scores(off, scaled).mean())
    assert score.item() == pytest.approx(5.0 / math.sqrt(2), rel=1e-5)
    found = evaluate_metrics(objective, off, scaled, [1, 2], ["0", "1"])
    assert found["pooled"]["rmse"] == pytest.approx(score.item()) and found["pooled"]["mae"] == pytest.approx(2.5)


def test_predictions_and_probabilities_by_task() -> None:
    one = Objective(task="binary", loss=BinaryCrossEntropy(), outputs=1, classes=2)
    outputs = torch.tensor([[0.0], [3.0], [-3.0]])
    assert one.predictions(outputs).tolist() == [0, 1, 0]
    probability = one.probabilities(outputs)
    assert probability is not None and probability.shape == (3, 2) and probability.sum(1).tolist() == [1.0] * 3
    labels = Objective(task="multilabel", loss=BinaryCrossEntropy(), outputs=2, classes=2)
    assert labels.predictions(torch.tensor([[1.0, -1.0]])).tolist() == [[1, 0]]
    assert labels.row_scores(torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0, 1.0]])).tolist() == [0.5]
