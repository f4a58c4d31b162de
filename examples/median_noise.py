"""Noise by distance from the median update: a custom estimator in one file."""

from __future__ import annotations

from dataclasses import dataclass

import hush


@dataclass(frozen=True)
class MedianNoise(hush.Weight):
    """By the inverse of the squared distance between each update and the median of all, coordinate by coordinate."""

    power: float = 1.0

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise ValueError(f"power: expected a positive number, found {self.power}")

    def weight(self, view: hush.RoundView, state: hush.State) -> tuple[hush.Weights, hush.State]:
        """In proportion to 1 / estimate^power; the report shows the estimates beside the noise of the plans."""
        estimate = (view.updates - view.updates.median(dim=0).values).square().sum(dim=1).clamp_min(1e-12)
        inverse = estimate**-self.power
        return hush.Weights(inverse / inverse.sum(), noise=estimate), state
