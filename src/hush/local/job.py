"""One client's training in one round, as an engine asks for it.

A step moves the model y by -lr * (H + drift + proximal * (y - start)), where H is the noised mean gradient at y.

Guarantees:
    - The plan alone says which rows, which clip, how much noise and which divisor.
    - Drift and proximal pull are added after the noise: they see the data only through what is released already.

Edge cases:
    - The start is not changed by training.
    - A model that stands still has all its gradients taken at the start, so nothing pulls it back: its update is
      -lr times the sum of the steps' H + drift.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hush.privacy.noise import Source
from hush.privacy.plan import PrivacyPlan


@dataclass(frozen=True)
class Job:
    """One client's training in one round.

    Attributes:
        vector: The parameters to start from.
        first_row: Where the client's rows begin.
        plan: Rows, clip and noise.
        lr: The length of a step.
        source: What is drawn is drawn from here.
        drift: Added to the mean gradient in every step, as control variates do.
        proximal: How strongly a step pulls toward the start.
        still: Whether all gradients are taken at the start.
        centre: What is taken off every row before the model sees it, if anything.
    """

    vector: Tensor
    first_row: int
    plan: PrivacyPlan
    lr: float
    source: Source
    drift: Tensor | None = None
    proximal: float = 0.0
    still: bool = False
    centre: Tensor | None = None

    @property
    def corrected(self) -> bool:
        """Whether a step adds anything to the noised mean gradient."""
        return self.drift is not None or (self.proximal != 0.0 and not self.still)
