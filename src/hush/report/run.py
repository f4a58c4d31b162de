"""The HTML page of one run: verdict, charts, guarantee card, and how to reproduce it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hush.objective.metrics import METRICS, Metric, shown
from hush.pages.chart import Chart
from hush.pages.document import Cell, banner, command, facts, page, panels, table, tiles
from hush.pages.wording import NONE, between, capital, count, figure, safe
from hush.report.charts_accuracy import accuracy_by_client, accuracy_by_round, loss_by_round
from hush.report.charts_clusters import clusters
from hush.report.charts_noise import noise, weights
from hush.report.charts_privacy import privacy_by_round
from hush.report.participation import members_table
from hush.report.read import RunView
from hush.report.toml import toml
from hush.report.verdict import over_budget, unprotected, verdict
from hush.report.worst_client import worst_client
from hush.types import Guarantee

_COLLAPSED_ABOVE = 50
_CARDS = 200
_MOST = 500  # rows of the guarantee card
_HEADS = (
    ("client", ""), ("budget ε", ""), ("spent ε", ""), ("spent ε by the filter", ""), ("remaining ε", ""),
    ("ε against a third party", ""),
    ("other releases", "text"), ("δ", ""), ("protects one", "text"), ("relation", "text"),
    ("sampler", "text"), ("accountant", "text"), ("noise", "text"), ("noise multiplier", ""), ("clip", ""),
    ("batch", ""), ("samples", ""), ("rounds", ""),
)  # fmt: skip
_SHAREABLE = ("other releases", "δ", "protects one", "relation", "sampler", "accountant", "noise", "clip", "rounds")
_MEANING = (
    "Each row states an (ε, δ)-differential-privacy guarantee against the server, which sees every update of that "
    "client. "
    "If one row (one person, where persons are protected) is added or removed (replace-one: replaced by another), the "
    "probability of anything "
    "the server can observe changes by at most a factor of exp(ε spent), plus δ."
)


_NO_MEANING = "There is no privacy guarantee: without noise, epsilon against the server is unbounded."


_UNTRAINED = "This run released no update: the spent epsilon is from earlier runs, or from enrolment."


def run_page(view: RunView) -> str:
    """Return the complete HTML document."""
    title, judged = f"{view.recipe} on {view.dataset}", verdict(view)
    body = [
        banner(judged.tone, judged.headline, judged.words, view.not_covered, view.warnings),
        f"<h1>{safe(title)}</h1>",
        f'<p class="subtitle">{safe(_subtitle(view))}</p>',
        tiles(_headline(view)),
        f"<h2>Charts</h2>{panels(_charts(view))}",
        _worst(view),
        members_table(view) if view.federation else "",
        _metrics(view),
        _card(view),
        _again(view),
    ]
    return page(f"{title} · Hush", "federation report" if view.federation else "run report", "\n".join(body))


def _charts(view: RunView) -> list[Chart]:
    """Return the charts; in a federation, scores are of models, not of members."""
    of_clients = [] if view.federation else [accuracy_by_client(view)]
    return [
        accuracy_by_round(view), loss_by_round(view), *of_clients, weights(view), noise(view), *clusters(view),
        privacy_by_round(view),
    ]  # fmt: skip


def _worst(view: RunView) -> str:
    sentences = () if view.federation else worst_client(view)
    if not sentences:
        return ""
    listed = "".join(f"<li>{safe(sentence)}</li>" for sentence in sentences[1:])
    return f'<h2 id="worst">The worst client</h2><div class="panel"><p>{safe(sentences[0])}</p><ul>{listed}</ul></div>'


def _subtitle(view: RunView) -> str:
    size = f" ({count(view.parameters, 'parameter')})" if view.parameters else ""
    done = (
        count(view.rounds, "round") if view.finished else f"round {view.rounds} of {view.planned_rounds}, not finished"
    )
    done = "nothing trained" if view.untrained else done
    parts = [f"{view.model}{size}", count(view.clients, "client"), done, f"seed {view.seed}"]
    if math.isfinite(view.seconds):
        parts.append(f"{view.seconds:.1f} s")
    return ", ".join(parts)


def _headline(view: RunView) -> list[tuple[str, str, str]]:
    values, primary = [a for a in view.scores if math.isfinite(a)], view.primary
    mean = capital(primary.label) if view.federation else f"Mean {primary.label}"
    where = "on the coordinator's public test set" if view.federation else "over the clients' test sets"
    tests = where + ("; the initial model" if view.untrained else "")
    if not values:
        rows = [(mean, NONE, "no round evaluated yet")]
        return rows + ([] if view.federation else [("Worst client", NONE, rows[0][2])]) + _privacy_headline(view)
    rows = [(mean, shown(primary, statistics.fmean(values)), tests)]
    if view.federation:
        used = statistics.fmean(len(record.weights) for record in view.records)
        rows.append(("Updates per round", figure(used, 3), f"of {count(view.clients, 'member')}, mean over rounds"))
    else:
        worst, best = (min, max) if primary.higher_is_better else (max, min)
        last = worst(values)
        note = f"client {view.name(view.scores.index(last))}; best {shown(primary, best(values))}"
        rows.append(("Worst client", shown(primary, last), note))
    return rows + _privacy_headline(view)


def _metrics(view: RunView) -> str:
    """Return the table of all metrics, with the best constant prediction for comparison."""
    found = view.metrics
    if not found:
        return ""
    known = [(name, METRICS.get(name)) for name in found["pooled"]]
    heads = [("scores", "text"), *((name if metric is None else metric.label, "") for name, metric in known)]
    rows = [("pooled over all test rows", found["pooled"]), ("mean over clients", found["mean"])]
    rows.append(("worst client", found["worst"]))
    if view.federation:  # which has one test set, of the coordinator's
        rows = [("on the coordinator's public test set", found["pooled"])]
    cells: list[list[Cell]] = [
        [(words, words, "text"), *(_metric_cell(metric, values.get(name)) for name, metric in known)]
        for words, values in rows
    ]
    base = found["baseline"]
    cells.append(
        [
            (words := f"baseline: {base['what']}", words, "text"),
            *(
                _metric_cell(metric, base["value"] if metric is not None and metric == view.primary else None)
                for _, metric in known
            ),
        ]
    )
    notes = "".join(f'<p class="soft">{safe(note)}.</p>' for note in found["notes"])
    if frozen := found.get("frozen"):
        before = "–" if view.primary is None else f"{view.primary.label} {shown(view.primary, frozen['value'])}"
        notes += (
            f'<p class="soft">Fine-tuning: {safe(before)} before training; {frozen["parameters"]:,} parameters '
            f"trained, {frozen['frozen']:,} frozen; weights moved by {frozen['moved']:.3g}.</p>"
        )
    return f'<h2 id="metrics">Metrics</h2>{table(heads, cells, "Metrics")}{notes}'


def _metric_cell(metric: Metric | None, value: float | None) -> Cell:
    found = math.nan if value is None else float(value)
    return (found, figure(found) if metric is None else shown(metric, found), "")


def _privacy_headline(view: RunView) -> list[tuple[str, str, str]]:
    cards = view.guarantees
    if not cards:
        return [("Largest ε spent", NONE, "reported when the run ends")]
    spent = max(g.epsilon_spent or 0.0 for g in cards)
    budgets = [g.epsilon_budget for g in cards if g.epsilon_budget is not None and math.isfinite(g.epsilon_budget)]
    asked = f"budgets {between(budgets)}" if budgets else "no budgets set"
    kept = sum(not over_budget(g) for g in cards)
    if view.untrained:
        return [("Updates released", "0", "by this run"), ("Largest ε spent", figure(spent, 3), "by all runs so far")]
    if unprotected(view) == len(cards):
        return [("Largest ε spent", "∞", f"no privacy; {asked}"), ("Within budget", "none", "no guarantee")]
    return [
        ("Largest ε spent", figure(spent, 3), asked),
        (
            "Within budget",
            f"{kept} of {len(cards)}",
            "if the noise were secure" if view.noise != "secure" else "clients",
        ),
    ]


def _card(view: RunView) -> str:
    head = '<h2 id="guarantees">Guarantee card</h2>'
    if not view.guarantees:
        return f'{head}<p class="soft">Available when the run ends.</p>'
    words = _NO_MEANING if unprotected(view) == len(view.guarantees) else _MEANING
    if view.untrained:
        words = f"{_MEANING} {_UNTRAINED}"
    # Those over budget come first, so that none of them is left out of a page with many clients.
    cards = sorted(view.guarantees, key=lambda g: not over_budget(g))[:_MOST]
    cards.sort(key=lambda g: g.client)
    columns = [_cells(g) for g in cards]
    # What is the same for all clients is said once.
    same = [n for n in range(len(_HEADS)) if _HEADS[n][0] in _SHAREABLE and len({row[n][1] for row in columns}) == 1]
    common = "; ".join(f"{_HEADS[n][0]} {columns[0][n][1]}" for n in same)
    heads = [head for n, head in enumerate(_HEADS) if n not in same]
    rows = [[cell for n, cell in enumerate(row) if n not in same] for row in columns]
    hint = '<p class="hint">The table scrolls sideways where the window is too narrow for it.</p>'
    small = len(rows) <= _CARDS
    wide = f"{hint}{table(heads, rows, 'Guarantee card')}"
    made = f'<div class="beside-cards">{wide}</div>{_cards(view, heads, rows)}' if small else wide
    if len(rows) > _COLLAPSED_ABOVE:
        all_of = count(len(view.guarantees), "client")
        shown_ = (
            f"all {all_of}" if len(rows) == len(view.guarantees) else f"{len(rows)} of {all_of}; result.json has all"
        )
        made = f"<details><summary>Show {shown_}</summary>{made}</details>"
    views = sorted({guarantee.third_party for guarantee in view.guarantees if guarantee.third_party})
    third = "".join(
        f'<p class="soft">Against a third party, who sees only the models: {safe(each)}.</p>' for each in views
    )
    seen = sorted({guarantee.server_view for guarantee in view.guarantees if guarantee.server_view})
    third = "".join(f'<p class="soft">With {safe(each)}.</p>' for each in seen) + third
    shared = f"<p>The same for every client: {safe(common)}.</p>" if common else ""
    return f'{head}<p class="soft">{safe(words)}</p>{third}{shared}{made}'


def _cards(view: RunView, heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Cell]]) -> str:
    """Return one card per client, which the style sheet shows in place of the table on a narrow screen."""
    made = []
    for g, row in zip(view.guarantees, rows, strict=True):
        listed = "".join(
            f'<dt>{safe(head)}</dt><dd class="{"over" if "over" in style else ""}">{safe(shown_)}</dd>'
            for (head, _), (_, shown_, style) in list(zip(heads, row, strict=True))[1:]
        )
        meter = ""
        if g.epsilon_spent is not None and g.epsilon_budget and math.isfinite(g.epsilon_budget + g.epsilon_spent):
            share = min(100.0, 100 * g.epsilon_spent / g.epsilon_budget)
            over = " over" if over_budget(g) else ""
            meter = f'<div class="meter{over}" aria-hidden="true"><span style="width:{share:.0f}%"></span></div>'
        name = safe(view.name(g.client) if not g.name else g.name)
        made.append(f'<section class="panel"><h3>client {name}</h3>{meter}<dl class="facts">{listed}</dl></section>')
    return f'<div class="cards">{"".join(made)}</div>'


def _cells(g: Guarantee) -> list[Cell]:
    spent, budget = g.epsilon_spent, g.epsilon_budget
    over = "over" if over_budget(g) else ""
    filtered = spent if g.epsilon_filter is None else g.epsilon_filter
    left = None if filtered is None or budget is None or not math.isfinite(filtered) else budget - filtered
    if left is not None and not over:
        left = max(left, 0.0)
    clip = "none" if g.clip is None or math.isinf(g.clip) else figure(g.clip)
    return [
        (g.client, g.name or str(g.client), ""),
        (budget, figure(budget), ""),
        (spent, figure(spent), over),
        (filtered, figure(filtered), over),
        (left, f"{left:.4f}" if left is not None and math.isfinite(left) else figure(left), over),
        (g.epsilon_third_party, figure(g.epsilon_third_party), ""),
        (_side_releases(g), _side_releases(g), "text"),
        (g.delta, figure(g.delta), ""),
        (g.unit, g.unit, "text"),
        (g.relation, g.relation, "text"),
        (g.sampler, g.sampler, "text"),
        (g.accountant, str(g.accountant).upper(), "text"),
        (g.noise, g.noise, "text"),
        (g.noise_multiplier, figure(g.noise_multiplier), ""),
        (g.clip, clip, ""),
        (g.batch_size, str(g.batch_size), ""),
        (g.samples, str(g.samples), ""),
        (g.rounds, str(g.rounds), ""),
    ]


def _side_releases(g: Guarantee) -> str:
    """Return the names of the client's side releases, from the costs of its stages."""
    names = (str(cost["what"]) for stage in g.stages for cost in stage)
    return ", ".join(dict.fromkeys(name for name in names if name != "model update")) or "nothing"


def _again(view: RunView) -> str:
    named = [key for key, own in (("data.name", view.data_given), ("model.name", view.module_given)) if own]
    unused = f"# not used: {', '.join(named)}; the run used {view.given}\n" if named else ""
    rows = [
        ("config hash", view.config_hash),
        ("seed", str(view.seed)),
        ("started", view.started),
        *view.versions.items(),
    ]
    return (
        f"<h2>Reproduce</h2>{command(view.command, view.given)}{facts(rows)}"
        f"<details><summary>Full config</summary><pre>{safe(unused + toml(view.config))}</pre></details>"
    )
