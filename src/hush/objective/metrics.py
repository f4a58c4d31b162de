"""Metrics by name: what is computed from true values, predictions and probabilities, as scikit-learn defines it.

They are computed here since a run needs them for every client: calls of scikit-learn take a millisecond each.

Every metric is undefined for some clients, such as the area under a curve where all rows are of one class. It is then
NaN: never an error, and never a warning.

Edge cases:
    - Of several classes or labels the mean is taken over those for which the metric is defined.
    - A user's metric gets probabilities if its second parameter is called so (`probability`, `y_prob`, `y_score`, ...),
      else predictions. What it raises makes it NaN, with a note.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hush.types import unknown

Array = npt.NDArray[Any]
_CLASSES = ("binary", "multiclass", "multilabel")
_REAL = ("regression",)
_BINS = 15
_LEAST = float(np.finfo(np.float64).eps)  # a probability of zero counts as this much
_PROBABILITIES = ("prob", "score")


@dataclass(frozen=True)
class Answers:
    """True values, predictions and probabilities of the same rows.

    Attributes:
        truth: Class numbers (n,), labels as zeros and ones (n, k), or real numbers (n,) or (n, k).
        predicted: The same, as predicted.
        probability: Of each class or label (n, k); none for real numbers.
    """

    truth: Array
    predicted: Array
    probability: Array | None = None

    @property
    def two_classes(self) -> bool:
        """Whether rows are of one of two classes."""
        return self.truth.ndim == 1 and self.probability is not None and self.probability.shape[1] == 2

    @property
    def likelihood(self) -> Array:
        """Probabilities as scikit-learn takes them: those of class 1 alone where there are two."""
        assert self.probability is not None
        return self.probability[:, 1] if self.two_classes else self.probability

    def columns(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield each class against the rest, or each label: whether true, whether predicted, and its probability."""
        assert self.probability is not None
        if self.truth.ndim == 2:
            yield from zip(self.truth.T, self.predicted.T, self.probability.T, strict=True)
            return
        for number in [1] if self.two_classes else range(self.probability.shape[1]):
            yield self.truth == number, self.predicted == number, self.probability[:, number]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number by which models are judged.

    Attributes:
        name: As in a config and in results.
        label: In words.
        compute: The number, NaN where it is undefined.
        tasks: For which tasks it is defined.
        higher_is_better: Whether more of it is better; None for a user's own, of which it is not known.
        percent: Whether it is shown as a percentage.
    """

    name: str
    label: str
    compute: Callable[[Answers], float]
    tasks: tuple[str, ...] = _CLASSES
    higher_is_better: bool | None = True
    percent: bool = False


def value_of(metric: Metric, answers: Answers) -> tuple[float, str]:
    """Return the metric, or NaN and why."""
    if not len(answers.truth):
        return math.nan, "no test rows"
    values = answers.predicted if answers.probability is None else answers.probability
    if not np.isfinite(values).all():
        return math.nan, "the model's outputs are not finite"
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = float(metric.compute(answers))
    except Exception as error:  # a user's metric may fail in any way, after a run that took hours
        return math.nan, (str(error).strip() or type(error).__name__).splitlines()[0]
    return found, "" if math.isfinite(found) else "undefined for these rows"


def metric_named(name: str) -> Metric:
    """Return the metric of that name."""
    if name not in METRICS:
        raise unknown("objective.metrics", "metric", name, METRICS, ", or module:function for your own")
    return METRICS[name]


def shown(metric: Metric, value: float | None) -> str:
    """Return a value as it is printed."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:.1f}%" if metric.percent else f"{value:.4g}"


def user_metric(function: Callable[..., Any], name: str) -> Metric:
    """Return a user's function of true values and of predictions, or of probabilities, as a metric."""
    try:
        second = list(inspect.signature(function).parameters)[1]
    except (IndexError, TypeError, ValueError):
        second = ""
    likely = any(word in second.lower() for word in _PROBABILITIES)

    def compute(answers: Answers) -> float:
        given = answers.likelihood if likely and answers.probability is not None else answers.predicted
        return float(function(answers.truth, given))

    return Metric(name=name, label=name, compute=compute, tasks=(*_CLASSES, *_REAL), higher_is_better=None)


def baseline(answers: Answers) -> float:
    """Return the primary score of the best constant prediction: the most frequent class or label, or the mean."""
    truth = answers.truth
    if not len(truth):
        return math.nan
    if answers.probability is None:
        spread = truth - truth.mean(axis=0)
        return float(np.sqrt(np.square(spread).mean()))
    if truth.ndim == 2:
        often = truth.mean(axis=0)
        return float(np.maximum(often, 1.0 - often).mean())
    return float(np.bincount(truth).max() / len(truth))


def _accuracy(answers: Answers) -> float:
    return float((answers.truth == answers.predicted).mean())


def _balanced_accuracy(answers: Answers) -> float:
    if answers.truth.ndim == 2:
        return _mean([_recalls(truth, predicted) for truth, predicted, _ in answers.columns()])
    return _recalls(answers.truth, answers.predicted)


def _recalls(truth: Array, predicted: Array) -> float:
    """Return the mean of the recalls of all classes that occur; of one class alone it says nothing."""
    truth = truth.astype(np.int64)
    rows = np.bincount(truth)
    right = np.bincount(truth, weights=truth == predicted)
    occurs = rows > 0
    return float((right[occurs] / rows[occurs]).mean()) if occurs.sum() > 1 else math.nan


