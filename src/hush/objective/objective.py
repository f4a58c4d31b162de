"""The objective of a run: its task, its loss, and how raw outputs become predictions, probabilities and a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from hush.objective.losses import CrossEntropy, Loss
from hush.objective.metrics import BESIDE, DEFAULTS, METRICS, PRIMARY, Metric
from hush.types import TargetKind

TaskName = Literal["binary", "multiclass", "multilabel", "regression"]
TARGETS: Mapping[TaskName, TargetKind] = {
    "binary": "classes",
    "multiclass": "classes",
    "multilabel": "multilabel",
    "regression": "continuous",
}


@dataclass(frozen=True)
class TargetBounds:
    """Public bounds of real targets, one pair for each: training sees low as -1 and high as 1."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def middle(self) -> Tensor:
        """What is 0 in training."""
        return torch.tensor([0.5 * (a + b) for a, b in zip(self.low, self.high, strict=True)], dtype=torch.float64)

    @property
    def half(self) -> Tensor:
        """How much is 1 in training."""
        return torch.tensor([0.5 * (b - a) for a, b in zip(self.low, self.high, strict=True)], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a model is trained for.

    Attributes:
        task: What is predicted: one of two classes, one of several, any of several labels, or real numbers.
        loss: The loss of one example.
        outputs: How many numbers the model returns for an example; for classes it may return more.
        classes: The classes or labels; 0 for real numbers.
        bounds: By which real targets are scaled, if public bounds are given.
        metrics: What is reported, the primary score first.
        class_names: What the classes are called, where they are not 0 to K - 1.
        primary: The score by which runs are compared, known after every round; it follows from the task.
    """

    task: TaskName
    loss: Loss
    outputs: int
    classes: int = 0
    bounds: TargetBounds | None = None
    metrics: tuple[Metric, ...] = ()
    class_names: tuple[str, ...] = ()
    primary: Metric = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "primary", METRICS[PRIMARY[self.task]])

    @property
    def reported(self) -> tuple[Metric, ...]:
        """All metrics of a finished run: the primary one, that beside it, and those asked for or usual for the task."""
        always = [METRICS[table[self.task]] for table in (PRIMARY, BESIDE) if self.task in table]
        asked = self.metrics or [METRICS[name] for name in DEFAULTS[self.task]]
        return tuple({each.name: each for each in (*always, *asked)}.values())

    def scaled(self, targets: Tensor) -> Tensor:
        """Return targets as training sees them."""
        if self.bounds is None or self.task != "regression":
            return targets
        middle, half = (self._like(each, targets) for each in (self.bounds.middle, self.bounds.half))
        return ((targets.double() - middle) / half).to(targets.dtype)

    def truth(self, targets: Tensor) -> Tensor:
        """Return targets as the data have them, from those that training sees; real numbers in float64."""
        if self.task != "regression":
            return targets
        return self._unscaled(targets.double())

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the class, the labels (zeros and ones) or the real numbers (in units of the data) of each example.

        Real numbers have no axis of outputs where there is only one.
        """
        if self.task == "regression":
            found = self._unscaled(outputs.double())
            return found[:, 0] if self.outputs == 1 else found
        if self.task == "multilabel":
            return (outputs > 0).to(torch.int64)
        return (outputs[:, 0] > 0).to(torch.int64) if outputs.shape[1] == 1 else outputs.argmax(1)

    def probabilities(self, outputs: Tensor) -> Tensor | None:
        """Return the probability of each class or label, examples x classes, in float64; None for real numbers."""
        if self.task == "regression":
            return None
        outputs = outputs.double()
        if self.task == "multilabel":
            return torch.sigmoid(outputs)
        if outputs.shape[1] == 1:
            positive = torch.sigmoid(outputs)
            return torch.cat([1.0 - positive, positive], 1)
        return torch.softmax(outputs, 1)

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the contribution of each example to the mean that `score_of` turns into the primary score."""
        if self.task == "regression":
            error = outputs.double() - targets.double().view_as(outputs)
            if self.bounds is not None:
                error = error * self.bounds.half.to(error.device)
            return error.square().mean(1)
        right = (self.predictions(outputs) == targets).double()
        return right if right.ndim == 1 else right.mean(1)

    def score_of(self, mean: Tensor) -> Tensor:
        """Return the primary score from the mean over examples."""
        return mean.sqrt() if self.task == "regression" else mean

    def _unscaled(self, values: Tensor) -> Tensor:
        if self.bounds is None:
            return values
        return values * self._like(self.bounds.half, values) + self._like(self.bounds.middle, values)

    @staticmethod
    def _like(each: Tensor, values: Tensor) -> Tensor:
        """Return a number for each output, for values with or without an axis of outputs."""
        each = each.to(values.device)
        return each if values.ndim == 2 else each[0]


CLASSIFICATION = Objective(task="multiclass", loss=CrossEntropy(), outputs=0)
