"""Privacy spent by round: the accountant's own figures at a few rounds of each client, and nothing in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hush.report.read import RunView
from hush.report.verdict import UNPROTECTED
from hush.types import Accountant, Guarantee, Relation, RoundRecord

POINTS = 6
LINES = 60
T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """What the clients with one plan had spent after each of some rounds."""

    clients: tuple[int, ...]
    budget: float
    rounds: tuple[int, ...]
    epsilon: tuple[float, ...]


@dataclass(frozen=True)
class Spending:
    """The lines that were computed, and how many there are in all."""

    lines: tuple[Line, ...]
    total: int


@dataclass(frozen=True)
class _Cost:
    """What sets the price of a round."""

    sample_rate: float
    noise_multiplier: float
    steps: int
    delta: float
    relation: Relation
    accountant: Accountant


def spending(view: RunView) -> Spending:
    """Epsilon against round for each distinct plan, or for a spread of them where they are many."""
    charged = _charged(view.records)
    groups: dict[tuple[_Cost, float, tuple[int, ...]], list[Guarantee]] = {}
    for guarantee in view.guarantees:
        rounds = charged.get(guarantee.client, ())
        cost = _cost(guarantee)
        if cost is not None and rounds:
            budget = guarantee.epsilon_budget or 0.0
            groups.setdefault((cost, budget, rounds), []).append(guarantee)
    chosen = _spread(sorted(groups.items(), key=lambda group: group[1][0].epsilon_spent or 0.0), LINES)
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
    """The rounds that each client paid for: a refused update was paid for, one that never came was not."""
    paid: dict[int, list[int]] = {}
    for record in records:
        for client in record.charged:
            paid.setdefault(client, []).append(record.round)
    return {client: tuple(rounds) for client, rounds in paid.items()}


def _cost(guarantee: Guarantee) -> _Cost | None:
    if guarantee.noise == UNPROTECTED or not guarantee.noise_multiplier or not guarantee.rounds:
        return None
    return _Cost(
        guarantee.sample_rate,
        guarantee.noise_multiplier,
        guarantee.steps // guarantee.rounds,
        guarantee.delta,
        guarantee.relation,
        guarantee.accountant,
    )


def _looked_at(rounds: Sequence[int]) -> list[int]:
    return _spread(range(1, len(rounds) + 1), POINTS)


def _epsilons(wanted: Iterable[tuple[_Cost, tuple[int, ...], Guarantee]]) -> dict[tuple[_Cost, int], float]:
    """Epsilon by (cost, rounds charged): from the card where it says it, else from the accountant, each once."""
    from hush.privacy.accounting import epsilon_after

    known: dict[tuple[_Cost, int], float] = {}
    asked: dict[_Cost, set[int]] = {}
    for cost, rounds, guarantee in wanted:
        asked.setdefault(cost, set()).update(_looked_at(rounds))
        if len(rounds) == guarantee.rounds and guarantee.epsilon_spent is not None:
            known[cost, len(rounds)] = guarantee.epsilon_spent
    for cost, charges in asked.items():
        missing = sorted(number for number in charges if (cost, number) not in known)
        if missing:
            steps = [number * cost.steps for number in missing]
            found = epsilon_after(
                cost.sample_rate, cost.noise_multiplier, steps, cost.delta, cost.relation, cost.accountant
            )
            known.update(zip(((cost, number) for number in missing), found, strict=True))
    return known


def _spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
