"""Limits on one client's influence on a round: on its weight, and on the norm of its update.

The facts that a client declares (rows, budget) determine its weight, and also the reach of its update: steps times
learning rate. Therefore the product of the two is limited: the client's share of the total possible change in a round.
The ratios of weights below the limit do not change.

A plan bounds the norm of an update in the worst case: all gradients at the clipping norm and in the same direction.
Honest updates are far shorter, so a client that exploits the worst case in every round moves a model further than its
weight suggests. An honest update is a signal plus noise of known energy. The squared norms minus the planned noise
estimate the norms of the signals, and a minority of clients cannot move their median.
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

_TIMES = 2.0  # maximum norm of a signal, relative to the median
_FEWEST = 3  # number of updates below which one malicious update dominates
_ERRORS = 5.0 * math.sqrt(math.pi / 2)  # standard errors of the median of normal numbers


@cache  # so that equal ceilings compare equal
def fixed(share: float | None) -> Ceiling:
    """The same ceiling for any number of clients; None means no ceiling."""
    return lambda clients: 1.0 if share is None else share


NONE = fixed(None)


@dataclass(frozen=True, kw_only=True)
class InfluenceLimits:
    """Limits on one client's influence in a round.

    Attributes:
        ceiling: The largest share of a model's total change that one client may cause, by the number of clients.
        noise_bounds: The maximum norm of the noise in an honest update, per client of the round, at the configured
            clipping norm; None if updates are not compared with each other.
        clip: The configured clipping norm.
    """

    ceiling: Ceiling = NONE
    noise_bounds: Tensor | None = None
    clip: float = 1.0


def twice_even(clients: int) -> float:
    """Twice an equal share, but never a majority; no ceiling for two clients."""
    return 1.0 if clients <= 2 else min(0.5, 2 / clients)


def capped(weights: Tensor, reach: Tensor, share: float) -> Tensor:
    """Limit each client's share of the total, weight times reach, to `share`. The weights sum to one.

    A share below an equal one is impossible and is raised to it. If no client exceeds the limit, the weights are
    returned unchanged.
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
        # The `above` largest clients get `share` each of a total that the other clients complete.
        rest = float(pulls[order[above:]].sum())
        left = 1 - above * share
        if left <= 1e-9 or rest <= 0:
            break
        total = rest / left
        if float(pulls[order[above]]) <= share * total:
            limited = pulls.clone()
            limited[order[:above]] = share * total
            found = limited / reach
            return (found / found.sum()).to(weights.dtype)
    even = torch.ones_like(pulls) / reach
    return (even / even.sum()).to(weights.dtype)


def norm_limits(view: RoundView, noise: Tensor) -> Tensor:
    """Return the maximum norm of each client's update; infinite for fewer than three updates.

    `noise` is the maximum norm of the noise in an honest update. The limit grows with the number of steps for a client
    that takes more steps than the median.
    """
    clients, size = view.matrix.shape
    if clients < _FEWEST:
        return torch.full((clients,), math.inf, dtype=torch.float64)
    planned = view.planned_noise
    excess = view.matrix.squared_norms() - planned
    error = float(planned.median()) * math.sqrt(2 / (size * clients))
    signal = max(0.0, float(excess.median())) + _ERRORS * error
    steps = (view.reach / view.reach.median()).clamp(min=1.0)
    return (signal * (_TIMES * steps).square() + noise.square()).sqrt()
