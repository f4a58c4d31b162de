"""The HTML page of one run: verdict, charts, guarantee card, and how to reproduce it."""

from __future__ import annotations

import math
import statistics

from hush.objective.metrics import METRICS, Metric, shown
from hush.report.charts_accuracy import accuracy_by_client, accuracy_by_round
from hush.report.charts_noise import noise, weights
from hush.report.charts_privacy import privacy_by_round
from hush.report.page import Cell, banner, command, facts, page, panels, table, tiles
from hush.report.read import RunView
from hush.report.toml import toml
from hush.report.verdict import over_budget, unprotected, verdict
from hush.report.wording import NONE, between, count, figure, safe
from hush.types import Guarantee

_COLLAPSED_ABOVE = 50
_HEADS = (
    ("client", ""), ("budget ε", ""), ("spent ε", ""), ("remaining ε", ""), ("ε against a third party", ""),
    ("other releases", "text"), ("δ", ""), ("relation", "text"),
    ("sampler", "text"), ("accountant", "text"), ("noise", "text"), ("noise multiplier", ""), ("clip", ""),
    ("batch", ""), ("samples", ""), ("rounds", ""),
)  # fmt: skip
_MEANING = (
    "Each row states an (ε, δ)-differential-privacy guarantee against the server, which sees every update of that "
    "client. "
    "If one training example is added or removed (replace-one: replaced by another), the probability of anything the "
    "server can observe changes by at most a factor of exp(ε spent), plus δ."
)


_NO_MEANING = "There is no privacy guarantee: without noise, epsilon against the server is unbounded."


_UNTRAINED = "This run released no update: the spent epsilon is from earlier runs, or from enrolment."


def run_page(view: RunView) -> str:
    """Return the complete HTML document."""
    charts = [accuracy_by_round(view), accuracy_by_client(view), weights(view), noise(view), privacy_by_round(view)]
    title = f"{view.recipe} on {view.dataset}"
    body = [
        banner(verdict(view), view.not_covered, view.warnings),
        f"<h1>{safe(title)}</h1>",
        f'<p class="subtitle">{safe(_subtitle(view))}</p>',
        tiles(_headline(view)),
        panels(charts),
        _metrics(view),
        _card(view),
        _again(view),
    ]
    return page(f"{title} · Hush", "run report", "\n".join(body), charts)


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
    mean = f"Mean {primary.label}"
    tests = "over the clients' test sets" + ("; the initial model" if view.untrained else "")
    if values:
        worst, best = (min, max) if primary.higher_is_better else (max, min)
        last = worst(values)
        rows = [
            (mean, shown(primary, statistics.fmean(values)), tests),
            (
                "Worst client",
                shown(primary, last),
                f"client {view.name(view.scores.index(last))}; best {shown(primary, best(values))}",
            ),
        ]
    else:
        rows = [(mean, NONE, "no round evaluated yet"), ("Worst client", NONE, "no round evaluated yet")]
    return rows + _privacy_headline(view)


def _metrics(view: RunView) -> str:
    """Return the table of all metrics, with the best constant prediction for comparison."""
    found = view.metrics
    if not found:
        return ""
    known = [(name, METRICS.get(name)) for name in found["pooled"]]
    heads = [("", "text"), *((name if metric is None else metric.label, "") for name, metric in known)]
    rows = [("pooled over all test rows", found["pooled"]), ("mean over clients", found["mean"])]
    rows.append(("worst client", found["worst"]))
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
    return f'<h2 id="metrics">Metrics</h2>{table(heads, cells)}{notes}'


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
    made = table(_HEADS, [_row(guarantee) for guarantee in view.guarantees])
    if len(view.guarantees) > _COLLAPSED_ABOVE:
        made = f"<details><summary>Show all {count(len(view.guarantees), 'client')}</summary>{made}</details>"
    views = sorted({guarantee.third_party for guarantee in view.guarantees if guarantee.third_party})
    third = "".join(
        f'<p class="soft">Against a third party, who sees only the models: {safe(each)}.</p>' for each in views
    )
    return f'{head}<p class="soft">{safe(words)}</p>{third}{made}'


def _row(g: Guarantee) -> list[Cell]:
    spent, budget = g.epsilon_spent, g.epsilon_budget
    over = "over" if over_budget(g) else ""
    left = None if spent is None or budget is None or not math.isfinite(spent) else budget - spent
    if left is not None and not over:
        left = max(left, 0.0)
    clip = "none" if g.clip is None or math.isinf(g.clip) else figure(g.clip)
    return [
        (g.client, g.name or str(g.client), ""),
        (budget, figure(budget), ""),
        (spent, figure(spent), over),
        (left, f"{left:.4f}" if left is not None and math.isfinite(left) else figure(left), over),
        (g.epsilon_third_party, figure(g.epsilon_third_party), ""),
        (_besides(g), _besides(g), "text"),
        (g.delta, figure(g.delta), ""),
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


def _besides(g: Guarantee) -> str:
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
