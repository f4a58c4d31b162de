"""Participation: which clients are invited to each round, and, from the records, which of them took part.

Invitations are sampled before the run from public numbers, so that every client knows how many rounds to plan for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hush.privacy.schedule import StageTable
from hush.seeds import rng
from hush.types import RoundRecord

BUDGET_SPENT = "budget spent"
_LISTED = 6

Participants = tuple[tuple[int, ...], ...]


def draw_participants(seed: int, clients: int, rounds: int, participation: float, shared: bool = False) -> Participants:
    """Return the clients of each round: a fixed number, sampled without replacement, in ascending order.

    With `shared` draws they are those of DP-SCAFFOLD's public code, which seeds NumPy's legacy generator with (seed +
    1) times the number of completed rounds.
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


def stages_of(stage_table: StageTable, plan: Participants, clients: int) -> list[tuple[int, ...]]:
    """Return the stages of each client's rounds, in order. Enrolment comes first if it is a stage."""
    enrolment = [stage for stage in stage_table.of[:1] if stage >= 0]
    whole = tuple(range(clients))
    if all(members == whole for members in plan):
        return [(*enrolment, *stage_table.of[1:])] * clients
    orders = [list(enrolment) for _ in range(clients)]
    for stage, members in zip(stage_table.of[1:], plan, strict=True):
        for client in members:
            orders[client].append(stage)
    return [tuple(order) for order in orders]


def trained(records: Sequence[RoundRecord]) -> bool:
    """Return whether any client released an update."""
    return any(record.charged for record in records)


def out_of_budget(records: Sequence[RoundRecord]) -> dict[int, int]:
    """Return, for each client that ran out of budget, the first round that it could not afford."""
    found: dict[int, int] = {}
    for record in records:
        for client, reason in record.refused.items():
            if reason.startswith(BUDGET_SPENT):
                found.setdefault(client, record.round)
    return dict(sorted(found.items()))


def spent_words(spent: Mapping[int, int], clients: int, names: Sequence[str] = ()) -> str:
    """Return a sentence that lists the clients that ran out of budget, by name if they have names."""
    listed = [
        f"client {names[client] if names else client} from round {number} on"
        for client, number in list(spent.items())[:_LISTED]
    ]
    more = [f"{len(spent) - _LISTED:,} more"] if len(spent) > _LISTED else []
    return f"{len(spent):,} of {clients:,} clients ran out of budget: {', '.join([*listed, *more])}"


def nothing_trained(spent: Mapping[int, int], clients: int, names: Sequence[str] = ()) -> str:
    """Return why no client released an update."""
    if len(spent) == clients:
        return (
            f"all budgets are exhausted: none of the {clients:,} clients could afford a round, so nothing was trained"
        )
    if spent:
        return f"nothing was trained: {spent_words(spent, clients, names)}; no other client took part"
    return "nothing was trained: no client released an update"
