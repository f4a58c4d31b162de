"""Charts of accuracy, or of the primary score of another task: by round, for each client, and the loss."""

from __future__ import annotations

import math
import statistics

from hush.objective.metrics import Metric, shown
from hush.pages.chart import Axis, Chart, Rule, Series, finite
from hush.pages.wording import capital, figure
from hush.report.read import RunView
from hush.report.spending import evenly

_LATE = 0.9
_BARS = 400  # clients that are drawn


def score_axis(metric: Metric, *, from_zero: bool = False) -> Axis:
    """Return the axis of a metric."""
    return Axis(title=metric.label, percent=metric.percent, from_zero=from_zero)


def accuracy_by_round(view: RunView) -> Chart:
    """Return the chart of the mean score with its range over clients."""
    primary = view.primary
    title = f"{capital(primary.label)} by round"
    rows = [(r.round, finite(r.scores)) for r in view.records if finite(r.scores)]
    if not rows:
        return Chart(key="accuracy", title=title, words="No round has been evaluated yet.")
    means = [statistics.fmean(values) for _, values in rows]
    line = Series(
        name="mean", x=[number for number, _ in rows], y=means,
        low=[] if view.federation else [min(values) for _, values in rows],
        high=[] if view.federation else [max(values) for _, values in rows],
    )  # fmt: skip
    words = (
        "Of the models on the coordinator's public test set."
        if view.federation
        else "Mean over clients, each evaluated on its own test data; the band spans the worst to the best client."
    )
    what = primary.label if view.federation else "mean"
    return Chart(
        key="accuracy", title=title, words=words, meaning=_course(primary, line.x, means, what),
        x=Axis(title="round", scale="round"), y=score_axis(primary), series=[line],
    )  # fmt: skip


def loss_by_round(view: RunView) -> Chart:
    """Return the chart of the mean loss by round."""
    rows = [(r.round, r.loss) for r in view.records if math.isfinite(r.loss)]
    title = "Loss by round"
    if not rows:
        return Chart(key="loss", title=title, words="No round has been evaluated yet.")
    x, y = [float(number) for number, _ in rows], [loss for _, loss in rows]
    best = min(range(len(y)), key=y.__getitem__)
    meaning = f"The test loss goes from {figure(y[0], 3)} to {figure(y[-1], 3)}"
    if len(y) > 1:
        meaning += (
            "; the last round has the lowest."
            if best == len(y) - 1
            else f"; it is lowest, {figure(y[best], 3)}, after round {x[best]:.0f}."
        )
    return Chart(
        key="loss", title=title, words="Mean over all test rows.", meaning=meaning.rstrip(".") + ".",
        x=Axis(title="round", scale="round"), y=Axis(title="loss"),
        series=[Series(name="loss", x=x, y=y, colour="c3")],
    )  # fmt: skip


def accuracy_by_client(view: RunView) -> Chart:
    """Return the chart of the final score per client, from worst to best."""
    primary = view.primary
    title = f"Final {primary.label} per client"
    if not view.finished:
        title = f"{capital(primary.label)} per client after round {view.rounds}"
    ranked = sorted(
        ((a, client) for client, a in enumerate(view.scores) if math.isfinite(a)), reverse=not primary.higher_is_better
    )
    if not ranked:
        return Chart(key="clients", title=title, words="No round has been evaluated yet.")
    scores = [a for a, _ in ranked]
    drawn = evenly(ranked, _BARS)
    mean, names = statistics.fmean(scores), tuple(view.name(client) for _, client in drawn)
    below = sum((a < mean) == primary.higher_is_better and a != mean for a in scores)
    meaning = (
        f"Clients range from {shown(primary, scores[0])} (client {names[0]}) to {shown(primary, scores[-1])} "
        f"(client {names[-1]}); {below} of {len(scores)} are worse than the mean of {shown(primary, mean)}."
    )
    part = f" {len(drawn)} of {len(ranked)} clients are drawn." if len(drawn) < len(ranked) else ""
    bars = Series(
        kind="bars", name=primary.label, x=[float(n) for n in range(len(drawn))], y=[a for a, _ in drawn], alerts=(0,)
    )  # fmt: skip
    return Chart(
        key="clients", title=title, words=f"From worst to best; the dashed line is the mean.{part}", meaning=meaning,
        x=Axis(title="client", scale="category", categories=names), y=score_axis(primary, from_zero=True),
        series=[bars], rules=[Rule(mean)],
    )  # fmt: skip


def _course(primary: Metric, x: object, means: list[float], what: str) -> str:
    """Return the sentence on how the mean, or in a federation the score of the models, developed."""
    rounds = [int(number) for number in x]  # type: ignore[attr-defined]
    first, last = means[0], means[-1]
    if len(means) == 1:
        return f"After round {rounds[0]} the {what} is {shown(primary, last)}."
    gain = last - first
    better = (gain > 0) == primary.higher_is_better
    said = f"The {what} goes from {shown(primary, first)} to {shown(primary, last)}"
    if not better or gain == 0:
        return f"{said}: it does not improve over the {len(means)} rounds."
    when = next(n for n, value in zip(rounds, means, strict=True) if (value - first) / gain >= _LATE)
    return f"{said}; 90 % of the gain is reached by round {when}."
