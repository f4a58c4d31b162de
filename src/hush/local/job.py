"""One client's training in one round, as an engine asks for it.

Guarantees:
    - The plan alone says which rows, which clip, how much noise and which divisor.

Edge cases:
    - The start is not changed by training.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hush.privacy.noise import Source
from hush.privacy.plan import PrivacyPlan


@dataclass(frozen=True)
class Job:
    """One client's training in one round."""

    vector: Tensor
    first_row: int
    plan: PrivacyPlan
    lr: float
    source: Source
    drift: Tensor | None = None
    proximal: float = 0.0
    still: bool = False
