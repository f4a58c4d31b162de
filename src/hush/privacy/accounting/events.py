"""Between dp_accounting's events and accountants, and the runs of equal steps that Hush computes with.

Guarantees:
    `parts_of` keeps the order-free content of an event exactly. `renyi_epsilon` is an upper bound as far as
    dp_accounting's is. No log line or warning of dp_accounting escapes, and no logger but its own is
    touched, and that only for the length of a call.

Edge cases:
    A release without noise is a step with noise 0, and costs infinity. No step at all costs 0.
    Under replace-one a record moves the sum by twice the clip. dp_accounting's Renyi accountant ignores that for a
    Gaussian, on all rows or on batches of a fixed size (we halve the noise for it), and has no bound for Poisson
    sampling (refused).
    Batches of a fixed size, drawn without replacement, have a bound under replace-one by the Renyi accountant alone
    (Theorem 13 of docs/proofs.md). A
    PLD at the rate of Poisson sampling would understate them, so that every other combination is refused.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from hush.privacy.accounting import pld
from hush.privacy.accounting.pld import Part
from hush.types import HushError, Policy, Relation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dp_accounting import DpEvent

    from hush.privacy.accounting.cost import Cost
    from hush.privacy.accounting.gaussian import Array

Event: TypeAlias = "DpEvent"


_DATED_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 65))


@dataclass(frozen=True)
class Fixed:
    """A run of equal steps on batches of a fixed size: population size, batch size, noise multiplier, number of steps.

    Not a tuple like `Part`, because the two must never compare equal and share a cached epsilon.
    """

    samples: int
    batch: int
    noise: float
    steps: int


def parts_of(event: Event) -> list[Part | Fixed]:
    """Return the steps of an event."""
    import dp_accounting as dp

    if isinstance(event, dp.NoOpDpEvent):
        return []
    if isinstance(event, dp.NonPrivateDpEvent):
        return [Part(1.0, 0.0, 1)]
    if isinstance(event, dp.ComposedDpEvent):
        return [part for each in event.events for part in parts_of(each)]
    if isinstance(event, dp.SelfComposedDpEvent):
        return [_repeated(part, event.count) for part in parts_of(event.event) if event.count]
    if isinstance(event, dp.SampledWithoutReplacementDpEvent) and isinstance(event.event, dp.GaussianDpEvent):
        step = Fixed(event.source_dataset_size, event.sample_size, event.event.noise_multiplier, 1)
        if 0 < step.batch <= step.samples and step.noise >= 0.0:
            return [step]
    rate = 1.0
    if isinstance(event, dp.PoissonSampledDpEvent):
        rate, event = event.sampling_probability, event.event
    if isinstance(event, dp.GaussianDpEvent) and 0.0 <= rate <= 1.0 and event.noise_multiplier >= 0.0:
        return [Part(rate, event.noise_multiplier, 1)] if rate else []
    raise HushError(
        f"event: cannot account for {event!r} at rate {rate}; accepted: Gaussian, Poisson-sampled Gaussian, "
        "Gaussian on batches of a fixed size, no-op and non-private events, and compositions of these"
    )


def parts_of_costs(costs: Iterable[Cost]) -> tuple[Part | Fixed, ...]:
    """Return the steps of the costs in a client's ledger, with equal ones merged."""
    steps: dict[tuple[float, float] | tuple[int, int, float], int] = {}
    for cost in costs:
        fixed = cost.kind == "fixed-gaussian"
        key = (cost.samples, cost.batch, cost.noise) if fixed else (cost.rate, cost.noise)
        steps[key] = steps.get(key, 0) + cost.steps
    return tuple(_part(key, count) for key, count in sorted(steps.items()) if count)


def _part(key: tuple[float, ...], steps: int) -> Part | Fixed:
    if len(key) == 3:
        return Fixed(int(key[0]), int(key[1]), key[2], steps)
    return Part(key[0], key[1], steps)


def with_noise_scaled(part: Part | Fixed, scale: float) -> Part | Fixed:
    """Return the same steps with the noise multiplied by a factor."""
    if isinstance(part, Fixed):
        return replace(part, noise=part.noise * scale)
    return part._replace(noise=part.noise * scale)


def with_steps(part: Part | Fixed, steps: int) -> Part | Fixed:
    """Return the same kind of step, so many times."""
    return replace(part, steps=steps) if isinstance(part, Fixed) else part._replace(steps=steps)


def rate_of(part: Part | Fixed) -> float:
    """Return the sampling rate of a step."""
    return part.batch / part.samples if isinstance(part, Fixed) else part.rate


