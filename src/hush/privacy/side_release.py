"""A side release: what a client releases in addition to its update, as a noisy sum over rows of bounded vectors.

An option that needs numbers from clients declares a `SideRelease`: the vector of one row (`row`), and the maximum norm
of a row's vector (`bound`). Rows are evaluated one by one, clipped to the bound, summed and noised by
`hush.engines.side_releases`, with the noise of the client's plan; an option can omit neither the clipping nor the
noise. The ledger is charged for it (`hush.privacy.schedule`), and the server receives the noisy sums. The vector and
its bound may depend on earlier releases (Theorem 14 of docs/proofs.md).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.privacy.plan import PrivacyPlan

_DEVIATIONS = 8.0


@dataclass(frozen=True, kw_only=True)
class ReleaseShape:
    """What the width and the bound of a side release may depend on: public numbers of a run.

    Attributes:
        inputs: The shape of one row, behind the model's fixed features.
        classes: The number of labels.
        parameters: The number of parameters of the model.
        models: The number of models that the client receives, in a round in which it chooses one; else 1.
        loss_clip: The bound on losses, as configured.
    """

    inputs: tuple[int, ...]
    classes: int
    parameters: int
    models: int = 1
    loss_clip: float = 1.0


@dataclass(frozen=True)
class RowModel:
    """The model that `SideRelease.row` can evaluate.

    Attributes:
        vector: The parameters as a flat vector.
        logits: The outputs for one row at a flat parameter vector: `logits(vector, x)`.
        shape: Public numbers of the run.
    """

    vector: Tensor
    logits: Callable[[Tensor, Tensor], Tensor]
    shape: ReleaseShape


@dataclass(frozen=True)
class SideRelease(ABC):
    """A noisy sum that clients release in addition to the update.

    Attributes:
        what: Its name, as listed in the privacy guarantee.
        share: The cost of each release relative to an ordinary round of training. It determines the noise; the
            accountant then computes what that noise costs.
        sampled: Whether the sum is over one batch of the plan's sampler, instead of all rows.
        held_out: Whether the sum is over the rows that the client holds out, instead of those that it trains on.
        of_budget: If above 0, all releases of a client of this kind together cost, alone, this part of its epsilon, and
            `share` has no effect.
    """

    what: str
    share: float
    sampled: bool = False
    held_out: bool = False
    of_budget: float = 0.0

    @abstractmethod
    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        """One row's vector, from its input and its label alone. Evaluated under `torch.vmap`, so rows cannot mix."""

    def width(self, shape: ReleaseShape) -> int:
        """The number of entries of the vector."""
        return 1

    def bound(self, shape: ReleaseShape) -> float:
        """The norm to which a row's vector is clipped: the sensitivity of the sum."""
        return 1.0

    @property
    def sent(self) -> bool:
        """Whether the sums are sent, rather than something that the client computes from them."""
        return True

    def ratio(self, plan: PrivacyPlan) -> float:
        """The noise multiplier relative to that of training: costs add up as squares of sampling rate over noise."""
        if self.of_budget:
            # `hush.privacy.schedule.calibrated` replaces it.
            return 1.0
        seen = plan.rate if self.sampled else 1.0
        return seen / (plan.rate * math.sqrt(plan.steps * self.share))

    def longest(self, shape: ReleaseShape, rows: float, noise_multiplier: float) -> float:
        """The norm that an honest answer exceeds with probability at most 10^-13: bounded rows and a noise quantile."""
        return self.bound(shape) * (rows + noise_multiplier * (math.sqrt(self.width(shape)) + _DEVIATIONS))

    def fault(self, answer: Tensor | None, shape: ReleaseShape, longest: float = math.inf) -> str | None:
        """Return what is wrong with an answer, or None."""
        if answer is None:
            return f"it has no {self.what}"
        if answer.dtype != torch.float64 or tuple(answer.shape) != (self.width(shape),):
            return f"its {self.what} does not have the requested type and size"
        if not bool(torch.isfinite(answer).all()):
            return f"its {self.what} is not finite"
        if float(answer.norm()) > longest:
            return f"its {self.what} exceeds the {longest:.4g} that its plan allows"
        return None
