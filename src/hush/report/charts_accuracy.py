"""Charts of accuracy, or of the primary score of another task: by round, and for each client."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from hush.report import figures
from hush.report.figures import Chart, axis, finite, layout, number_format, round_axis, score_axis
from hush.report.read import RunView
from hush.report.wording import capital


def accuracy_by_round(view: RunView) -> Chart:
    """Return the chart of the mean score with its range over clients, and the loss below."""
    title, at = f"{capital(view.primary.label)} by round", number_format(view.primary)
    rows = [(r.round, finite(r.scores), r.loss) for r in view.records if finite(r.scores)]
    if not rows:
        return Chart("accuracy", title, "No round has been evaluated yet.")
    x = [number for number, _, _ in rows]
    means = [statistics.fmean(values) for _, values, _ in rows]
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "x": x}
    spread = [[min(values), max(values), loss] for _, values, loss in rows]
    data: list[Mapping[str, Any]] = [
        {**edge, "y": [high for _, high, _ in spread]},
        {**edge, "y": [low for low, _, _ in spread], "fill": "tonexty", "fillcolor": "rgba(59,130,196,0.18)"},
        {
            "x": x, "y": means, "customdata": spread, "mode": "lines+markers" if len(x) <= 60 else "lines",
            "line": {"color": figures.MAIN, "width": 2.5}, "marker": {"size": 5},
            "hovertemplate": f"round %{{x}}<br>mean %{{y:{at}}}<br>clients %{{customdata[0]:{at}}} to "
            f"%{{customdata[1]:{at}}}<br>loss %{{customdata[2]:.3f}}<extra></extra>",
        },
        {
            "x": x, "y": [loss for _, _, loss in rows], "yaxis": "y2", "mode": "lines",
            "line": {"color": figures.QUIET, "width": 2}, "hovertemplate": "round %{x}<br>loss %{y:.3f}<extra></extra>",
        },
    ]  # fmt: skip
    words = "Mean over clients, each evaluated on its own test data; the band spans the worst to the best client."
    shape = layout(
        round_axis(max(x)) | {"anchor": "y2"},
        score_axis(view.primary, domain=[0.36, 1]),
        yaxis2={**axis("loss", nticks=4), "domain": [0, 0.24], "zeroline": False, "automargin": True},
    )
    return Chart("accuracy", title, words, data, shape, height=360)


def accuracy_by_client(view: RunView) -> Chart:
    """Return the chart of the final score per client, from worst to best."""
    label, better = view.primary.label, view.primary.higher_is_better
    title = f"Final {label} per client" if view.finished else f"{capital(label)} per client after round {view.rounds}"
    ranked = sorted(((a, client) for client, a in enumerate(view.scores) if math.isfinite(a)), reverse=not better)
    if not ranked:
        return Chart("clients", title, "No round has been evaluated yet.")
    mean = statistics.fmean(a for a, _ in ranked)
    names = [view.name(client) for _, client in ranked]
    bars = {
        "type": "bar", "x": names, "y": [a for a, _ in ranked],
        "marker": {"color": [figures.ALERT, *[figures.MAIN] * (len(ranked) - 1)]},
        "hovertemplate": f"client %{{x}}<br>%{{y:{number_format(view.primary)}}}<extra></extra>",
    }  # fmt: skip
    line = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": mean, "y1": mean,
        "line": {"dash": "dash", "width": 1.5, "color": figures.QUIET},
    }  # fmt: skip
    shape = layout(
        axis("client", type="category", showticklabels=len(ranked) <= 40, showgrid=False, tickfont={"size": 10}),
        score_axis(view.primary, rangemode="tozero"),
        bargap=0.25 if len(ranked) <= 60 else 0.05,
        shapes=[line],
    )
    return Chart("clients", title, "From worst to best; the dashed line is the mean.", [bars], shape, height=360)
