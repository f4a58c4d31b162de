"""How far the discrete Gaussian is from a rounded continuous one, which carries PLD over to it."""

from __future__ import annotations

import math

import mpmath
import pytest

from hush.privacy.plan import GRAINS

MOST = 3e-6  # times S^-8: Theorem 7 of docs/proofs.md


def chi_square(s: int, variance: mpmath.mpf) -> mpmath.mpf:
    """Of a continuous Gaussian with this variance, rounded to integers, from the discrete one of scale s."""
    mpmath.mp.dps = 40
    scale, norm = mpmath.sqrt(2 * variance), mpmath.sqrt(2 * mpmath.pi) * s
    total, before = mpmath.mpf(0), mpmath.erf(mpmath.mpf(-0.5) / scale)
    for k in range(11 * s):
        after = mpmath.erf((k + mpmath.mpf(0.5)) / scale)
        planned = mpmath.exp(-mpmath.mpf(k * k) / (2 * s * s)) / norm
        total += (1 if k == 0 else 2) * ((after - before) / 2 - planned) ** 2 / planned
        before = after
    return total


@pytest.mark.parametrize("s", [4, 16, 64, pytest.param(GRAINS, marks=pytest.mark.soak)])
def test_the_divergence_falls_with_the_eighth_power(s: int) -> None:
    matched = chi_square(s, mpmath.mpf(s * s) - mpmath.mpf(1) / 12)
    assert 0.9 * MOST < matched * s**8 < MOST
    # The wrong twin: noise of the full deviation, rounded, is much farther away.
    assert chi_square(s, mpmath.mpf(s * s)) > 100 * matched


def test_the_additional_delta_of_a_small_model_is_negligible() -> None:
    rows, steps, epsilon = 650, 500, 4.0
    apart = 0.5 * math.sqrt(rows * MOST / GRAINS**8)
    assert steps * (1.0 + math.exp(epsilon)) * apart < 3e-12
