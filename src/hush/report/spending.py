"""Privacy spending by round: epsilon computed by the accountant at selected rounds of each client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hush.privacy.accounting.cost import Cost
from hush.report.read import RunView
from hush.report.verdict import UNPROTECTED
from hush.types import Accountant, Guarantee, Relation, RoundRecord

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


@dataclass(frozen=True)
class _Cost:
    """What determines the cost of the charged rounds: the costs of each stage, and the stage of each round."""

    stages: tuple[tuple[Cost, ...], ...]
    charged: tuple[int, ...]
    delta: float
    relation: Relation
    accountant: Accountant

    def epsilon(self, charges: int) -> float:
        """Return the epsilon of the first charges."""
        from hush.privacy.accounting.api import epsilon_of

        counts = Counter(self.charged[:charges])
        costs = [
            replace(cost, steps=count * cost.steps) for stage, count in counts.items() for cost in self.stages[stage]
        ]
        return epsilon_of(costs, self.delta, self.relation, self.accountant)


def spending(view: RunView) -> Spending:
    """Return epsilon by round for each distinct plan, or for an evenly spaced selection if there are many."""
    charged = _charged(view.records)
    stages = {record.round: record.stage for record in view.records}
    groups: dict[tuple[_Cost, float, tuple[int, ...]], list[Guarantee]] = {}
    for guarantee in view.guarantees:
        rounds = charged.get(guarantee.client, ())
        cost = _cost(guarantee, tuple(stages[number] for number in rounds))
        if cost is not None and rounds:
            budget = guarantee.epsilon_budget or 0.0
            groups.setdefault((cost, budget, rounds), []).append(guarantee)
    chosen = evenly(sorted(groups.items(), key=lambda group: group[1][0].epsilon_spent or 0.0), LINES)
    known = _epsilons((cost, rounds, held[0]) for (cost, _, rounds), held in chosen)
    lines = tuple(
        Line(
            clients=tuple(guarantee.client for guarantee in held),
            budget=budget,
            rounds=tuple(rounds[charges - 1] for charges in _looked_at(rounds)),
            epsilon=tuple(known[cost, charges] for charges in _looked_at(rounds)),
        )
        for (cost, budget, rounds), held in chosen
    )
    return Spending(lines, len(groups))


def _charged(records: Sequence[RoundRecord]) -> dict[int, tuple[int, ...]]:
    """Return the charged rounds of each client: a refused update was charged, a missing one was not."""
    paid: dict[int, list[int]] = {}
    for record in records:
        for client in record.charged:
            paid.setdefault(client, []).append(record.round)
    return {client: tuple(rounds) for client, rounds in paid.items()}


def _cost(guarantee: Guarantee, charged: tuple[int, ...]) -> _Cost | None:
    if guarantee.noise == UNPROTECTED or not guarantee.noise_multiplier or not guarantee.stages:
        return None
    stages = tuple(tuple(Cost(**cost) for cost in stage) for stage in guarantee.stages)
    return _Cost(stages, charged, guarantee.delta, guarantee.relation, guarantee.accountant)


def _looked_at(rounds: Sequence[int]) -> list[int]:
    return evenly(range(1, len(rounds) + 1), POINTS)


def _epsilons(wanted: Iterable[tuple[_Cost, tuple[int, ...], Guarantee]]) -> dict[tuple[_Cost, int], float]:
    """Return epsilon by (cost, charged rounds): from the guarantee card if available, otherwise from the accountant."""
    known: dict[tuple[_Cost, int], float] = {}
    for cost, rounds, guarantee in wanted:
        if len(rounds) == guarantee.rounds and guarantee.epsilon_spent is not None:
            known[cost, len(rounds)] = guarantee.epsilon_spent
        for charges in _looked_at(rounds):
            if (cost, charges) not in known:
                known[cost, charges] = cost.epsilon(charges)
    return known


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most the given number of items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
