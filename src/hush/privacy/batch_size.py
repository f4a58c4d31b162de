"""The batch size beyond which larger batches hardly lower the noise, for a number of steps under one budget.

The noise that training adds over T steps of a fixed length is the noise multiplier z over the sampling rate q, per
step and row. By the central limit theorem for sampled Gaussian steps (Bu, Dong, Long and Su 2020), a run at rate q is
as private as one Gaussian mechanism of sensitivity over noise mu = q sqrt(T (exp(1 / z^2) - 1)), and full batches
(q = 1, no sampling) take z = sqrt(T) / mu. So sampling costs a factor z sqrt(exp(1 / z^2) - 1) of noise: 1.06 at z = 2,
1.3 at 1, 3.7 at 0.5. A run of few steps at a small rate needs little noise to be private, and there sampling is wasted.
At the rate at which z is `ENOUGH` it costs 7 percent in this limit, whatever the budget and the number of steps, and 8
to 18 percent by the accountant for 30 to 300 steps.

This chooses a batch size and guarantees nothing: the accountant calibrates the noise for the batch that is chosen.
"""

from __future__ import annotations

import math

from hush.privacy.accounting.gaussian import noise_for
from hush.types import Policy

ENOUGH = 2.0
_LARGEST = 300.0  # larger budgets need no noise to speak of


def least_noise_batch(policy: Policy, rows: int, steps: int) -> int:
    """Return the batch size at which `steps` steps over so many rows need a noise multiplier of about `ENOUGH`."""
    if policy.epsilon > _LARGEST:
        return rows
    noise = noise_for(policy.epsilon, policy.delta) * (2.0 if policy.relation == "replace-one" else 1.0)
    rate = 1.0 / (noise * math.sqrt(max(1, steps) * math.expm1(ENOUGH**-2)))
    return min(rows, math.ceil(rate * rows))
