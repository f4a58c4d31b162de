"""Charts of privacy spending: epsilon by round, against the budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hush.report import figures
from hush.report.figures import Chart, layout, round_axis, scale
from hush.report.read import RunView
from hush.report.spending import Spending, spending
from hush.report.wording import figure, safe


def privacy_by_round(view: RunView) -> Chart:
    """Return the chart of epsilon spent after each round, with the budgets."""
    title = "Privacy spent by round"
    if not view.guarantees:
        return Chart(key="privacy", title=title, words="Available when the run ends.", wide=True)
    if view.untrained:
        return Chart(key="privacy", title=title, words="No client released an update in this run.", wide=True)
    found = spending(view)
    if not found.lines:
        return Chart(
            key="privacy", title=title, words="No client has a bounded epsilon: no noise was added.", wide=True
        )
    lines = sorted(found.lines, key=lambda line: line.budget)
    budgets = sorted({line.budget for line in lines if math.isfinite(line.budget)})
    y = scale("epsilon", [epsilon for line in lines for epsilon in line.epsilon] + budgets, 30)
    log = y.get("type") == "log"
    data = [
        {
            "x": ([] if log else [0]) + list(line.rounds), "y": ([] if log else [0.0]) + list(line.epsilon),
            "mode": "lines+markers", "line": {"color": figures.ramp(number, len(lines)), "width": 1.5},
            "marker": {"size": 5}, "name": _who(view, line.clients),
            "hovertemplate": f"{_who(view, line.clients)}<br>after round %{{x}}: epsilon %{{y:.4g}}"
            f"<br>budget {figure(line.budget)}<extra></extra>",
        }
        for number, line in enumerate(lines)
    ]  # fmt: skip
    start = 0 if len(budgets) <= 12 else 0.88 * view.rounds
    marks = {
        "mode": "lines", "hoverinfo": "skip", "opacity": 0.7,
        "line": {"color": figures.QUIET, "width": 1, "dash": "dash"},
        "x": [x for _ in budgets for x in (start, view.rounds + 0.5, None)],
        "y": [y for budget in budgets for y in (budget, budget, None)],
    }  # fmt: skip
    x = round_axis(view.rounds) | ({} if log else {"range": [0, view.rounds + 0.5]})
    shape = layout(x, y)
    return Chart(
        key="privacy",
        title=title,
        words=_privacy_words(found),
        data=[marks, *data],
        layout=shape,
        height=400,
        wide=True,
    )


def _privacy_words(found: Spending) -> str:
    part = f" Shown: {len(found.lines)} of {found.total} distinct plans, evenly spaced." * (
        len(found.lines) < found.total
    )
    return (
        "Each point is the epsilon computed by the accountant after that round. Violet is the strictest budget, "
        f"yellow the loosest; dashed lines mark the budgets.{part}"
    )


def _who(view: RunView, clients: Sequence[int]) -> str:
    # Plotly takes %{ in a template for one of its variables.
    named = ", ".join(safe(view.name(client)).replace("%{", "% {") for client in clients[:6]) + (
        "" if len(clients) <= 6 else f" and {len(clients) - 6} more"
    )
    return f"client{'s' * (len(clients) > 1)} {named}"
