"""Evaluation of models on rows that clients hold out: a side release of noised counts, in rounds that are fixed before.

A client evaluates the model that a round sends it, so the figures of round r are of the model that entered round r.
One held-out row adds a vector of norm at most 2: one, whether it is predicted correctly, its loss cut to
[0, loss_clip] and divided by loss_clip, and one cell of a histogram. For two classes the cell is the label and the bin
of the probability of class 1 (for the area under the curve, and calibration); for more, whether the row is predicted
correctly and the bin of the largest probability.

The noise is calibrated apart from that of training: all evaluations of a client together cost, alone, `part` of its
epsilon. Training has the noise with which everything together satisfies the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hush.privacy.schedule import RoundSpec
from hush.privacy.side_release import ReleaseShape, RowModel, SideRelease
from hush.recipes.interfaces import Option
from hush.types import Release

EVALUATION = "evaluation on held-out rows"
WHY = "noised counts of held-out rows, charged in every round that evaluates"
ENTRIES = 3  # rows, correct ones, losses; the histogram follows


@dataclass(frozen=True)
class HeldOutCounts(SideRelease):
    """Noised counts of held-out rows: how many, how many correct, their losses, and a histogram."""

    bins: int = 20

    def width(self, shape: ReleaseShape) -> int:
        """Three sums, and two rows of bins."""
        return ENTRIES + 2 * self.bins

    def bound(self, shape: ReleaseShape) -> float:
        """Four entries of at most 1 each."""
        return 2.0

    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        """One row's four entries."""
        outputs = model.logits(model.vector, x)[: model.shape.classes].double()
        if len(outputs) == 1:
            # One logit for two classes.
            outputs = torch.cat([torch.zeros_like(outputs), outputs])
        chances = torch.log_softmax(outputs, 0)
        label = y.long()
        best = chances.argmax(0)
        right = (best == label).double()
        loss = (-chances.gather(0, label.reshape(1))[0]).clamp(0.0, model.shape.loss_clip) / model.shape.loss_clip
        binary = model.shape.classes == 2
        chance = chances[1].exp() if binary else chances.max().exp()
        place = (chance * self.bins).long().clamp(0, self.bins - 1)
        cell = (label if binary else right.long()) * self.bins + place
        cells = (torch.arange(2 * self.bins, device=x.device) == cell).double()
        return torch.cat([torch.ones_like(right).reshape(1), right.reshape(1), loss.reshape(1), cells])


@dataclass(frozen=True, kw_only=True)
class Evaluation(Option):
    """When clients evaluate, what it costs, and what follows from it.

    Attributes:
        part: The part of each client's epsilon that all its evaluations cost, alone.
        at: The rounds in which clients evaluate the model that they are sent.
        bins: The number of bins of the histogram.
        metric: What rounds are compared by.
        patience: After how many evaluations without a better one the run ends; 0: never.
        choose: Which model is released: that of the last round, or the one with the best evaluation.
    """

    part: float
    at: frozenset[int]
    bins: int = 20
    metric: Literal["accuracy", "auc", "loss"] = "accuracy"
    patience: int = 0
    choose: Literal["last", "best"] = "last"

    @property
    def release(self) -> HeldOutCounts:
        """The side release of a round that evaluates."""
        return HeldOutCounts(EVALUATION, 0.0, held_out=True, of_budget=self.part, bins=self.bins)

    def round_spec(self, number: int, rounds: int) -> RoundSpec:
        """The counts, in rounds that evaluate."""
        return RoundSpec(train=number > 0, side_releases=(self.release,) if number in self.at else ())

    def releases(self) -> tuple[Release, ...]:
        """The counts, which are covered."""
        return (Release(EVALUATION, True, WHY, "gaussian"),)
