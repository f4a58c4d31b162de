"""Result tables: the rounds, the guarantees and the preview of a run, comparisons, sweeps, audits and measures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hush.objective.metrics import Metric, metric_named
from hush.table import Table
from hush.types import Guarantee, RoundRecord, RunResult

_CARD = (
    "client",
    "epsilon_spent",
    "epsilon_budget",
    "delta",
    "relation",
    "unit",
    "samples",
    "batch_size",
    "rounds",
    "steps",
    "noise_multiplier",
)
_CLIENTS = 8  # whose own metrics are shown
_DETAILS = ("third_party", "server_view", "stages", "protects", "row_groups")


def history_table(records: Sequence[RoundRecord]) -> Table:
    """Return one row per round."""
    primary = metric_named(records[-1].primary) if records else metric_named("accuracy")
    columns = (
        "round",
        primary.name,
        "worst_client",
        "best_client",
        "loss",
        "clients",
        "refused",
        "bytes_up",
        "bytes_down",
        "seconds",
    )
    rows = []
    for record in records:
        each = record.scores
        scores = (statistics.fmean(each), *_ends(each, primary)) if each else (None, None, None)
        rows.append(
            (
                record.round,
                *scores,
                record.loss,
                len(record.charged),
                len(record.refused),
                record.bytes_up,
                record.bytes_down,
                record.seconds,
            )
        )
    return Table(
        title=f"Rounds: test {primary.label} over the clients, loss, and how many clients sent an update",
        columns=columns,
        rows=tuple(rows),
        shown=(*columns[:7], "seconds"),
    )


def guarantee_table(cards: Sequence[Guarantee], not_covered: Sequence[str], warnings: Sequence[str] = ()) -> Table:
    """Return one row per client: what its guarantee card says. What no epsilon covers, and warnings, are the notes."""
    columns = tuple(field.name for field in fields(Guarantee) if field.name not in ("name", *_DETAILS))
    rows = tuple(
        tuple(card.name or card.client if column == "client" else getattr(card, column) for column in columns)
        for card in cards
    )
    about = [f"Protects {text}" for text in dict.fromkeys(card.protects for card in cards) if text]
    about += list(dict.fromkeys(card.server_view for card in cards if card.server_view))
    about += [f"Against a third party: {cards[0].third_party}"] if cards and cards[0].third_party else []
    return Table(
        title="Guarantees against the server, one per client",
        columns=columns,
        rows=rows,
        shown=_CARD,
        notes=(*about, *_notes(not_covered, warnings)),
    )


def preview_table(found: Mapping[str, Any]) -> Table:
    """Return one row per client of a planned run, as `hush.preview` found it."""
    columns = (
        "client",
        "epsilon_budget",
        "epsilon_planned",
        "delta",
        "samples",
        "batch_size",
        "sample_rate",
        "rounds",
        "steps",
        "noise_multiplier",
        "noise_variance",
        "weight",
    )
    rows = tuple(
        (each["name"] or each["client"], *(each[column] for column in columns[1:])) for each in found["clients"]
    )
    return Table(
        title=f"{found['recipe']}: plan of each client; weight is its expected share in the model",
        columns=columns,
        rows=rows,
        shown=tuple(name for name in columns if name not in ("sample_rate", "noise_variance")),
        notes=(f"Against a third party: {found['third_party']}", *_notes(found["not_covered"], found["warnings"])),
        facts=found,
    )


def comparison_table(
    summary: Mapping[str, Any], keys: Sequence[str] = ("recipe",), values: Mapping[str, Sequence[Any]] | None = None
) -> Table:
    """Return one row per variant, best first: the mean and the sample standard deviation over the seeds.

    `keys` are the columns that tell variants apart, `values` what they hold for each variant; by default its label.
    """
    primary, rows = metric_named(summary["primary"]), []
    for name, entry in summary["recipes"].items():
        runs, score = entry["runs"], entry["score"]
        rows.append(
            (
                *((name,) if values is None else values[name]),
                score["mean"],
                score["std"] if len(runs) > 1 else None,
                _ends([run["worst"] for run in runs], primary)[0],
                statistics.fmean(run["loss"] for run in runs),
                max(run["epsilon_spent_max"] or 0.0 for run in runs),
                sum(run["seconds"] for run in runs),
            )
        )
    at = len(keys)
    ranked = tuple(sorted(rows, key=lambda row: -row[at] if primary.higher_is_better else row[at]))
    seeds = ", ".join(map(str, summary["seeds"]))
    entries = summary["recipes"].values()
    gaps = dict.fromkeys(text for entry in entries for text in entry["not_covered"])
    warned = dict.fromkeys(text for entry in entries for text in entry["warnings"])
    untrained = tuple(
        f"{name}, seed {run['seed']}: {run['ended']}."
        for name, entry in summary["recipes"].items()
        for run in entry["runs"]
        if not run["trained"]
    )
    spread = ("std is the sample standard deviation over the seeds.",) if len(summary["seeds"]) > 1 else ()
    return Table(
        title=f"Mean test {primary.label} over seeds {seeds}" if spread else f"Test {primary.label}, seed {seeds}",
        columns=(*keys, primary.name, "std", "worst_client", "loss", "epsilon_spent", "seconds"),
        rows=ranked,
        notes=(*spread, *untrained, *_notes(tuple(gaps), tuple(warned))),
        facts=summary,
    )


def tuning_table(summary: Mapping[str, Any], keys: Sequence[str], values: Mapping[str, Sequence[Any]]) -> Table:
    """Return one row per candidate of a sweep within the budgets, best first by the noised scores that chose."""
    found, primary = summary["tuning"], metric_named(summary["primary"])
    rows = [
        (
            *values[each["name"]],
            each["noised_score"],
            each["score"],
            max(each["epsilon"]),
            each["name"] == found["chosen"],
        )
        for each in found["candidates"]
    ]
    at = len(keys)
    ranked = tuple(sorted(rows, key=lambda row: (not row[-1], -(row[at] or 0.0))))
    return Table(
        title=f"Chosen within the budgets: {found['chosen']}",
        columns=(*keys, f"noised_{primary.name}", primary.name, "epsilon_alone", "chosen"),
        rows=ranked,
        notes=(*tuning_words(found), *_notes(tuple(_gaps(summary)), ())),
        facts=summary,
    )


def tuning_words(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the price of tuning within the budgets, in sentences."""
    ratio, error = statistics.fmean(found["noise_ratio"]), found["score_error"]
    spent = max(s / b for s, b in zip(found["epsilons"], found["budgets"], strict=True))
    choice = (
        "The noise hides the scores: the choice is arbitrary."
        if error is None
        else f"The choice is by noised scores, whose noise has a standard deviation of {error:.2g}; scores without "
        "noise are a simulation's, and decide nothing."
    )
    chosen = next(each for each in found["candidates"] if each["name"] == found["chosen"])
    price = (
        ()
        if found["whole_score"] is None
        else (
            f"Price of tuning: {chosen['score']:.4g} in place of {found['whole_score']:.4g} with the whole budget, had "
            "these settings been known beforehand.",
        )
    )
    return (
        choice,
        f"All {len(found['candidates'])} candidates and the evaluation spend at most {100 * spent:.1f} % of any "
        f"budget; the noise of training is {ratio:.3g} times that of one run with the whole budget.",
        *price,
    )


