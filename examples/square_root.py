"""Weights by the square root of the amount of data: an option that uses a fact about clients, and says so."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hush.recipes.option import Option
from hush.recipes.view import RoundView, State, Weighing
from hush.types import Release


@dataclass(frozen=True)
class SquareRoot(Option):
    """Between equal weights and weights by amount of data."""

    def weigh(self, view: RoundView, state: State) -> tuple[Weighing, State]:
        """In proportion to sqrt(N_i)."""
        return Weighing(self.foreseen(view)), state

    def foreseen(self, view: RoundView) -> Tensor:
        """The same: no update is needed to know it."""
        roots = view.samples.sqrt()
        return roots / roots.sum()

    def releases(self) -> tuple[Release, ...]:
        """How much data each client has."""
        return (Release("number of training samples", False, "taken as public, and its root used as the weight"),)
