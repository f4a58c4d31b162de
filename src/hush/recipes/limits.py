"""Limits on one client's influence on a round: on its weight, and on the norm of its update.

What a client declares (rows, budget) sets its weight, and also how far its update may go: steps times learning rate.
So what is limited is the product of both, its share of all that a round can move. Weights below the limit are left as
they are, relative to each other.

A plan bounds the norm of an update in the worst case: all gradients at the clipping norm, and in one direction. Honest
updates stay far below that, so a client that goes there in every round moves a model further than its weight says. An
honest update is a signal and noise of known energy, so the squared norms less the planned noise tell how long signals
are, and their median does not depend on what a minority sends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from hush.recipes.context import RoundView

Ceiling = Callable[[int], float]

_TIMES = 2.0  # how much longer than the median a signal may be
_FEWEST = 3  # updates, of which one may lie
_ERRORS = 5.0 * math.sqrt(math.pi / 2)  # standard errors of a median of normal numbers


@cache  # so that equal ceilings are equal
def fixed(share: float | None) -> Ceiling:
    """The same share however many clients there are; none means no ceiling."""
    return lambda clients: 1.0 if share is None else share


NONE = fixed(None)


@dataclass(frozen=True, kw_only=True)
class InfluenceLimits:
    """What limits one client in a round.

    Attributes:
        ceiling: The largest share of a model's total pull that one client can have, by how many clients move it.
        noise_bounds: The norm that the noise of an honest update stays below, per client of the round, at the
            configured clipping norm; None where updates are not compared with each other.
        clip: The configured clipping norm.
    """

    ceiling: Ceiling = NONE
    noise_bounds: Tensor | None = None
    clip: float = 1.0


def twice_even(clients: int) -> float:
    """Twice an even share, and never the majority; no ceiling where there are only two."""
    return 1.0 if clients <= 2 else min(0.5, 2 / clients)


def capped(weights: Tensor, reach: Tensor, share: float) -> Tensor:
    """The weights with no client's part of the total pull, weight times reach, above `share`; they sum to one.

    A share below an even one cannot be kept, and is taken as even. Without a client above it, the weights are returned
    as they are.
    """
    clients = len(weights)
    share = max(share, 1 / clients)
    if share >= 1:
        return weights
    reach = reach.double().to(weights.device)
    pulls = weights.double() * reach
    if not bool((pulls > share * pulls.sum() * (1 + 1e-9)).any()):
        return weights
    order = pulls.argsort(descending=True)
    for above in range(1, clients):
        # The `above` largest get `share` of a total that the others make up the rest of.
        rest = float(pulls[order[above:]].sum())
        left = 1 - above * share
        if left <= 1e-9 or rest <= 0:
            break
        total = rest / left
        if float(pulls[order[above]]) <= share * total:
            held = pulls.clone()
            held[order[:above]] = share * total
            found = held / reach
            return (found / found.sum()).to(weights.dtype)
    even = torch.ones_like(pulls) / reach
    return (even / even.sum()).to(weights.dtype)


def norm_limits(view: RoundView, noise: Tensor) -> Tensor:
    """By client, the norm that its update may have; infinite where there are fewer than three updates.

    `noise` is the norm that the noise of an honest update stays below. A client that makes more steps than the median
    may go as much further.
    """
    clients, size = view.updates.shape
    if clients < _FEWEST:
        return torch.full((clients,), math.inf, dtype=torch.float64)
    planned = view.planned_noise
    excess = view.updates.double().square().sum(1) - planned
    error = float(planned.median()) * math.sqrt(2 / (size * clients))
    signal = max(0.0, float(excess.median())) + _ERRORS * error
    steps = (view.reach / view.reach.median()).clamp(min=1.0)
    return (signal * (_TIMES * steps).square() + noise.square()).sqrt()