def _gaps(summary: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(text for entry in summary["recipes"].values() for text in entry["not_covered"]))


def audit_table(found: Mapping[str, Any]) -> Table:
    """Return one row per release with its own bound; the title compares that of all together with the claim."""
    verdict = (
        "REFUTED: distinguished better than allowed" if found["refuted"] else "not refuted; no audit can prove a claim"
    )
    return Table(
        title=(
            f"Audit of client {found['client']}: claimed epsilon {found['epsilon_claimed']:.4g} at delta "
            f"{found['delta']:g}; the attack shows at least {found['epsilon_lower']:.4g} with "
            f"{100 * found['confidence']:g} % confidence ({verdict})"
        ),
        columns=("release", "times", "audited", "epsilon_claimed", "epsilon_lower"),
        rows=tuple(
            (each["what"], each["times"], each["audited"], each["epsilon_claimed"], each["epsilon_lower"])
            for each in found["releases"]
        ),
        notes=(
            *found["meaning"],
            f"{found['kind']} audit, {found['canaries']} canaries, {found['runs']} training runs, "
            f"noise {found['noise']}, {found['seconds']:.1f} s.",
        ),
        facts=found,
    )


def attack_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row per budget: how well membership inference does, and the most that the guarantee allows."""
    return Table(
        title="Membership inference (LiRA): how well who sees the final model tells training rows from others",
        columns=("epsilon", "score", "auc", "auc_error", "found", "allowed"),
        rows=tuple(
            (e["epsilon"], e["accuracy"], e["auc"], e["auc_error"], e["tpr"]["0.01"], e["allowed"]["0.01"])
            for e in found
        ),
        notes=(
            f"{found[0]['shadows']} runs on random halves of the rows, each attacked with the others as shadows; "
            f"{found[0]['units']} rows or persons.",
            "found: members at 1 % false alarms; allowed: the most that epsilon and delta permit there. An AUC of 0.5 "
            "is guessing. An attack that finds little proves nothing: hush audit makes stronger ones.",
        ),
        facts={"attacks": list(found)},
    )


def measure_table(found: Mapping[str, Any]) -> Table:
    """Return one row per measure of a finished run."""
    return Table(
        title="Metrics computed without noise (simulations only)",
        columns=("measure", "value"),
        rows=tuple((name.replace("_", " "), value) for name, value in found.items()),
        facts=found,
    )


def summary_table(result: RunResult, most: int, path: Path | None) -> Table:
    """Return the facts of a run that a person asks for first, with at most so many gaps and warnings each."""
    primary, others = metric_named(result.primary), dict(result.metrics.get("mean", {}))
    worst, best = _ends((result.score["min"], result.score["max"]), primary)
    spent = [card.epsilon_spent for card in result.guarantees if card.epsilon_spent is not None]
    others.pop(primary.name, None)
    figures = ", ".join(f"{name} {value:.4g}" for name, value in others.items())
    notes = (
        *([f"Mean over the clients: {figures}"] if figures else []),
        *_first(result.warnings, most, "Warning: ", "warnings"),
        *_first(result.not_covered, most, "Not covered: ", "not_covered"),
        *([f"Run directory: {path}"] if path is not None else []),
    )
    return Table(
        title=f"{result.recipe} on {result.dataset}, {result.model}: {result.ended}",
        columns=(f"mean {primary.label}", "worst client", "best client", "loss", "rounds", "largest epsilon spent"),
        rows=((result.score["mean"], worst, best, result.loss, result.rounds, max(spent, default=None)),),
        notes=notes,
    )


def metrics_table(result: RunResult) -> Table:
    """Return one row per metric: over all test rows, the mean over the clients, the worst client, and each client."""
    found = result.metrics
    clients = tuple(found["per_client"])
    rows = tuple(
        (
            name,
            found["pooled"][name],
            found["mean"][name],
            found["worst"].get(name),
            *(found["per_client"][client][name] for client in clients),
        )
        for name in found["pooled"]
    )
    base = found["baseline"]
    return Table(
        title="Metrics on the clients' test rows: over all rows (pooled), over the clients (mean, worst), and of each",
        columns=("metric", "pooled", "mean", "worst", *clients),
        rows=rows,
        shown=("metric", "pooled", "mean", "worst", *clients[:_CLIENTS]),
        notes=(f"Baseline, {base['what']}: {found['primary']} {base['value']:.4g}", *found["notes"]),
        facts=found,
    )


def _ends(values: Sequence[float], metric: Metric) -> tuple[float, float]:
    """Return the worst and the best."""
    ends = min(values), max(values)
    return ends if metric.higher_is_better else ends[::-1]


def _first(texts: Sequence[str], most: int, label: str, attribute: str) -> tuple[str, ...]:
    more = f"... and {len(texts) - most} more in .{attribute}"
    return (*(f"{label}{text}" for text in texts[:most]), *([more] if len(texts) > most else []))


def _notes(not_covered: Sequence[str], warnings: Sequence[str]) -> tuple[str, ...]:
    return (*(f"Not covered: {text}" for text in not_covered), *(f"Warning: {text}" for text in warnings))
