"""Objective: what a model is trained for, as task, per-example loss, predictions and metrics."""

from hush.objective.losses import BinaryCrossEntropy, CrossEntropy, Huber, Loss, MeanSquaredError, UserLoss
from hush.objective.metrics import METRICS, Metric, metric_named
from hush.objective.objective import CLASSIFICATION, TARGETS, Objective, TargetBounds, TaskName

__all__ = [
    "CLASSIFICATION",
    "METRICS",
    "TARGETS",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Huber",
    "Loss",
    "MeanSquaredError",
    "Metric",
    "Objective",
    "TargetBounds",
    "TaskName",
    "UserLoss",
    "metric_named",
]
