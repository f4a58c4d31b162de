"""The reference accountant: dp_accounting's own PLD on the grid of `hush.privacy.accounting.pld`, slow."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation

from hush.privacy.accounting import pld
from hush.privacy.accounting.cost import Cost
from hush.privacy.accounting.events import parts_of, without_fixed
from hush.types import Relation


def composed(costs: Iterable[Cost]) -> dp.DpEvent:
    """Return the dp_accounting event of a composition of costs."""
    return dp.ComposedDpEvent([cost.event() for cost in costs])


def reference_epsilon(event: dp.DpEvent, delta: float, relation: Relation = "add-remove") -> float:
    """Return the bound of `accounting.epsilon` by dp_accounting's accountant."""
    parts = without_fixed(parts_of(event))
    if not parts or any(part.noise == 0.0 for part in parts):
        return math.inf if parts else 0.0
    merged = pld.merge(parts)
    one = relation == "replace-one"
    accountant = PLDAccountant(
        NeighboringRelation.REPLACE_ONE if one else NeighboringRelation.ADD_OR_REMOVE_ONE,
        pld.interval(merged, "replace" if one else "remove"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rate, noise, count in merged:
            plain = dp.GaussianDpEvent(noise)
            accountant.compose(plain if rate == 1.0 else dp.PoissonSampledDpEvent(rate, plain), count)
        return float(accountant.get_epsilon(delta))
