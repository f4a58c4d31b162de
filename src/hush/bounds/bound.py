"""The record of a bound: what is bounded, by how much after each number of rounds, and under which conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Condition:
    """A condition of a theorem: a number that must not exceed a limit."""

    what: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether the theorem's condition is met."""
        return self.value <= self.limit


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A bound of a paper on some quantity of a run.

    Attributes:
        theorem: Where the paper states it.
        quantity: What is bounded.
        rounds: Numbers of rounds.
        values: The bound after each of them.
        conditions: What must hold for the theorem; if one is not met, the values are no bound.
        caveat: What is known to be wrong or missing in the theorem as printed.
    """

    theorem: str
    quantity: str
    rounds: Sequence[int]
    values: Sequence[float]
    conditions: Sequence[Condition] = ()
    caveat: str = ""

    @property
    def applies(self) -> bool:
        """Whether all conditions are met."""
        return all(condition.met for condition in self.conditions)
