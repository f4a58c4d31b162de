"""The bound on the rounding of composed losses holds against 50 digits, and is not void."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from hush.privacy.accounting import gaussian, pld
from hush.privacy.accounting.pld import Part

CASES = [
    Part(0.5, 1.0, 3),
    Part(0.1, 2.0, 64),
    Part(0.3, 5.0, 256),
    pytest.param(Part(0.02, 0.8, 1024), marks=pytest.mark.soak),
]
DELTA = 1e-12


def polynomial_power(mass: np.ndarray, steps: int) -> list[float]:
    """The masses of a sum of equal steps, by products of integers cut to 180 bits: right to 40 digits."""
    bits = 180
    base = [int(mpmath.ldexp(mpmath.mpf(float(value)), bits)) for value in mass]

    def product(one: list[int], other: list[int]) -> list[int]:
        width = 2 * bits + 40
        packed = [sum(value << (width * at) for at, value in enumerate(each)) for each in (one, other)]
        whole, mask = packed[0] * packed[1], (1 << width) - 1
        return [((whole >> (width * at)) & mask) >> bits for at in range(len(one) + len(other) - 1)]

    result, count = [1 << bits], steps
    while count:
        if count & 1:
            result = product(result, base)
        count >>= 1
        if count:
            base = product(base, base)
    return [value / 2.0**bits for value in result]


@pytest.mark.parametrize("part", CASES)
def test_sums_of_masses_are_within_the_bound(part: Part) -> None:
    tail = pld.tail_of(part.steps, DELTA)
    width = 12.0 * pld.width_of([part], DELTA, "remove")  # a coarse grid, so that exact products are affordable
    found = pld.composed((part,), DELTA, "remove", width, tail)
    step = pld._step(part.rate, part.noise, "remove", width, tail)
    exact = np.array(polynomial_power(step.mass, part.steps))
    first = round(found.values[0] / width) - part.steps * step.low
    error = np.abs(found.mass - exact[first : first + len(found.mass)]).sum()
    rounding = found.doubt - 2.0 * pld._TAIL * DELTA - 2.0 * tail * part.steps
    assert error < rounding < 1e-9
    # The wrong twin: half of a unit roundoff for each step would be too little for some of them.
    assert error > 1e-18


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_bound_that_overflows_is_infinite() -> None:
    assert pld.epsilon([Part(1e-3, 1e5, 10**300)], 1e-5, "add-remove") == math.inf


def test_divergences_of_a_step_are_within_32_roundoffs() -> None:
    mpmath.mp.dps = 50
    for rate, noise in ((0.5, 0.6), (0.01, 1.0), (0.3, 4.0), (1.0, 2.0)):
        for eps in (-0.3, 0.0, 0.01, 0.4, 2.0, 7.0):
            ours = float(gaussian.divergences(np.array([eps]), rate, noise, "remove")[0])
            alpha, q, z = mpmath.exp(eps), mpmath.mpf(rate), mpmath.mpf(noise)
            ratio = (alpha - 1 + q) / q
            if ratio <= 0:
                truth = 1 - alpha
            else:
                at = z * z * mpmath.log(ratio) + mpmath.mpf(1) / 2
                up = (1 - q) * mpmath.ncdf(-at / z) + q * mpmath.ncdf((1 - at) / z)
                truth = up - alpha * mpmath.ncdf(-at / z)
            assert abs(ours - float(truth)) <= 32 * 2.0**-53
