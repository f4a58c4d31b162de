"""Between dp_accounting's events and accountants, and the runs of equal steps that Hush computes with.

Guarantees:
    `parts_of` keeps the order-free content of an event exactly. `renyi_epsilon` and `reference_epsilon` are upper
    bounds as far as dp_accounting's are. No log line or warning of dp_accounting escapes, and no logger but its own is
    touched, and that only for the length of a call.

Edge cases:
    A release without noise is a step with noise 0, and costs infinity. No step at all costs 0.
    Under replace-one a record moves the sum by twice the clip. dp_accounting's Renyi accountant ignores that for a
    Gaussian (we halve the noise for it) and has no bound for Poisson sampling (refused).
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from typing import TYPE_CHECKING, TypeAlias

from hush.privacy import pld
from hush.privacy.pld import Part
from hush.types import HushError, Relation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dp_accounting import DpEvent

Event: TypeAlias = "DpEvent"


def parts_of(event: Event) -> list[Part]:
    """The steps of an event."""
    import dp_accounting as dp

    if isinstance(event, dp.NoOpDpEvent):
        return []
    if isinstance(event, dp.NonPrivateDpEvent):
        return [Part(1.0, 0.0, 1)]
    if isinstance(event, dp.ComposedDpEvent):
        return [part for each in event.events for part in parts_of(each)]
    if isinstance(event, dp.SelfComposedDpEvent):
        return [Part(rate, noise, count * event.count) for rate, noise, count in parts_of(event.event) if event.count]
    rate = 1.0
    if isinstance(event, dp.PoissonSampledDpEvent):
        rate, event = event.sampling_probability, event.event
    if isinstance(event, dp.GaussianDpEvent) and 0.0 <= rate <= 1.0 and event.noise_multiplier >= 0.0:
        return [Part(rate, event.noise_multiplier, 1)] if rate else []
    raise HushError(
        f"event: cannot account for {event!r} at rate {rate}; accepted: Gaussian, Poisson-sampled Gaussian, no-op and "
        "non-private events, and compositions of these"
    )


def renyi_epsilon(parts: Sequence[Part], delta: float, relation: Relation) -> float:
    """The epsilon of these steps by dp_accounting's Renyi accountant."""
    from dp_accounting.rdp import RdpAccountant

    halved = 2.0 if relation == "replace-one" else 1.0
    if halved > 1.0 and any(part.rate < 1.0 for part in parts):
        raise HushError("accountant: rdp has no bound for Poisson sampling under replace-one; accepted here: pld")
    if any(part.noise == 0.0 for part in parts):
        return math.inf
    with _quiet():
        accountant = RdpAccountant()
        for rate, noise, count in pld.merge(parts):
            accountant.compose(_step_event(rate, noise / halved), count)
        return float(accountant.get_epsilon(delta))


def reference_epsilon(event: Event, delta: float, relation: Relation = "add-remove") -> float:
    """The bound of `accounting.epsilon` by dp_accounting's own PLD on the same grid: a slow second opinion."""
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.privacy_accountant import NeighboringRelation

    parts = parts_of(event)
    if not parts or any(part.noise == 0.0 for part in parts):
        return math.inf if parts else 0.0
    merged = pld.merge(parts)
    one = relation == "replace-one"
    with _quiet():
        accountant = PLDAccountant(
            NeighboringRelation.REPLACE_ONE if one else NeighboringRelation.ADD_OR_REMOVE_ONE,
            pld.interval(merged, "replace" if one else "remove"),
        )
        for rate, noise, count in merged:
            accountant.compose(_step_event(rate, noise), count)
        return float(accountant.get_epsilon(delta))


def _step_event(rate: float, noise: float) -> Event:
    import dp_accounting as dp

    plain = dp.GaussianDpEvent(noise)
    return plain if rate == 1.0 else dp.PoissonSampledDpEvent(rate, plain)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """dp_accounting warns of every order it leaves out: expected, and of no use to a reader."""
    logger = logging.getLogger("absl")
    disabled = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = disabled
