"""A job: one client's training in one round, as an engine asks for it.

`hush.training.update_rule` says what a step does.

Guarantees:
    - The plan alone says which rows, which clip, how much noise and which divisor.

Edge cases:
    - The start is not changed by training.
    - Where all gradients are taken at the start, nothing pulls the client back: its update is -lr times the sum of
      H + drift over its steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hush.privacy.persons import Persons
from hush.privacy.plan import PrivacyPlan
from hush.privacy.source import Source


@dataclass(frozen=True, kw_only=True)
class Job:
    """One client's training in one round.

    Attributes:
        vector: The parameters to start from.
        first_row: Where the client's rows begin.
        plan: Sampling, clip and noise.
        lr: Step size.
        source: The client's random numbers.
        drift: Added to the mean gradient in every step, as control variates do.
        proximal: How strongly a step pulls toward the start.
        at_start: Whether all gradients are taken at the start.
        input_mean: Subtracted from every input before the model sees it, if given.
        persons: Whose the client's rows are, where the plan samples persons.
        idle: Whether there is nothing to train: the update is zero, and nothing is drawn.
    """

    vector: Tensor
    first_row: int
    plan: PrivacyPlan
    lr: float
    source: Source
    drift: Tensor | None = None
    proximal: float = 0.0
    at_start: bool = False
    input_mean: Tensor | None = None
    persons: Persons | None = None
    idle: bool = False

    @property
    def rows(self) -> int:
        """The number of the client's rows."""
        return self.plan.samples if self.persons is None else self.persons.rows
