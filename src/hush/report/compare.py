"""The HTML page that compares recipes, or the combinations of a sweep: primary score and privacy guarantee of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from hush.objective.metrics import shown
from hush.pages.chart import Chart
from hush.pages.document import Cell, banner, command, page, panels, table
from hush.pages.wording import NONE, capital, count, figure, safe
from hush.report.charts_comparison import score_by_recipe, score_by_round
from hush.report.charts_sweep import sweep_chart
from hush.report.read import ComparisonView, RecipeView, RunView
from hush.report.toml import toml
from hush.report.verdict import Verdict, verdict

_SEVERITY = ("good", "plain", "warn", "bad")
_BARS = 16  # combinations that are drawn as bars


def comparison_page(view: ComparisonView) -> str:
    """Return the complete HTML document."""
    first = next((run for recipe in view.recipes for run in _runs(recipe)), None)
    shared, judged = _shared(view.recipes), _overall(view)
    title = _title(view, first)
    seeds = f"seed{'s' * (len(view.seeds) > 1)} {', '.join(map(str, view.seeds))}"
    about = (
        f"{first.model}, {count(first.clients, 'client')}, {count(first.planned_rounds, 'round')}, " if first else ""
    )
    same = (
        "Settings that are not swept are the same."
        if view.sweep
        else "All recipes use the same clients, data and budgets."
    )
    body = [
        banner(judged.tone, judged.headline, judged.words, shared),
        f"<h1>{safe(title)}</h1>",
        f'<p class="subtitle">{safe(about + seeds)}. {same}</p>',
        '<p class="hint">The table scrolls sideways where the window is too narrow for it.</p>',
        table(_heads(view), [_row(view, recipe, shared) for recipe in view.recipes], title),
        f"<h2>{safe(capital(view.primary.label))}</h2>",
        panels(_charts(view)),
        f"<h2>Runs</h2>{_links(view)}",
        f"<h2>Reproduce</h2>{command(view.command)}{_config(first)}",
    ]
    return page(f"{title} · Hush", "sweep report" if view.sweep else "comparison", "\n".join(body))


def _title(view: ComparisonView, first: RunView | None) -> str:
    on = f" on {first.dataset}" if first else ""
    if view.sweep:
        return f"Sweep of {', '.join(view.axes)}{on}: {count(len(view.recipes), 'combination')}"
    return count(len(view.recipes), "recipe") + on


def _charts(view: ComparisonView) -> list[Chart]:
    swept = [sweep_chart(view)] if view.sweep else []
    bars = [score_by_recipe(view)] if not view.sweep or len(view.recipes) <= _BARS else []
    return [*swept, *bars, score_by_round(view)]


def _heads(view: ComparisonView) -> list[tuple[str, str]]:
    beside = [] if view.beside is None else [(view.beside.label, "")]
    named = [(key, "text") for key in view.axes] if view.sweep else [("recipe", "text")]
    return [
        *named, (f"mean {view.primary.label}", ""), ("± sample std over seeds", ""), ("worst client", ""),
        *beside, ("largest ε spent", ""), ("privacy", "text"), ("additionally not covered", "text"),
    ]  # fmt: skip


def _row(view: ComparisonView, recipe: RecipeView, shared: Sequence[str]) -> list[Cell]:
    judged, primary, beside = _judged(recipe), view.primary, view.beside
    deviation, worst = recipe.deviation, view.worst(recipe)
    second = math.nan if beside is None else recipe.metrics.get(beside.name, math.nan)
    own = "; ".join(gap for gap in recipe.not_covered if gap not in shared) or NONE
    spent = [g.epsilon_spent for run in _runs(recipe) for g in run.guarantees if g.epsilon_spent is not None]
    largest = max(spent) if spent else math.nan
    named: list[Cell] = [(recipe.name, recipe.name, "text")]
    if view.sweep:
        named = [(value, value, "text") for value in recipe.place]
    return [
        *named,
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


def _runs(recipe: RecipeView) -> list[RunView]:
    return [seed.run for seed in recipe.runs if seed.run is not None]


def _links(view: ComparisonView) -> str:
    """Return the table of all runs, by seed; each links to its page."""
    head = "".join(f'<th scope="col">seed {seed}</th>' for seed in view.seeds)
    rows = []
    for recipe in view.recipes:
        cells = []
        for one in recipe.runs:
            value = safe(shown(view.primary, one.score["mean"]))
            label = safe(f"{recipe.name}, seed {one.seed}: {shown(view.primary, one.score['mean'])}")
            href = safe(quote(one.report)) if one.report else ""
            cells.append(
                f'<td><a href="./{href}" aria-label="{label}">{value}</a></td>' if href else f"<td>{value}</td>"
            )
        rows.append(f'<tr><th scope="row" class="text">{safe(recipe.name)}</th>{"".join(cells)}</tr>')
    missing = any(one.report is None for recipe in view.recipes for one in recipe.runs)
    words = "Each score links to the report of its run." + (
        " For runs without one, hush report DIR writes it." if missing else ""
    )
    return (
        f'<p class="soft">{words}</p><div class="panel scroll" tabindex="0" role="region" aria-label="Runs"><table>'
        f'<thead><tr><th scope="col" class="text">{view.thing}</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _config(run: RunView | None) -> str:
    if run is None:
        return ""
    return f"<details><summary>Config of the first run</summary><pre>{safe(toml(run.config))}</pre></details>"
