"""Who takes part in which round: drawn beforehand, from public numbers, so that a client knows what it must afford."""

from __future__ import annotations

import numpy as np

from hush.privacy.course import Outline
from hush.seeds import rng

Schedule = tuple[tuple[int, ...], ...]


def schedule(seed: int, clients: int, rounds: int, participation: float, shared: bool = False) -> Schedule:
    """The clients of each round: a fixed number of them, drawn without replacement, in rising order.

    With `shared` draws they are those of DP-SCAFFOLD's public code, which seeds NumPy's old generator by (seed + 1)
    times the rounds that are over.
    """
    chosen = max(1, round(participation * clients))
    if chosen == clients:
        return (tuple(range(clients)),) * rounds
    draws = (_draw(seed, number, shared) for number in range(1, rounds + 1))
    return tuple(tuple(sorted(draw.choice(clients, chosen, replace=False).tolist())) for draw in draws)


def _draw(seed: int, number: int, shared: bool) -> np.random.Generator | np.random.RandomState:
    if shared:
        return np.random.RandomState((seed + 1) * (number - 1) % 2**32)
    return rng(seed, "participation", number)


def stages_of(outline: Outline, plan: Schedule, clients: int) -> list[tuple[int, ...]]:
    """The stages of each client's rounds, one after the other, enrolment first where it is a stage."""
    enrolment = [stage for stage in outline.of[:1] if stage >= 0]
    whole = tuple(range(clients))
    if all(members == whole for members in plan):
        return [(*enrolment, *outline.of[1:])] * clients
    orders = [list(enrolment) for _ in range(clients)]
    for stage, members in zip(outline.of[1:], plan, strict=True):
        for client in members:
            orders[client].append(stage)
    return [tuple(order) for order in orders]
