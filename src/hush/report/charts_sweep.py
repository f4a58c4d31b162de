"""Charts of a sweep: the score along one setting, a heat map of two, or parallel coordinates of more."""

from __future__ import annotations

import math

from hush.objective.metrics import shown
from hush.pages.chart import Axis, Chart, Series, ordered
from hush.pages.wording import capital
from hush.report.charts_accuracy import score_axis
from hush.report.read import ComparisonView, RecipeView

_LINES = 80


def sweep_chart(view: ComparisonView) -> Chart:
    """Return the chart for the number of settings that vary."""
    return {1: _along, 2: _heat_map}.get(len(view.axes), _parallel)(view)


def _along(view: ComparisonView) -> Chart:
    """Return the score against the only setting."""
    ((key, values),) = view.axes.items()
    at = {value: float(number) for number, value in enumerate(values)}
    known = sorted((r for r in view.recipes if math.isfinite(r.score["mean"])), key=lambda r: at[r.place[0]])
    spread = [r.deviation or 0.0 for r in known]
    means = [r.score["mean"] for r in known]
    several = any(spread)
    line = Series(
        name=f"mean {view.primary.label}", x=[at[r.place[0]] for r in known], y=means,
        low=[m - s for m, s in zip(means, spread, strict=True)] if several else [],
        high=[m + s for m, s in zip(means, spread, strict=True)] if several else [],
    )  # fmt: skip
    words = "Mean over clients and seeds" + ("; band: one sample standard deviation over seeds." if several else ".")
    return Chart(
        key="sweep", title=f"{capital(view.primary.label)} by {key}", words=words, meaning=_best(view),
        x=Axis(title=key, scale="category", categories=values), y=score_axis(view.primary), series=[line], wide=True,
    )  # fmt: skip


def _heat_map(view: ComparisonView) -> Chart:
    """Return the score for each pair of values."""
    (first, xs), (second, ys) = view.axes.items()
    known = [r for r in view.recipes if math.isfinite(r.score["mean"])]
    cells = Series(
        kind="cells", name=f"mean {view.primary.label}", x=[float(xs.index(r.place[0])) for r in known],
        y=[float(ys.index(r.place[1])) for r in known], values=[r.score["mean"] for r in known],
        labels=[shown(view.primary, r.score["mean"]) for r in known],
    )  # fmt: skip
    tone = "Darker" if view.primary.higher_is_better else "Lighter"
    return Chart(
        key="sweep", title=f"{capital(view.primary.label)} by {first} and {second}",
        words=f"Mean over clients and seeds. {tone} is better (on a dark page, the other way round).",
        meaning=_best(view), x=Axis(title=first, scale="category", categories=xs),
        y=Axis(title=second, scale="category", categories=ys), series=[cells],
        height=max(200, min(640, 80 + 44 * len(ys))), wide=True,
    )  # fmt: skip


def _parallel(view: ComparisonView) -> Chart:
    """Return parallel coordinates: a line for each combination, coloured from worst to best."""
    known = [r for r in view.recipes if math.isfinite(r.score["mean"])][:_LINES]
    keys = [*view.axes, view.primary.label]
    ranked = list(reversed(known))  # the best is drawn last, on top
    scores = [r.score["mean"] for r in known]
    low, high = min(scores, default=0.0), max(scores, default=1.0)

    def height(recipe: RecipeView) -> list[float]:
        found = [
            _share(values.index(value), len(values))
            for values, value in zip(view.axes.values(), recipe.place, strict=True)
        ]
        return [*found, (recipe.score["mean"] - low) / (high - low) if high > low else 0.5]

    lines = [
        Series(
            name=f"{recipe.name}: {shown(view.primary, recipe.score['mean'])}",
            x=[float(n) for n in range(len(keys))], y=height(recipe), colour=ordered(number, len(ranked)),
        )
        for number, recipe in enumerate(ranked)
    ]  # fmt: skip
    marks = [(n, _share(i, len(values)), value) for n, values in enumerate(view.axes.values())
             for i, value in enumerate(values)]  # fmt: skip
    marks += [(len(keys) - 1, 0.0, shown(view.primary, low)), (len(keys) - 1, 1.0, shown(view.primary, high))]
    names = Series(
        kind="words", name="values", x=[float(n) for n, _, _ in marks], y=[y for _, y, _ in marks],
        labels=[text for _, _, text in marks], listed=False,
    )  # fmt: skip
    more = f" The best {_LINES} of {len(view.recipes)}." if len(known) < len(view.recipes) else ""
    return Chart(
        key="sweep", title=f"{capital(view.primary.label)} by {len(view.axes)} settings",
        words=f"A line for each combination, from violet (worst) to yellow (best); the last axis is the score.{more}",
        meaning=_best(view), x=Axis(scale="category", categories=tuple(keys)),
        y=Axis(scale="blank"), series=[*lines, names], height=420, wide=True,
    )  # fmt: skip


def _share(place: int, of: int) -> float:
    return place / (of - 1) if of > 1 else 0.5


def _best(view: ComparisonView) -> str:
    """Return the sentence on the best combination, and on which setting matters most."""
    known = [r for r in view.recipes if math.isfinite(r.score["mean"])]
    if not known:
        return ""
    best = known[0]
    chosen = ", ".join(f"{key} = {value}" for key, value in zip(view.axes, best.place, strict=True))
    said = f"{chosen} is best with {shown(view.primary, best.score['mean'])}"
    edge = [
        key for (key, values), value in zip(view.axes.items(), best.place, strict=True)
        if len(values) > 2 and all(map(_numeric, values)) and value in (values[0], values[-1])
    ]  # fmt: skip
    ends = (
        f"; it is at the end of the values tried for {' and '.join(edge)}, so values beyond may be better"
        if edge
        else ""
    )
    return f"{said}{ends}."


def _numeric(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
