"""The worst client explained: what is known about the client with the worst score, beside the others."""

from __future__ import annotations

import math
import statistics

from hush.objective.metrics import shown
from hush.pages.wording import count, figure
from hush.report.charts_noise import mean_weights
from hush.report.correlation import rank_correlation, strength
from hush.report.read import RunView
from hush.server.participation import out_of_budget
from hush.types import Guarantee


def worst_client(view: RunView) -> tuple[str, ...]:
    """Return sentences: the first names the client, the others compare it with all clients. Empty without scores."""
    primary = view.primary
    scores = {client: score for client, score in enumerate(view.scores) if math.isfinite(score)}
    if len(scores) < 2 or view.untrained:
        return ()
    worst = (min if primary.higher_is_better else max)(scores, key=scores.__getitem__)
    mean = statistics.fmean(scores.values())
    head = f"Client {view.name(worst)}: {primary.label} {shown(primary, scores[worst])}"
    said = [f"{head}; the mean over {len(scores)} clients is {shown(primary, mean)}."]
    cards = {g.client: g for g in view.guarantees}
    if worst in cards:
        said += _budget(cards, worst) + _rows(cards, worst)
    said += _used(view, worst)
    if (left := out_of_budget(view.records).get(worst)) is not None:
        said.append(f"It ran out of budget: round {left} was the first that it could not afford.")
    if len(cards) == view.clients and (found := _explained(view, cards, scores)):
        said.append(found)
    return tuple(said)


def _budget(cards: dict[int, Guarantee], worst: int) -> list[str]:
    budgets = {client: g.epsilon_budget for client, g in cards.items() if g.epsilon_budget is not None}
    own = budgets.get(worst)
    if own is None or not math.isfinite(own):
        return []
    stricter = sum(budget < own for budget in budgets.values())
    place = "the strictest" if not stricter else f"stricter than that of {sum(b > own for b in budgets.values())}"
    if len(set(budgets.values())) == 1:
        return [f"Its budget of ε {figure(own)} is that of every client."]
    return [f"Its budget of ε {figure(own)} is {place} of {count(len(budgets), 'client')}."]


def _rows(cards: dict[int, Guarantee], worst: int) -> list[str]:
    sizes = [g.samples for g in cards.values()]
    own = cards[worst].samples
    return [f"It has {count(own, 'training row')}; the median client has {figure(statistics.median(sizes), 6)}."]


def _used(view: RunView, worst: int) -> list[str]:
    weights = mean_weights(view)
    used = sum(worst in record.weights for record in view.records)
    said = f"Its update was used in {used} of {count(len(view.records), 'round')}"
    if worst not in weights or len(weights) < 2:
        return [f"{said}."]
    equal = 1 / len(weights)
    return [f"{said}, with a mean weight of {figure(weights[worst], 3)}: {100 * weights[worst] / equal:.0f} % of an "
            "equal share."]  # fmt: skip


def _explained(view: RunView, cards: dict[int, Guarantee], scores: dict[int, float]) -> str:
    """Return whether scores go with budgets or weights across clients."""
    sign = 1.0 if view.primary.higher_is_better else -1.0
    listed, weights = sorted(scores), mean_weights(view)
    found = []
    for name, values in (
        ("budgets", [cards[c].epsilon_budget or 0.0 for c in listed]),
        ("numbers of training rows", [float(cards[c].samples) for c in listed]),
        ("weights", [weights.get(c, 0.0) for c in listed]),
    ):
        correlation = rank_correlation(values, [sign * scores[c] for c in listed])
        if correlation is not None:
            found.append(f"{name} {strength(correlation)} ({correlation:.2f})")
    return f"Across clients, better scores follow {'; '.join(found)} (rank correlation)." if found else ""
