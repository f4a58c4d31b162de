"""Charts of privacy spending: epsilon by round, against the budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hush.pages.chart import Axis, Chart, Rule, Series, ordered, scaled
from hush.pages.wording import figure
from hush.report.read import RunView
from hush.report.spending import Spending, spending

_LEGEND = 12


def privacy_by_round(view: RunView) -> Chart:
    """Return the chart of epsilon spent after each round, with the budgets."""
    title = "Privacy spent by round"

    def only(words: str) -> Chart:
        return Chart(key="privacy", title=title, words=words, wide=True)

    if not view.guarantees and view.costs is None:
        return only("Available when the run ends.")
    if not view.finished and not view.records:
        return only("The first round has not ended yet.")
    if view.untrained:
        return only("No client released an update in this run.")
    found = spending(view)
    if not found.lines:
        return only("No client has a bounded epsilon: no noise was added.")
    lines = sorted(found.lines, key=lambda line: line.budget)
    budgets = sorted({line.budget for line in lines if math.isfinite(line.budget)})
    y = scaled("epsilon", [epsilon for line in lines for epsilon in line.epsilon] + budgets, 30)
    origin = y.scale != "log"
    parts = [
        Series(
            name=f"{_who(view, line.clients)}, budget {figure(line.budget)}",
            x=[0.5] * origin + [float(number) for number in line.rounds], y=[0.0] * origin + list(line.epsilon),
            colour=ordered(number, len(lines)),
        )
        for number, line in enumerate(lines)
    ]  # fmt: skip
    start = 0.0 if len(budgets) <= _LEGEND else 0.88
    return Chart(
        key="privacy", title=title, words=_words(found), meaning=_meaning(view, found),
        x=Axis(title="round", scale="round"), y=y, series=parts,
        rules=[Rule(budget, start=start) for budget in budgets], legend=len(lines) <= _LEGEND,
        height=380, wide=True,
    )  # fmt: skip


def _meaning(view: RunView, found: Spending) -> str:
    """Return the sentence on how much of the budgets is used."""
    used = [
        (line.epsilon[-1] / line.budget, line) for line in found.lines if line.budget and math.isfinite(line.budget)
    ]
    if not used:
        return ""
    most, line = max(used, key=lambda each: each[0])
    least, other = min(used, key=lambda each: each[0])
    if round(100 * least) == round(100 * most):
        return f"Every client has used {100 * most:.0f} % of its own budget."
    who = _who(view, line.clients)
    return (
        f"{who[0].upper()}{who[1:]}: {100 * most:.0f} % of the budget used ({figure(line.epsilon[-1], 3)} of "
        f"{figure(line.budget)}), the largest share; {_who(view, other.clients)}: {100 * least:.0f} %, the smallest."
    )


def _words(found: Spending) -> str:
    part = f" Shown: {len(found.lines)} of {found.total} distinct plans, evenly spaced." * (
        len(found.lines) < found.total
    )
    return (
        "Each point is the epsilon computed by the accountant after that round, with what was charged before. Violet "
        f"is the strictest budget, yellow the loosest; dashed lines mark the budgets.{part}"
    )


def _who(view: RunView, clients: Sequence[int]) -> str:
    named = ", ".join(view.name(client) for client in clients[:6])
    return f"client{'s' * (len(clients) > 1)} {named}{f' and {len(clients) - 6} more' * (len(clients) > 6)}"