def _f1(answers: Answers) -> float:
    found = []
    for truth, predicted, _ in answers.columns():
        both, total = np.logical_and(truth, predicted).sum(), truth.sum() + predicted.sum()
        found.append(float(2 * both / total) if total else math.nan)
    return _mean(found)


def _roc_auc(answers: Answers) -> float:
    """Compute the share of pairs in the right order, from the ranks of probabilities; ties share a rank."""
    found = []
    for truth, _, likely in answers.columns():
        right = truth.astype(bool)
        positive, negative = int(right.sum()), int((~right).sum())
        _, place, counts = np.unique(likely, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - 0.5 * (counts - 1))[place]
        above = float(ranks[right].sum()) - 0.5 * positive * (positive + 1)
        found.append(above / (positive * negative) if positive and negative else math.nan)
    return _mean(found)


def _average_precision(answers: Answers) -> float:
    """Return the mean of the precisions at all thresholds, weighted by the gain in recall."""
    found = []
    for truth, _, likely in answers.columns():
        order = np.argsort(-likely, kind="stable")
        ranked, hits = likely[order], np.cumsum(truth[order])
        last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
        gained = np.diff(hits[last], prepend=0)
        found.append(float((gained * hits[last] / (last + 1)).sum() / hits[-1]) if hits[-1] else math.nan)
    return _mean(found)


def _log_loss(answers: Answers) -> float:
    assert answers.probability is not None
    likely = np.clip(answers.probability, _LEAST, 1.0 - _LEAST)
    if answers.truth.ndim == 2:
        return float(-np.where(answers.truth > 0, np.log(likely), np.log(1.0 - likely)).mean())
    return float(-np.log(likely[np.arange(len(likely)), answers.truth]).mean())


def _calibration_error(answers: Answers) -> float:
    """Compute the expected calibration error: the difference of confidence and accuracy, in bins of equal width."""
    assert answers.probability is not None
    if answers.truth.ndim == 1:
        confidence = answers.probability.max(axis=1)
        return _expected_gap(confidence, answers.predicted == answers.truth)
    return _mean([_expected_gap(likely, truth > 0) for truth, _, likely in answers.columns()])


def _expected_gap(confidence: Array, right: Array) -> float:
    bins = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bins, weights=confidence - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(right))


def _rmse(answers: Answers) -> float:
    return float(np.sqrt(np.square(answers.truth - answers.predicted).mean()))


def _mae(answers: Answers) -> float:
    return float(np.abs(answers.truth - answers.predicted).mean())


def _r2(answers: Answers) -> float:
    """Return the share of the variance that is explained; targets that are all alike have none."""
    truth = answers.truth.reshape(len(answers.truth), -1)
    error = np.square(truth - answers.predicted.reshape(truth.shape)).sum(axis=0)
    whole = np.square(truth - truth.mean(axis=0)).sum(axis=0)
    varies = (truth != truth[:1]).any(axis=0)
    return _mean([float(1.0 - a / b) for a, b in zip(error[varies], whole[varies], strict=True)])


def _mean(values: list[float]) -> float:
    """Return the mean of those that are defined."""
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else math.nan


METRICS: Mapping[str, Metric] = {
    each.name: each
    for each in (
        Metric(name="accuracy", label="accuracy", compute=_accuracy, percent=True),
        Metric(name="balanced_accuracy", label="balanced accuracy", compute=_balanced_accuracy, percent=True),
        Metric(name="f1", label="F1", compute=_f1),
        Metric(name="roc_auc", label="ROC AUC", compute=_roc_auc),
        Metric(name="average_precision", label="average precision", compute=_average_precision),
        Metric(name="log_loss", label="log loss", compute=_log_loss, higher_is_better=False),
        Metric(name="calibration_error", label="calibration error", compute=_calibration_error, higher_is_better=False),
        Metric(name="rmse", label="RMSE", compute=_rmse, tasks=_REAL, higher_is_better=False),
        Metric(name="mae", label="MAE", compute=_mae, tasks=_REAL, higher_is_better=False),
        Metric(name="r2", label="R2", compute=_r2, tasks=_REAL),
    )
}
PRIMARY: Mapping[str, str] = {**dict.fromkeys(_CLASSES, "accuracy"), "regression": "rmse"}
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "binary": ("balanced_accuracy", "f1", "roc_auc", "average_precision", "log_loss", "calibration_error"),
    "multiclass": ("balanced_accuracy", "f1", "roc_auc", "log_loss", "calibration_error"),
    "multilabel": ("balanced_accuracy", "f1", "roc_auc", "average_precision", "calibration_error"),
    "regression": ("mae", "r2"),
}
# Shown wherever the primary score is, which says little of rare classes or of targets of unknown spread.
BESIDE: Mapping[str, str] = {
    "binary": "balanced_accuracy",
    "multilabel": "balanced_accuracy",
    "regression": "r2",
}
BASELINES: Mapping[str, str] = {
    "binary": "always the most frequent class",
    "multiclass": "always the most frequent class",
    "multilabel": "always what is most frequent for each label",
    "regression": "always the mean of the targets",
}
