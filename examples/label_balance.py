"""Weights by how evenly a client's labels are spread: an option with its own side release."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import hush


@dataclass(frozen=True)
class LabelCounts(hush.SideRelease):
    """How often each label occurs in one batch: each row counts once, so its vector has norm 1."""

    what: str = "label counts"
    share: float = 0.1
    sampled: bool = True

    def width(self, shape: hush.ReleaseShape) -> int:
        """One count per label."""
        return shape.classes

    def bound(self, shape: hush.ReleaseShape) -> float:
        """The norm of one row's vector."""
        return 1.0

    def row(self, x: Tensor, y: Tensor, model: hush.RowModel) -> Tensor:
        """One row's vector: 1 for its label."""
        return one_hot(y, model.shape.classes)


@dataclass(frozen=True)
class LabelBalance(hush.Weight):
    """In proportion to the effective number of labels, exp(entropy), of the noisy counts of all rounds so far."""

    share: float = 0.1

    def round_spec(self, number: int, rounds: int) -> hush.RoundSpec:
        """Ask for the counts in every round; round 0 is enrolment."""
        return hush.RoundSpec(train=number > 0, side_releases=(LabelCounts(share=self.share),) if number else ())

    def releases(self) -> tuple[hush.Release, ...]:
        """The counts, which are covered."""
        return (hush.Release("label counts", True, "noised and charged in every round", "sampled-gaussian"),)

    def weight(self, view: hush.RoundView, state: hush.State) -> tuple[hush.Weights, hush.State]:
        """Add the counts of the round to the previous ones, and return weights by how even the totals are."""
        counts = view.answers["label counts"]
        before = state.get("counts", torch.zeros(len(view.budgets), counts.shape[1], dtype=torch.float64))
        total = before.index_add(0, torch.tensor(view.clients), counts)
        parts = total[list(view.clients)].clamp_min(1e-3)
        parts = parts / parts.sum(1, keepdim=True)
        labels = torch.exp(-(parts * parts.log()).sum(1))
        return hush.Weights(labels / labels.sum()), {"counts": total}