def without_fixed(parts: Sequence[Part | Fixed]) -> tuple[Part, ...]:
    """Return these steps, or raise a `HushError` if batches of a fixed size are among them."""
    kept = tuple(part for part in parts if isinstance(part, Part))
    if len(kept) < len(parts):
        raise _refusal(kept)
    return kept


def renyi_epsilon(
    parts: Sequence[Part | Fixed], delta: float, relation: Relation, *, dated: bool = False, order: int | None = None
) -> float:
    """Return the epsilon of these steps by dp_accounting's Renyi accountant.

    With `dated`, as in Robust-HDP: orders up to 64, and the conversion to epsilon of Mironov (2017). With `order`, an
    index, at this order alone, as a filter needs (Theorem 3 of docs/proofs.md).
    """
    if any(part.noise == 0.0 for part in parts):
        return math.inf
    orders, divergences = _renyi(parts, relation, dated)
    return min(_epsilons(orders, divergences, delta, dated, order))


def best_order(parts: Sequence[Part | Fixed], policy: Policy, *, dated: bool = False) -> int:
    """Return the index of the Renyi order at which a budget covers the largest multiple of these steps."""
    import numpy as np

    orders, divergences = _renyi(parts, policy.relation, dated)

    def multiple(index: int) -> float:
        if not math.isfinite(policy.epsilon) or not 0.0 < divergences[index] < math.inf:
            return -math.inf
        # Epsilon is the divergence plus a number that depends on the order and delta.
        large = np.full_like(divergences, 1e3)
        offset = _epsilons(orders, large, policy.delta, dated, index)[0] - 1e3
        return (policy.epsilon - offset) / float(divergences[index])

    return max(range(len(orders)), key=multiple)


def _epsilons(orders: Array, divergences: Array, delta: float, dated: bool, order: int | None) -> list[float]:
    """The epsilon at each order, or at one of them."""
    from dp_accounting.rdp import compute_epsilon

    if order is not None:
        orders, divergences = orders[order : order + 1], divergences[order : order + 1]
    if dated:
        plain = zip(orders, divergences, strict=True)
        return [float(divergence - math.log(delta) / (order - 1)) for order, divergence in plain]
    with _quiet():
        return [float(compute_epsilon(orders, divergences, delta)[0])]


def _renyi(parts: Sequence[Part | Fixed], relation: Relation, dated: bool) -> tuple[Array, Array]:
    """The Renyi divergences of these steps, and their orders."""
    import numpy as np
    from dp_accounting.rdp import RdpAccountant

    halved = 2.0 if relation == "replace-one" else 1.0
    fixed = [part for part in parts if isinstance(part, Fixed)]
    others = [part for part in parts if isinstance(part, Part)]
    if halved > 1.0 and any(part.rate < 1.0 for part in others):
        if fixed:
            raise _refusal(others)
        raise HushError("accountant: rdp has no bound for Poisson sampling under replace-one; accepted here: pld")
    if halved == 1.0:
        others = list(without_fixed(parts))
    if dated and fixed:
        raise HushError("accountant: rdp-64 has no bound for batches of a fixed size; accepted here: rdp")
    with _quiet():
        accountant = RdpAccountant(_DATED_ORDERS if dated else None)
        for rate, noise, count in pld.merge(others):
            accountant.compose(_step_event(rate, noise / halved), count)
        divergences = accountant.rdp
        for part in fixed:
            divergences = divergences + part.steps * _fixed_step(part.samples, part.batch, part.noise / halved)
        return np.asarray(accountant.orders, dtype=np.float64), np.asarray(divergences, dtype=np.float64)


@lru_cache(maxsize=256)
def _fixed_step(samples: int, batch: int, noise: float) -> Array:
    """The Renyi divergences, at dp_accounting's orders, of one step; noise is relative to the change by one row."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(samples, batch, dp.GaussianDpEvent(noise)))
    divergences: Array = accountant.rdp
    return divergences


def _repeated(part: Part | Fixed, count: int) -> Part | Fixed:
    if isinstance(part, Fixed):
        return replace(part, steps=count * part.steps)
    return part._replace(steps=count * part.steps)


def _refusal(others: Sequence[Part]) -> HushError:
    if any(part.rate < 1.0 for part in others):
        return HushError(
            "event: found Poisson batches and batches of a fixed size, which no accountant can compose; "
            "accepted: one of the two"
        )
    return HushError(
        "event: found batches of a fixed size, drawn without replacement; "
        "accepted for these: accountant rdp under relation replace-one"
    )


def _step_event(rate: float, noise: float) -> Event:
    import dp_accounting as dp

    plain = dp.GaussianDpEvent(noise)
    return plain if rate == 1.0 else dp.PoissonSampledDpEvent(rate, plain)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress dp_accounting's expected warnings about omitted orders."""
    logger = logging.getLogger("absl")
    disabled = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = disabled
