"""Charts of noise: planned and estimated noise per client, and the resulting weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hush.report import figures
from hush.report.figures import Chart, axis, layout, log_axis, scale
from hush.report.read import RunView
from hush.types import Guarantee


def weights(view: RunView) -> Chart:
    """Return the chart of client weights by budget and batch size."""
    title = "Weight per client"
    mean, last = _weights(view)
    if not mean:
        return Chart(
            key="weights", title=title, words="No update was used." if view.finished else "No update has been used yet."
        )
    if not view.guarantees:
        trace = {
            "type": "bar", "x": [view.name(client) for client in mean],
            "y": list(mean.values()), "marker": {"color": figures.MAIN},
            "hovertemplate": "client %{x}<br>weight %{y:.4f}<extra></extra>",
        }  # fmt: skip
        words = "Mean over the rounds so far; budgets and batch sizes are available when the run ends."
        return Chart(
            key="weights",
            title=title,
            words=words,
            data=[trace],
            layout=layout(axis("client"), axis("weight")),
            height=360,
        )
    known = [g for g in view.guarantees if g.client in mean and math.isfinite(g.epsilon_budget or math.inf)]
    if not known:
        return Chart(key="weights", title=title, words="No client has a budget to plot the weights against.")
    batches = sorted({g.batch_size for g in known})
    if len(batches) <= len(figures.COLOURS):
        data = [
            _weight_trace([g for g in known if g.batch_size == batch], mean, last, f"batch {batch}", number)
            for number, batch in enumerate(batches)
        ]
    else:
        data = [_weight_trace(known, mean, last, "batch size", None)]
    equal, values = 1 / len(mean), [mean[g.client] for g in known]
    line = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": equal, "y1": equal,
        "line": {"dash": "dash", "width": 1.5, "color": figures.QUIET},
    }  # fmt: skip
    shape = layout(
        scale("epsilon budget", [g.epsilon_budget or 0.0 for g in known]),
        scale("mean weight", [*values, equal], 30),
        showlegend=1 < len(batches) <= len(figures.COLOURS),
        shapes=[line],
    )
    words = "Mean over the rounds in which the client's update was used; the dashed line marks equal weights."
    if any(record.placed for record in view.records):
        words += " The weights of each cluster model sum to one."
    return Chart(key="weights", title=title, words=words, data=data, layout=shape, height=360)


def noise(view: RunView) -> Chart:
    """Return the chart of estimated against planned noise."""
    title = "Estimated and planned noise"
    estimated: dict[int, list[float]] = {}
    planned: dict[int, float] = {}
    for record in view.records:
        for client, value in record.noise_estimated.items():
            if value > 0 and math.isfinite(value):
                estimated.setdefault(client, []).append(value)
        planned |= record.noise_planned
    if not any(record.weights for record in view.records):
        return Chart(key="noise", title=title, words="No update was used, so there was no noise to estimate.")
    if not estimated:
        return Chart(key="noise", title=title, words="This recipe does not estimate noise.")
    shown = [client for client in sorted(estimated) if planned.get(client, 0) > 0]
    if not shown:
        return Chart(
            key="noise", title=title, words="The clients add no noise, so there is no planned noise to compare with."
        )
    middle = {client: statistics.median(estimated[client]) for client in shown}
    everything = [v for client in shown for v in (*estimated[client], planned[client])]
    ends = [min(everything) / 1.3, max(everything) * 1.3]
    points = {
        "mode": "markers", "x": [planned[c] for c in shown], "y": [middle[c] for c in shown],
        "customdata": [view.name(c) for c in shown], "marker": {"color": figures.MAIN, "size": 9, "opacity": 0.85},
        "error_y": {
            "type": "data", "symmetric": False, "thickness": 1, "width": 0, "color": figures.MAIN,
            "array": [max(estimated[c]) - middle[c] for c in shown],
            "arrayminus": [middle[c] - min(estimated[c]) for c in shown],
        },
        "hovertemplate": "client %{customdata}<br>planned %{x:.3g}<br>estimated %{y:.3g}<extra></extra>",
    }  # fmt: skip
    diagonal = {
        "mode": "lines", "x": ends, "y": ends, "hoverinfo": "skip",
        "line": {"dash": "dash", "width": 1.5, "color": figures.QUIET},
    }  # fmt: skip
    words = (
        "Expected squared norm of the noise in an update: planned by the client, and estimated by the server "
        "(median and range over rounds). The dashed line marks equality."
    )
    shape = layout(log_axis("planned noise", everything), log_axis("estimated noise", everything))
    return Chart(key="noise", title=title, words=words, data=[diagonal, points], layout=shape, height=360)


def _weights(view: RunView) -> tuple[dict[int, float], dict[int, float]]:
    """Return the mean and the latest weight of every client with at least one used update."""
    weights_of: dict[int, list[float]] = {}
    for record in view.records:
        for client, value in record.weights.items():
            if math.isfinite(value):
                weights_of.setdefault(client, []).append(value)
    clients = sorted(weights_of)
    return {c: statistics.fmean(weights_of[c]) for c in clients}, {c: weights_of[c][-1] for c in clients}


def _weight_trace(
    members: Sequence[Guarantee], mean: Mapping[int, float], last: Mapping[int, float], name: str, number: int | None
) -> dict[str, Any]:
    marker: dict[str, Any] = {"size": 10, "opacity": 0.85}
    if number is None:
        sizes = [g.batch_size for g in members]
        marker |= {"color": sizes, "colorscale": "Viridis", "colorbar": {"title": {"text": name}, "thickness": 10}}
    else:
        marker |= {"color": figures.COLOURS[number], "symbol": figures.SYMBOLS[number]}
    return {
        "mode": "markers", "name": name, "marker": marker,
        "x": [g.epsilon_budget for g in members], "y": [mean[g.client] for g in members],
        "customdata": [[g.name or g.client, g.batch_size, last[g.client]] for g in members],
        "hovertemplate": "client %{customdata[0]}<br>budget %{x:.4g}, batch %{customdata[1]}"
        "<br>mean weight %{y:.4f}, last %{customdata[2]:.4f}<extra></extra>",
    }  # fmt: skip
