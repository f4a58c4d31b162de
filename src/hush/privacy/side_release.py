"""A side release: what a client releases beside its update, as a noised sum over rows of bounded vectors.

An option that needs a number from clients declares a `SideRelease`: how many numbers one row gives (`row`), and the
norm that a row's vector has at most (`bound`). Rows are evaluated one by one, cut to the bound, summed and noised by
`hush.engines.side_releases`, with the noise that the client's plan has for it; an option can neither leave out the clip
nor the noise. The ledger is charged for it (`hush.privacy.schedule`), and the server gets the noised sums.
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
        classes: How many labels there are.
        parameters: Of the model.
        models: How many models the client has, in a round in which it chooses one; else 1.
        loss_clip: What losses are cut to, as configured.
    """

    inputs: tuple[int, ...]
    classes: int
    parameters: int
    models: int = 1
    loss_clip: float = 1.0


@dataclass(frozen=True)
class RowModel:
    """The model that a row is looked at with.

    Attributes:
        vector: Its parameters, flat.
        logits: The outputs for one row at a flat parameter vector: `logits(vector, x)`.
        shape: Public numbers of the run.
    """

    vector: Tensor
    logits: Callable[[Tensor, Tensor], Tensor]
    shape: ReleaseShape


@dataclass(frozen=True)
class SideRelease(ABC):
    """A noised sum that clients release beside the update.

    Attributes:
        what: Its name, in the words of the guarantee.
        share: What it costs each time, over what an ordinary round of training costs. It sets its noise; the accountant
            then counts what that noise really costs.
        sampled: Whether it looks at one batch of the plan's sampler, in place of all rows.
    """

    what: str
    share: float
    sampled: bool = False

    @abstractmethod
    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        """One row's vector, from its input and its label alone. Evaluated under `torch.vmap`: rows cannot mix."""

    def width(self, shape: ReleaseShape) -> int:
        """How many numbers it has."""
        return 1

    def bound(self, shape: ReleaseShape) -> float:
        """The norm to which a row's vector is cut: what one row contributes at most."""
        return 1.0

    @property
    def sent(self) -> bool:
        """Whether the sums are sent, in place of something that the client makes of them."""
        return True

    def ratio(self, plan: PrivacyPlan) -> float:
        """Its noise multiplier over that of training, by the rule that costs add up as squares of rate over noise."""
        seen = plan.rate if self.sampled else 1.0
        return seen / (plan.rate * math.sqrt(plan.steps * self.share))

    def longest(self, shape: ReleaseShape, rows: float, noise_multiplier: float) -> float:
        """A norm that an honest answer stays below but for one time in 10^13: bounded rows and a noise quantile."""
        return self.bound(shape) * (rows + noise_multiplier * (math.sqrt(self.width(shape)) + _DEVIATIONS))

    def fault(self, answer: Tensor | None, shape: ReleaseShape, longest: float = math.inf) -> str | None:
        """What is wrong with an answer, or None."""
        if answer is None:
            return f"it has no {self.what}"
        if answer.dtype != torch.float64 or tuple(answer.shape) != (self.width(shape),):
            return f"its {self.what} does not have the requested type and size"
        if not bool(torch.isfinite(answer).all()):
            return f"its {self.what} is not finite"
        if float(answer.norm()) > longest:
            return f"its {self.what} exceeds the {longest:.4g} that its plan allows"
        return None
