"""Update bounds: what an honest update stays below, by its plan alone, so that they are public.

Each holds with probability at least 1 - 10^-13.
"""

from __future__ import annotations

import math

from hush.privacy.plan import PrivacyPlan

_MISSED = 1e-13


def largest_batches(plan: PrivacyPlan, batches: int = 1) -> float:
    """Return the most rows in this many batches, over the expected number."""
    expected = batches * plan.batch
    return min(batches * plan.samples, expected + 8 * math.sqrt(expected) + 24) / expected


def longest_signal(plan: PrivacyPlan, lr: float) -> float:
    """Return the largest norm of an update without its noise."""
    largest = 1.0 if plan.whole_update else largest_batches(plan, plan.steps)
    return plan.reach(lr) * plan.clip * largest


def largest_entry(plan: PrivacyPlan, lr: float, size: int) -> float:
    """Return the largest absolute value of any of the `size` numbers of an update; infinite without noise."""
    if not plan.private:
        return math.inf
    deviation = math.sqrt(plan.update_noise(lr, size) / size)
    return longest_signal(plan, lr) + deviation * math.sqrt(2 * math.log(2 * size / _MISSED))
