"""Charts of a comparison: the final score of each recipe, and the score by round with its spread over seeds."""

from __future__ import annotations

import math
import statistics

from hush.objective.metrics import shown
from hush.pages.chart import COLOURS, Axis, Chart, Series, finite, numbered
from hush.pages.wording import capital
from hush.report.charts_accuracy import score_axis
from hush.report.read import ComparisonView, RecipeView

_LINES = 8


def score_by_recipe(view: ComparisonView) -> Chart:
    """Return the bar chart of the score per recipe, with the standard deviation over seeds and the worst client."""
    names = tuple(", ".join(recipe.place) or recipe.name for recipe in view.recipes)
    means = [recipe.score["mean"] for recipe in view.recipes]
    spread = [recipe.deviation or 0.0 for recipe in view.recipes]
    several = any(recipe.deviation is not None for recipe in view.recipes)
    x = [float(number) for number in range(len(names))]
    bars = Series(
        kind="bars", name="mean", x=x, y=means,
        low=[mean - each for mean, each in zip(means, spread, strict=True)] if several else [],
        high=[mean + each for mean, each in zip(means, spread, strict=True)] if several else [],
    )  # fmt: skip
    worst = Series(
        kind="ticks", name="worst client", x=x, y=[view.worst(recipe) for recipe in view.recipes], colour="c1"
    )
    words = (
        "Bars: mean over clients and seeds, with the sample standard deviation over seeds. "
        "Marks: worst client of any seed."
        if several
        else "Bars: mean over clients, one seed. Marks: worst client."
    )
    if view.sweep:
        words += f" Bars are named by their values of {', '.join(view.axes)}."
    return Chart(
        key="recipes", title=f"Final {view.primary.label} by {view.thing}", words=words, meaning=_ranking(view),
        x=Axis(scale="category", categories=names), y=score_axis(view.primary, from_zero=True),
        series=[bars, worst], legend=True, height=340, wide=True,
    )  # fmt: skip


def score_by_round(view: ComparisonView) -> Chart:
    """Return the chart of the score by round, one line per recipe, with bands of one standard deviation over seeds."""
    title = f"{capital(view.primary.label)} by round"
    parts = []
    chosen = [recipe for recipe in view.recipes if _by_round(recipe)][: COLOURS if view.sweep else None]
    for number, recipe in enumerate(chosen):
        found = _by_round(recipe)
        means = [statistics.fmean(values) for values in found.values()]
        spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in found.values()]
        banded = any(spread)
        parts.append(
            Series(
                name=recipe.name, x=[float(each) for each in found], y=means, colour=numbered(number),
                low=[m - s for m, s in zip(means, spread, strict=True)] if banded else [],
                high=[m + s for m, s in zip(means, spread, strict=True)] if banded else [],
                dash=number >= COLOURS,
            )
        )  # fmt: skip
    if not parts:
        return Chart(key="rounds", title=title, words="The rounds of these runs are not in this directory.", wide=True)
    words = "Mean over clients and seeds" + (
        "; bands: one sample standard deviation over seeds." if any(part.low for part in parts) else "."
    )
    if len(chosen) < len(view.recipes) and view.sweep:
        words += f" The best {len(chosen)} of {len(view.recipes)} combinations."
    return Chart(
        key="rounds", title=title, words=words, meaning=_lead(view, parts), x=Axis(title="round", scale="round"),
        y=score_axis(view.primary), series=parts, legend=True, height=380, wide=True,
    )  # fmt: skip


def _by_round(recipe: RecipeView) -> dict[int, list[float]]:
    """Return the mean score over clients of each seed, by round."""
    found: dict[int, list[float]] = {}
    for run in (seed.run for seed in recipe.runs if seed.run is not None):
        for record in run.records:
            if values := finite(record.scores):
                found.setdefault(record.round, []).append(statistics.fmean(values))
    return {number: found[number] for number in sorted(found)}


def _ranking(view: ComparisonView) -> str:
    """Return the sentence on the best, and on whether the next one is apart from it by more than the spread."""
    known = [recipe for recipe in view.recipes if math.isfinite(recipe.score["mean"])]
    if len(known) < 2:
        return ""
    first, second = known[:2]
    gap = abs(first.score["mean"] - second.score["mean"])
    said = (
        f"{first.name} is best with {shown(view.primary, first.score['mean'])}, ahead of {second.name} with "
        f"{shown(view.primary, second.score['mean'])}"
    )
    if first.deviation is None or second.deviation is None:
        return f"{said}; one seed cannot tell whether the order is chance."
    both = first.deviation + second.deviation
    than = "more" if gap > both else "less"
    return f"{said}; the gap is {than} than their standard deviations over {len(view.seeds)} seeds together."


def _lead(view: ComparisonView, parts: list[Series]) -> str:
    """Return the sentence on when the final leader took the lead."""
    if len(parts) < 2:
        return ""
    sign = 1.0 if view.primary.higher_is_better else -1.0
    best = max(parts, key=lambda part: sign * part.y[-1])
    others = [part for part in parts if part is not best]
    since = best.x[-1]
    for number, value in zip(reversed(best.x), reversed(best.y), strict=True):
        rivals = [dict(zip(part.x, part.y, strict=True)).get(number) for part in others]
        if any(rival is not None and sign * rival > sign * value for rival in rivals):
            break
        since = number
    return f"{best.name} leads from round {since:.0f} to the end."
