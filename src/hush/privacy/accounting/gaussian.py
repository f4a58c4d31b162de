"""One noisy step: the closed forms of the Gaussian mechanism, with and without Poisson sampling.

A step adds Gaussian noise of `noise` times the clip to a sum. A record adds 1 to it (in units of the clip) when it is
sampled, which happens with probability `rate`. Under replace-one it adds +1 on one side and -1 on the other. No other
pair of neighbouring data sets is worse (Theorem 1 of docs/proofs.md).

Guarantees:
    `divergences` is exact up to rounding: the least delta at each epsilon for one step (Balle and Wang, 2018,
    arXiv:1805.06530, for the plain mechanism; Balle, Barthe and Gaboardi, 2018, arXiv:1807.01647, for sampling).
    `epsilon_of` and `noise_for` invert it from above, to the last digits.

Edge cases:
    A removed record cannot lower the loss below `log(1 - rate)`; an added one cannot raise it above its negative.
    `epsilon_of` is 0 when noise alone keeps the total variation below delta.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Direction = Literal["remove", "add", "replace"]


def log_delta(noise: float, epsilon: float) -> float:
    """Return the logarithm of the delta of the plain mechanism."""
    from scipy.special import log_ndtr

    first = float(log_ndtr(0.5 / noise - epsilon * noise))
    gap = epsilon + float(log_ndtr(-0.5 / noise - epsilon * noise)) - first
    return first + math.log(-math.expm1(gap)) if gap < 0.0 else -math.inf


def epsilon_of(noise: float, delta: float) -> float:
    """Return the epsilon of the plain mechanism at `delta`."""
    if delta >= 1.0 or log_delta(noise, 0.0) <= math.log(delta):
        return 0.0
    low, high = 0.0, 1.0
    while log_delta(noise, high) > math.log(delta):
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if log_delta(noise, middle) > math.log(delta) else (low, middle)
    return high


def noise_for(epsilon: float, delta: float) -> float:
    """Return the least noise with which the plain mechanism is (epsilon, delta)-private, for delta < 1."""
    low, high = 1e-3, 1.0
    while log_delta(high, epsilon) > math.log(delta):
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if log_delta(middle, epsilon) > math.log(delta) else (low, middle)
    return high


def unsampled(epsilon: float, rate: float) -> float:
    """Return the epsilon of a plain step that sampling at `rate` turns into `epsilon`: it scales delta by `rate`."""
    return epsilon - math.log(rate) if epsilon > 50.0 else math.log1p(math.expm1(epsilon) / rate)


def sampled(epsilon: float, rate: float) -> float:
    """Return the inverse of `unsampled`."""
    return epsilon + math.log(rate) if epsilon > 100.0 - math.log(rate) else math.log1p(rate * math.expm1(epsilon))


def divergences(eps: Array, rate: float, noise: float, direction: Direction) -> Array:
    """Return the least delta of one step at each of `eps`, which may be negative."""
    if direction == "remove":
        return _removal(eps, rate, noise)
    return _addition(eps, rate, noise) if direction == "add" else _replacement(eps, rate, noise)


def _removal(eps: Array, rate: float, noise: float) -> Array:
    from scipy.special import log_ndtr, ndtr

    ratio = np.expm1(eps) / rate
    reached = ratio > -1.0
    plain = np.log1p(ratio[reached])
    deltas = -np.expm1(eps)
    lower = np.exp(plain + log_ndtr(-0.5 / noise - plain * noise))
    deltas[reached] = rate * (ndtr(0.5 / noise - plain * noise) - lower)
    return deltas


def _addition(eps: Array, rate: float, noise: float) -> Array:
    # Not computed as the complement of a removal, whose upper tail would be a difference of numbers near 1.
    from scipy.special import log_ndtr, ndtr

    ratio = np.expm1(-eps) / rate
    reached = ratio > -1.0
    plain = np.log1p(ratio[reached])
    deltas = np.zeros_like(eps)
    upper = np.exp(plain + log_ndtr(plain * noise + 0.5 / noise))
    deltas[reached] = rate * np.exp(eps[reached]) * (upper - ndtr(plain * noise - 0.5 / noise))
    return deltas


def _replacement(eps: Array, rate: float, noise: float) -> Array:
    from scipy.special import log_ndtr, ndtr

    half = np.abs(eps) / 2.0
    with np.errstate(divide="ignore"):
        log_stay = np.log(1.0 - rate)
        log_sinh = half + np.log(-np.expm1(-2.0 * half)) - math.log(2.0)
    # The released sum with loss eps: sinh and asinh solve the quadratic equation in exp(sum / noise^2).
    alpha = log_sinh + 0.5 / noise**2 + log_stay - math.log(rate)
    x = noise**2 * np.sign(eps) * (half + np.logaddexp(alpha, 0.5 * np.logaddexp(0.0, 2.0 * alpha)))
    upper = (1.0 - rate) * ndtr(-x / noise) + rate * ndtr((1.0 - x) / noise)
    lower = np.logaddexp(log_stay + log_ndtr(-x / noise), math.log(rate) + log_ndtr((-1.0 - x) / noise))
    deltas: Array = upper - np.exp(eps + lower)
    return deltas


def loss(x: Array, rate: float, noise: float, direction: Direction) -> Array:
    """Return the privacy loss at a released sum `x`."""
    if direction == "add":
        return -loss(x, rate, noise, "remove")
    if direction == "replace":
        return loss(x, rate, noise, "remove") - loss(-x, rate, noise, "remove")
    plain = (x - 0.5) / noise**2
    return np.logaddexp(math.log1p(-rate), math.log(rate) + plain) if rate < 1.0 else plain


def support(rate: float, noise: float, direction: Direction, tail: float) -> tuple[float, float]:
    """Losses between which all that matters lies: at the upper one the divergence, below the lower one the mass, is at
    most `tail`.
    """
    from scipy.special import ndtri

    reach = -noise * float(ndtri(tail))
    far = reach if direction == "add" else 1.0 - noise * float(ndtri(min(0.5, tail / rate)))
    ends = loss(np.array([-reach, far]), rate, noise, direction)
    return float(ends.min()), float(ends.max())


def loss_variance(rate: float, noise: float, direction: Direction) -> float:
    """Return the variance of the loss of one step, by quadrature."""
    nodes = np.linspace(-8.0, 8.0, 161)
    weights = np.exp(-0.5 * nodes**2)
    weights /= weights.sum()
    mean = square = 0.0
    for share, shift in ((1.0 - rate, 0.0), (rate, 1.0)):
        values = loss(shift + noise * nodes, rate, noise, direction)
        mean += share * float(weights @ values)
        square += share * float(weights @ values**2)
    # If the loss hardly varies, the difference consists of rounding errors.
    return max(square - mean**2, 1e-12 * square)
