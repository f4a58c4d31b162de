"""Weights by the square root of the sample count: an option that declares the public facts it uses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import hush


@dataclass(frozen=True)
class SquareRoot(hush.Weight):
    """A compromise between equal weights and weights by sample count."""

    def weight(self, view: hush.RoundView, state: hush.State) -> tuple[hush.Weights, hush.State]:
        """In proportion to sqrt(N_i)."""
        return hush.Weights(self.foreseen(view)), state

    def foreseen(self, view: hush.RoundView) -> Tensor:
        """The same, because the weights do not depend on the updates."""
        roots = view.samples.sqrt()
        return roots / roots.sum()

    def releases(self) -> tuple[hush.Release, ...]:
        """The sample counts, which are not covered."""
        return (hush.Release("number of training samples", False, "taken as public, and its root used as the weight"),)
