"""Limits on the parameters of a client's tasks, independent of its budget.

A budget bounds the sum of all releases. Limits bound each single one, so that a task with hardly any noise, or with far
more steps than agreed, is refused before it is charged.

Guarantees:
    - `check` compares what the client's own plan would do, never what a task says about itself.
    - A number that cannot be compared (NaN) is refused.

Edge cases:
    - The default limits refuse nothing but a rate above 1, which no plan can have.
    - Training without protection has no noise and an infinite clip: any least noise or largest clip refuses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hush.privacy.plan import PrivacyPlan
from hush.types import HushError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for one round.

    Attributes:
        max_rate: The maximum sampling rate.
        max_steps: The maximum number of noisy steps per round.
        max_rounds: The maximum number of rounds of a plan.
        min_noise: The minimum noise multiplier.
        min_clip: The minimum clipping norm.
        max_clip: The maximum clipping norm.
    """

    max_rate: float = 1.0
    max_steps: float = math.inf
    max_rounds: float = math.inf
    min_noise: float = 0.0
    min_clip: float = 0.0
    max_clip: float = math.inf

    def __post_init__(self) -> None:
        if not 0 < self.max_rate <= 1:
            raise HushError(f"max_rate: found {self.max_rate!r}; accepted: above 0 and at most 1", "max_rate")
        for name in ("max_steps", "max_rounds"):
            if not getattr(self, name) >= 1:
                raise HushError(f"{name}: found {getattr(self, name)!r}; accepted: 1 or more", name)
        if not 0 <= self.min_noise < math.inf:
            raise HushError(f"min_noise: found {self.min_noise!r}; accepted: 0 or more", "min_noise")
        if not 0 <= self.min_clip <= self.max_clip:
            raise HushError(
                f"min_clip, max_clip: found {self.min_clip!r}, {self.max_clip!r}; accepted: 0 or more, in this order",
                "min_clip",
            )


def check(plan: PrivacyPlan, limits: Limits) -> None:
    """Raise a `HushError` that names the first limit that the plan exceeds."""
    for name, found, least, most in (
        ("sampling rate", plan.rate, 0.0, limits.max_rate),
        ("steps per round", plan.steps, 0.0, limits.max_steps),
        ("rounds", plan.rounds, 0.0, limits.max_rounds),
        ("noise multiplier", plan.noise_multiplier, limits.min_noise, math.inf),
        ("clip", plan.clip, limits.min_clip, limits.max_clip),
    ):
        if not least <= found <= most:
            accepted = f"at most {most:g}" if found > most else f"at least {least:g}"
            raise HushError(f"task: {name} {found:g} exceeds this client's limits; accepted: {accepted}")
