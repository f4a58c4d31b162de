"""Charts of clusters: the model of each client by round, and the score of each cluster."""

from __future__ import annotations

import statistics
from collections import Counter

from hush.objective.metrics import shown
from hush.pages.chart import Axis, Chart, Series, finite, numbered
from hush.report.charts_accuracy import score_axis
from hush.report.read import RunView
from hush.report.spending import evenly

_MOST = 60  # clients in the chart of places
_ROUNDS = 80  # rounds in it


def clusters(view: RunView) -> list[Chart]:
    """Return the charts of a run whose recipe trains several models, and none for one model."""
    models = sorted({model for record in view.records for model in record.placed.values() if model >= 0})
    return [_places(view, models), _scores(view, models)] if models else []


def _places(view: RunView, models: list[int]) -> Chart:
    # A negative number stands for a round before there are clusters.
    placed = [record for record in view.records if any(model >= 0 for model in record.placed.values())]
    last: dict[int, int] = {}
    moved = 0
    for record in placed:
        changed = any(last.get(client, model) != model for client, model in record.placed.items())
        moved = record.round if changed else moved
        last |= record.placed
    order = sorted(last, key=lambda client: (last[client], client))[:_MOST]
    row = {client: float(number) for number, client in enumerate(order)}
    drawn = evenly(placed, _ROUNDS)
    parts = []
    for number, model in enumerate(models):
        at = [(record.round, client) for record in drawn for client, home in record.placed.items()
              if home == model and client in row]  # fmt: skip
        parts.append(
            Series(
                kind="points",
                name=f"model {model}",
                x=[float(r) for r, _ in at],
                y=[row[c] for _, c in at],
                labels=[f"client {view.name(c)}" for _, c in at],
                colour=numbered(number),
                symbol=number,
            )
        )
    sizes = Counter(last.values())
    said = ", ".join(f"model {model}: {sizes.get(model, 0)}" for model in models)
    steady = f"nobody changed place after round {moved}" if moved else "nobody ever changed place"
    more = f" The first {_MOST} of {len(last)} clients are drawn." if len(last) > _MOST else ""
    more += f" {len(drawn)} of {len(placed)} rounds are drawn." if len(drawn) < len(placed) else ""
    return Chart(
        key="clusters", title="Model of each client by round",
        words=f"The model that each client trained or was placed on, ordered by its last one.{more}",
        meaning=f"Clients at the end by {said}; {steady}.", x=Axis(title="round", scale="round"),
        y=Axis(title="client", scale="category", categories=tuple(view.name(client) for client in order)),
        series=parts, legend=True, height=max(260, min(640, 60 + 16 * len(order))), wide=True,
    )  # fmt: skip


def _scores(view: RunView, models: list[int]) -> Chart:
    """Return the mean score of the clients of each model, by round."""
    parts, ends, last = [], {}, dict[int, int]()
    found: dict[int, list[tuple[int, float]]] = {model: [] for model in models}
    for record in view.records:
        last |= record.placed
        for model in models:
            values = finite([s for client, s in enumerate(record.scores) if last.get(client) == model])
            if values:
                found[model].append((record.round, statistics.fmean(values)))
    for number, model in enumerate(models):
        if found[model]:
            x, y = zip(*found[model], strict=True)
            ends[model] = y[-1]
            parts.append(Series(name=f"model {model}", x=[float(n) for n in x], y=list(y), colour=numbered(number)))
    primary, meaning = view.primary, ""
    if ends:
        choose = max if primary.higher_is_better else min
        best = choose(ends, key=ends.__getitem__)
        meaning = f"The clients of model {best} fare best at the end, with {shown(primary, ends[best])} on average."
    return Chart(
        key="cluster-scores", title=f"Mean {primary.label} by model", words="Mean over the clients on each model.",
        meaning=meaning, x=Axis(title="round", scale="round"), y=score_axis(primary), series=parts, legend=True,
        wide=True,
    )  # fmt: skip
