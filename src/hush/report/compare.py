"""The HTML page that compares recipes: primary score and privacy guarantee of each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from hush.objective.metrics import shown
from hush.report.figures import (
    COLOURS,
    MAIN,
    QUIET,
    Chart,
    axis,
    finite,
    layout,
    number_format,
    round_axis,
    score_axis,
    text,
)
from hush.report.page import Cell, banner, command, page, panels, table
from hush.report.read import ComparisonView, RecipeView, RunView
from hush.report.toml import toml
from hush.report.verdict import Verdict, verdict
from hush.report.wording import NONE, capital, count, figure, safe

_SEVERITY = ("good", "plain", "warn", "bad")


def comparison_page(view: ComparisonView) -> str:
    """Return the complete HTML document."""
    charts = [score_by_recipe(view), score_by_round(view)]
    first = next((run for recipe in view.recipes for run in _runs(recipe)), None)
    shared = _shared(view.recipes)
    title = count(len(view.recipes), "recipe") + (f" on {first.dataset}" if first else "")
    seeds = f"seed{'s' * (len(view.seeds) > 1)} {', '.join(map(str, view.seeds))}"
    about = (
        f"{first.model}, {count(first.clients, 'client')}, {count(first.planned_rounds, 'round')}, " if first else ""
    )
    body = [
        banner(_overall(view), shared),
        f"<h1>{safe(title)}</h1>",
        f'<p class="subtitle">{safe(about + seeds)}. All recipes use the same clients, data and budgets.</p>',
        table(_heads(view), [_row(view, recipe, shared) for recipe in view.recipes]),
        f"<h2>{safe(capital(view.primary.label))}</h2>",
        panels(charts),
        f"<h2>Runs</h2>{_links(view)}",
        f"<h2>Reproduce</h2>{command(view.command)}{_config(first)}",
    ]
    return page(f"{title} · Hush", "comparison", "\n".join(body), charts)


def _heads(view: ComparisonView) -> list[tuple[str, str]]:
    beside = [] if view.beside is None else [(view.beside.label, "")]
    return [
        ("recipe", "text"), (f"mean {view.primary.label}", ""), ("± sample std over seeds", ""), ("worst client", ""),
        *beside, ("largest ε spent", ""), ("privacy", "text"), ("additionally not covered", "text"),
    ]  # fmt: skip


def score_by_recipe(view: ComparisonView) -> Chart:
    """Return the bar chart of the score per recipe, with the standard deviation over seeds and the worst client."""
    primary = view.primary
    at = number_format(primary)
    names = [text(recipe.name) for recipe in view.recipes]
    several = any(recipe.deviation is not None for recipe in view.recipes)
    scatter = f" ± %{{error_y.array:{at}}}" if several else ""
    bars = {
        "type": "bar", "x": names, "y": [recipe.score["mean"] for recipe in view.recipes], "name": "mean",
        "marker": {"color": MAIN}, "hovertemplate": f"%{{x}}<br>mean %{{y:{at}}}{scatter}<extra></extra>",
        "error_y": {
            "type": "data", "array": [recipe.deviation or 0.0 for recipe in view.recipes], "color": QUIET,
            "visible": several,
        },
    }  # fmt: skip
    worst = {
        "mode": "markers", "x": names, "y": [_worst(view, recipe) for recipe in view.recipes], "name": "worst client",
        "marker": {"symbol": "line-ew-open", "size": 22, "color": COLOURS[1], "line": {"width": 3}},
        "hovertemplate": f"%{{x}}<br>worst client %{{y:{at}}}<extra></extra>",
    }  # fmt: skip
    shape = layout(
        axis("", type="category", showgrid=False),
        score_axis(primary, rangemode="tozero"),
        showlegend=True,
        bargap=0.45,
    )
    words = (
        "Bars: mean over clients and seeds, with the sample standard deviation over seeds. "
        "Markers: worst client of any seed."
        if several
        else "Bars: mean over clients, one seed. Markers: worst client."
    )
    return Chart("recipes", f"Final {primary.label} by recipe", words, [bars, worst], shape, height=380, wide=True)


def score_by_round(view: ComparisonView) -> Chart:
    """Return the chart of the score by round, one line per recipe, averaged over clients and seeds."""
    title, at = f"{capital(view.primary.label)} by round", number_format(view.primary)
    data: list[dict[str, Any]] = []
    for number, recipe in enumerate(view.recipes):
        means = _by_round(recipe)
        if means:
            data.append(
                {
                    "x": list(means), "y": list(means.values()), "name": text(recipe.name), "mode": "lines",
                    "line": {"width": 2.5, "color": COLOURS[number % len(COLOURS)],
                             "dash": ("solid", "dash", "dot")[number // len(COLOURS) % 3]},
                    "hovertemplate": f"{text(recipe.name)}<br>round %{{x}}: %{{y:{at}}}<extra></extra>",
                }
            )  # fmt: skip
    if not data:
        return Chart("rounds", title, "The rounds of these runs are not in this directory.", wide=True)
    last = max(max(trace["x"]) for trace in data)
    shape = layout(round_axis(last), score_axis(view.primary), showlegend=True)
    return Chart("rounds", title, "Mean over clients and seeds.", data, shape, height=380, wide=True)


def _by_round(recipe: RecipeView) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for run in _runs(recipe):
        for record in run.records:
            if values := finite(record.scores):
                found.setdefault(record.round, []).append(statistics.fmean(values))
    return {number: statistics.fmean(found[number]) for number in sorted(found)}


def _row(view: ComparisonView, recipe: RecipeView, shared: Sequence[str]) -> list[Cell]:
    judged, primary, beside = _judged(recipe), view.primary, view.beside
    deviation, worst = recipe.deviation, _worst(view, recipe)
    second = math.nan if beside is None else recipe.metrics.get(beside.name, math.nan)
    own = "; ".join(gap for gap in recipe.not_covered if gap not in shared) or NONE
    spent = [g.epsilon_spent for run in _runs(recipe) for g in run.guarantees if g.epsilon_spent is not None]
    largest = max(spent) if spent else math.nan
    return [
        (recipe.name, recipe.name, "text"),
        (recipe.score["mean"], shown(primary, recipe.score["mean"]), ""),
        (deviation if deviation is not None else math.nan, shown(primary, deviation), ""),
        (worst, shown(primary, worst), ""),
        *([] if beside is None else [(second, shown(beside, second), "")]),
        (largest, figure(largest, 3), ""),
        (judged.mark, judged.mark, f"text tone {judged.tone}"),
        (own, own, "text wrap"),
    ]


def _judged(recipe: RecipeView) -> Verdict:
    """Return the most severe verdict of its runs."""
    judged = [verdict(run) for run in _runs(recipe)]
    return (
        _gravest(judged) if judged else Verdict("plain", "unknown", "Unknown", ("The runs are not in this directory.",))
    )


def _overall(view: ComparisonView) -> Verdict:
    """Return one verdict for the page: the common one of all recipes, or a statement that they differ."""
    judged = {recipe.name: _judged(recipe) for recipe in view.recipes}
    marks = {one.mark for one in judged.values()}
    if len(marks) == 1:
        only = next(iter(judged.values()))
        return replace(only, words=only.words[:1])
    worst = _gravest(list(judged.values()))
    words = tuple(
        f"{mark[0].upper()}{mark[1:]}: {', '.join(n for n, v in judged.items() if v.mark == mark)}."
        for mark in sorted(marks)
    )
    private = any(one.tone in ("good", "plain") for one in judged.values())
    headline = "The recipes have different guarantees" if private else "None of these runs is private"
    return Verdict(worst.tone, worst.mark, headline, words)


def _gravest(judged: Sequence[Verdict]) -> Verdict:
    return max(judged, key=lambda one: _SEVERITY.index(one.tone))


def _shared(recipes: Sequence[RecipeView]) -> list[str]:
    if not recipes:
        return []
    return [gap for gap in recipes[0].not_covered if all(gap in recipe.not_covered for recipe in recipes)]


def _worst(view: ComparisonView, recipe: RecipeView) -> float:
    choose = min if view.primary.higher_is_better else max
    return choose(finite([run.worst for run in recipe.runs]), default=math.nan)


def _runs(recipe: RecipeView) -> list[RunView]:
    return [seed.run for seed in recipe.runs if seed.run is not None]


def _links(view: ComparisonView) -> str:
    rows = []
    for recipe in view.recipes:
        for one in recipe.runs:
            name = f"{recipe.name}, seed {one.seed}"
            link = f'<a href="./{safe(quote(one.report))}">{safe(name)}</a>' if one.report else safe(name)
            rows.append(f"<li>{link}: {shown(view.primary, one.score['mean'])}</li>")
    return f"<ul>{''.join(rows)}</ul>"


def _config(run: RunView | None) -> str:
    if run is None:
        return ""
    return f"<details><summary>Config of the first run</summary><pre>{safe(toml(run.config))}</pre></details>"
