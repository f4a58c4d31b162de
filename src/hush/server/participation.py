"""Participation: who is invited to which round, and, from the records, who took part.

Invitations are drawn beforehand, from public numbers, so that a client knows what it must afford.
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


def stages_of(stage_table: StageTable, plan: Participants, clients: int) -> list[tuple[int, ...]]:
    """The stages of each client's rounds, one after the other, enrolment first where it is a stage."""
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
    """Whether any client released an update."""
    return any(record.charged for record in records)


def out_of_budget(records: Sequence[RoundRecord]) -> dict[int, int]:
    """The first round that each client could not afford, for those that came to one."""
    found: dict[int, int] = {}
    for record in records:
        for client, reason in record.refused.items():
            if reason.startswith(BUDGET_SPENT):
                found.setdefault(client, record.round)
    return dict(sorted(found.items()))


def spent_words(spent: Mapping[int, int], clients: int, names: Sequence[str] = ()) -> str:
    """Which clients could not afford which round, in a sentence; `names` of clients, where they have any."""
    listed = [
        f"client {names[client] if names else client} from round {number} on"
        for client, number in list(spent.items())[:_LISTED]
    ]
    more = [f"{len(spent) - _LISTED:,} more"] if len(spent) > _LISTED else []
    return f"{len(spent):,} of {clients:,} clients ran out of budget: {', '.join([*listed, *more])}"


def nothing_trained(spent: Mapping[int, int], clients: int, names: Sequence[str] = ()) -> str:
    """Why a run in which no client released an update trained nothing."""
    if len(spent) == clients:
        return (
            f"all budgets are exhausted: none of the {clients:,} clients could afford a round, so nothing was trained"
        )
    if spent:
        return f"nothing was trained: {spent_words(spent, clients, names)}; no other client took part"
    return "nothing was trained: no client released an update"
