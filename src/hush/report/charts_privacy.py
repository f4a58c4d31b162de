"""What the clients spend: epsilon by round, against the budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hush.report import figures
from hush.report.figures import Chart, layout, round_axis, scale
from hush.report.read import RunView
from hush.report.spending import Spending, spending
from hush.report.words import figure


def privacy_by_round(view: RunView) -> Chart:
    """What the clients had spent after each round, against their budgets."""
    title = "Privacy spent by round"
    if not view.guarantees:
        return Chart("privacy", title, "Added up when the run ends.", wide=True)
    found = spending(view)
    if not found.lines:
        return Chart("privacy", title, "No client spent a bounded epsilon: nothing was noised.", wide=True)
    lines = sorted(found.lines, key=lambda line: line.budget)
    budgets = sorted({line.budget for line in lines if math.isfinite(line.budget)})
    y = scale("epsilon", [epsilon for line in lines for epsilon in line.epsilon] + budgets, 30)
    log = y.get("type") == "log"
    data = [
        {
            "x": ([] if log else [0]) + list(line.rounds), "y": ([] if log else [0.0]) + list(line.epsilon),
            "mode": "lines+markers", "line": {"color": figures.ramp(number, len(lines)), "width": 1.5},
            "marker": {"size": 5}, "name": _who(line.clients),
            "hovertemplate": f"{_who(line.clients)}<br>after round %{{x}}: epsilon %{{y:.4g}}"
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
    return Chart("privacy", title, _privacy_words(found), [marks, *data], shape, height=400, wide=True)


def _privacy_words(found: Spending) -> str:
    part = f" Shown: {len(found.lines)} of {found.total} different plans, evenly spread." * (
        len(found.lines) < found.total
    )
    return (
        "Each point is the accountant's figure after that round; the lines only join the points. Violet is the "
        f"strictest budget, yellow the loosest; dashes mark the budgets.{part}"
    )


def _who(clients: Sequence[int]) -> str:
    named = ", ".join(map(str, clients[:6])) + ("" if len(clients) <= 6 else f" and {len(clients) - 6} more")
    return f"client{'s' * (len(clients) > 1)} {named}"
