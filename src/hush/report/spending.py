"""Privacy spending by round: epsilon computed by the accountant at selected rounds of each client."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hush.privacy.accounting.cost import from_json
from hush.privacy.round_costs import ClientCosts
from hush.report.read import RunView
from hush.types import Guarantee, Policy, RoundRecord

POINTS = 6
LINES = 60
T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """Epsilon spent by the clients with one plan, after selected rounds."""

    clients: tuple[int, ...]
    budget: float
    rounds: tuple[int, ...]
    epsilon: tuple[float, ...]


@dataclass(frozen=True)
class Spending:
    """The computed lines, and the total number of distinct plans."""

    lines: tuple[Line, ...]
    total: int


def spending(view: RunView) -> Spending:
    """Return epsilon by round for each distinct plan, or for an evenly spaced selection if there are many.

    It is that of the ledger: what was charged at enrolment and by earlier runs counts from the first round on.
    """
    charged = _charged(view.records)
    stages = {record.round: record.stage for record in view.records}
    groups: dict[tuple[ClientCosts, tuple[int, ...]], list[int]] = {}
    for client, costs in _costs(view):
        if rounds := charged.get(client, ()):
            groups.setdefault((costs, rounds), []).append(client)
    chosen = evenly(sorted(groups.items(), key=lambda group: (group[0][0].policy.epsilon, group[1])), LINES)
    lines = []
    for (costs, rounds), clients in chosen:
        counted = evenly(range(1, len(rounds) + 1), POINTS)
        epsilon = tuple(costs.epsilon(Counter(stages[number] for number in rounds[:count])) for count in counted)
        if all(map(math.isfinite, epsilon)):
            at = tuple(rounds[count - 1] for count in counted)
            lines.append(Line(clients=tuple(clients), budget=costs.policy.epsilon, rounds=at, epsilon=epsilon))
    return Spending(tuple(lines), len(groups))


def _costs(view: RunView) -> Iterator[tuple[int, ClientCosts]]:
    """Yield what rounds cost each client: as the run wrote it, or, for runs that did not, from the guarantee cards."""
    if view.costs is not None:
        yield from enumerate(view.costs.clients)
        return
    for card in view.guarantees:
        if card.noise_multiplier and card.stages:
            yield card.client, _from_card(card)


def _from_card(card: Guarantee) -> ClientCosts:
    budget = math.inf if card.epsilon_budget is None else card.epsilon_budget
    return ClientCosts(
        policy=Policy(budget, card.delta, card.relation),
        accountant=card.accountant,
        earlier=(),
        stages=tuple(from_json(json.dumps(list(map(dict, stage)))) for stage in card.stages),
    )


def _charged(records: Sequence[RoundRecord]) -> dict[int, tuple[int, ...]]:
    """Return the charged rounds of each client: a refused update was charged, a missing one was not."""
    paid: dict[int, list[int]] = {}
    for record in records:
        for client in record.charged:
            paid.setdefault(client, []).append(record.round)
    return {client: tuple(rounds) for client, rounds in paid.items()}


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most the given number of items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
