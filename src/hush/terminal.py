"""Terminal output: progress on standard error, tables on standard output."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hush.callbacks import Callback, RunStart
from hush.objective.metrics import BESIDE, METRICS, Metric, metric_named, shown
from hush.privacy.ledger.book import STATE_NAMES
from hush.privacy.unit import protects
from hush.server.participation import spent_words
from hush.text import printable
from hush.types import RunResult

_LONGEST = 1 << 20


class TextConsole(Console):
    """A console that prints every text verbatim: names of files, clients or recipes cannot add control codes."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text with characters escaped that could move a cursor, or reorder or hide other text."""
        return super().render_str(printable(text, _LONGEST), **options)


@cache
def error_console() -> TextConsole:
    """The console on standard error; one for all, so that text and a live bar do not overwrite each other."""
    return TextConsole(stderr=True)


class Announcement(Callback):
    """Prints to standard error, before a run, what its guarantee does not cover, and what to warn of."""

    def on_run_start(self, start: RunStart) -> None:
        """Print both."""
        console = error_console()
        console.print(f"Not covered by the privacy guarantee: {'; '.join(start.not_covered)}", soft_wrap=True)
        _show_warnings(console, start.warnings)


def show_measures(found: Mapping[str, Any]) -> None:
    """Print the metrics of `hush measure`."""
    table = Table(title="Metrics computed without noise (simulations only)", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, value in found.items():
        if name != "bound":
            table.add_row(name.replace("_", " "), f"{value:.6g}")
    console = TextConsole()
    console.print(table)
    if "bound" in found:
        _show_bound(console, found["bound"])


def _show_bound(console: TextConsole, bound: Mapping[str, Any]) -> None:
    """A paper's convergence bound beside what was measured, and whether its conditions are met."""
    table = Table(title=f"{bound['theorem']}: {bound['quantity']}", title_justify="left")
    for column in ("round", "bound", "loss on held-out rows"):
        table.add_column(column, justify="right")
    for count, value, loss in zip(bound["rounds"], bound["bound"], bound["held_out_loss"], strict=True):
        table.add_row(str(count), f"{value:.4g}", f"{loss:.4g}")
    console.print(table)
    console.print(
        f"Measured: training loss above its minimum {bound['train_loss_gap_at_the_start']:.4g} at the start, "
        f"{bound['train_loss_gap_at_the_end']:.4g} at the end; squared norm of its gradient at the end "
        f"{bound['squared_gradient_at_the_end']:.4g}.",
        soft_wrap=True,
    )
    for each in bound["conditions"]:
        if not each["met"]:
            text = f"Condition not met, so that this is no bound: {each['what']} {each['value']:.3g}, limit"
            console.print(f"{text} {each['limit']:.3g}.", soft_wrap=True)
    if bound["caveat"]:
        console.print(bound["caveat"], soft_wrap=True)


def show_run(result: RunResult, path: Path) -> None:
    """Print the result of one run."""
    console = TextConsole()
    table = Table(
        title=f"{result.recipe} on {result.dataset}, {result.model}, {result.rounds} rounds", title_justify="left"
    )
    metric, score = metric_named(result.primary), result.score
    for column in (f"mean {metric.label}", "worst client", "best client", "loss", "largest epsilon spent"):
        table.add_column(column, justify="right")
    ends = (score["min"], score["max"]) if metric.higher_is_better else (score["max"], score["min"])
    table.add_row(
        shown(metric, score["mean"]), *(shown(metric, each) for each in ends), f"{result.loss:.3f}",
        _epsilon(max(g.epsilon_spent or 0.0 for g in result.guarantees)),
    )  # fmt: skip
    console.print(table)
    _show_metrics(console, result)
    if result.out_of_budget:
        console.print(f"{spent_words(result.out_of_budget, len(result.guarantees), result.clients)}.", soft_wrap=True)
    _show_warnings(console, result.warnings)
    _show_gaps(console, result.not_covered)
    console.print(f"{result.seconds:.1f} s. Report: {path / 'report.html'}", soft_wrap=True)


def _show_metrics(console: TextConsole, result: RunResult) -> None:
    """What the primary score has to be seen beside: the best constant prediction, and the other metrics."""
    found = result.metrics
    if not found:
        return
    metric, base = metric_named(result.primary), found["baseline"]
    console.print(f"Baseline, {base['what']}: {metric.label} {shown(metric, base['value'])}.", soft_wrap=True)
    if frozen := found.get("frozen"):
        console.print(
            f"Fine-tuning: {metric.label} {shown(metric, frozen['value'])} before training; "
            f"{frozen['parameters']:,} parameters trained, {frozen['frozen']:,} frozen; weights moved by "
            f"{frozen['moved']:.3g} (norm before: {frozen['start']:.3g}).",
            soft_wrap=True,
        )
    others = {name: value for name, value in found["mean"].items() if name != metric.name}
    words = [
        f"{METRICS[name].label} {shown(METRICS[name], value)}" if name in METRICS else f"{printable(name)} {value:.4g}"
        for name, value in others.items()
    ]
    if words:
        console.print(f"Mean over clients: {', '.join(words)}.", soft_wrap=True)
    for note in found["notes"]:
        console.print(f"Note: {printable(note)}.", soft_wrap=True)


def show_comparison(summary: Mapping[str, Any], path: Path) -> None:
    """Print one line per recipe, best first."""
    console = TextConsole()
    metric, seeds = metric_named(summary["primary"]), ", ".join(map(str, summary["seeds"]))
    beside = _secondary_metric(summary)
    table = Table(title=f"{metric.label[0].upper()}{metric.label[1:]} over seeds {seeds}", title_justify="left")
    more = [] if beside is None else [beside.label]
    for column in ("recipe", "mean", "± std", "worst client", *more, "largest epsilon spent", "seconds"):
        left = column == "recipe"
        table.add_column(column, justify="left" if left else "right", overflow="fold" if left else "ellipsis")
    sign, worst = (-1, min) if metric.higher_is_better else (1, max)
    ranked = sorted(summary["recipes"].items(), key=lambda item: sign * item[1]["score"]["mean"])
    for name, entry in ranked:
        runs = entry["runs"]
        table.add_row(
            name,
            shown(metric, entry["score"]["mean"]),
            shown(metric, entry["score"]["std"]) if len(runs) > 1 else "–",
            shown(metric, worst(run["worst"] for run in runs)),
            *([] if beside is None else [shown(beside, entry["metrics"][beside.name])]),
            _epsilon(max(run["epsilon_spent_max"] or 0.0 for run in runs)),
            f"{sum(run['seconds'] for run in runs):.1f}",
        )
    console.print(table)
    for name, entry in ranked:
        for run in entry["runs"]:
            if not run["trained"]:
                console.print(f"{name}, seed {run['seed']}: {run['ended']}.", soft_wrap=True)
    if len(summary["seeds"]) > 1:
        console.print("± std: the sample standard deviation over the seeds")
    if said := _ranking(ranked, metric):
        console.print(said, soft_wrap=True)
    shared = [set(entry["not_covered"]) for entry in summary["recipes"].values()]
    _show_gaps(console, tuple(sorted(set.union(*shared))))
    texts = [text for entry in summary["recipes"].values() for text in entry.get("warnings", ())]
    _show_warnings(console, tuple(dict.fromkeys(texts)))
    console.print(f"Report: {path / 'report.html'}", soft_wrap=True)


def _ranking(ranked: Sequence[tuple[str, Mapping[str, Any]]], metric: Metric) -> str:
    """Which of the recipes with a budget is best, and what there is without privacy; best first as in the table."""

    def said(name: str, entry: Mapping[str, Any]) -> str:
        return f"{name} with {shown(metric, entry['score']['mean'])}"

    spent = {name: max(run["epsilon_spent_max"] or 0.0 for run in entry["runs"]) for name, entry in ranked}
    bounded = [said(name, entry) for name, entry in ranked if 0.0 < spent[name] < math.inf]
    free = [said(name, entry) for name, entry in ranked if spent[name] in (0.0, math.inf)]
    if len(bounded) < 2:
        return ""
    words = f"Best within the budgets: {bounded[0]}, before {bounded[1]}."
    return f"{words} Without privacy: {free[0]}." if free else words


def _secondary_metric(summary: Mapping[str, Any]) -> Metric | None:
    """The metric that is shown beside the primary one, where the runs have one."""
    found = BESIDE.get(str(summary.get("task")))
    return None if found is None else metric_named(found)


def show_plan(answer: Mapping[str, Any]) -> None:
    """Print the noise for a budget, the epsilon by round, and alternative batch sizes and epochs."""
    console = TextConsole()
    console.print(
        f"noise multiplier {answer['noise_multiplier']:.4f}: spends epsilon {answer['epsilon']:.4f} at delta "
        f"{answer['delta']:g} against the server, over {answer['steps']} steps at sampling rate "
        f"{answer['sample_rate']:.4g} ({answer['relation']}, Poisson batches, accountant {answer['accountant']})",
        soft_wrap=True,
    )
    console.print(f"With this noise the budget covers {answer['affordable_rounds']} rounds.")
    marks = list(answer["epsilon_by_round"].items())
    shown = sorted({round(i * (len(marks) - 1) / 5) for i in range(6)})
    console.print(
        "epsilon after round: " + ", ".join(f"{marks[i][0]}: {marks[i][1]:.3g}" for i in shown), soft_wrap=True
    )
    table = Table(title="Alternatives for the same budget and number of rounds", title_justify="left")
    for column in ("batch", "epochs", "steps per round", "noise multiplier", "noise per step", "noise per update"):
        table.add_column(column, justify="right")
    for choice in answer["choices"]:
        table.add_row(
            str(choice["batch"]), str(choice["epochs"]), str(choice["steps"]), f"{choice['noise_multiplier']:.4g}",
            f"{choice['gradient_noise']:.4g}", f"{choice['update_noise']:.4g}",
        )  # fmt: skip
    console.print(table)
    console.print(
        "noise per coordinate, for clipping norm 1 and learning rate 1: standard deviation per step, variance per "
        "update"
    )
    _show_warnings(console, tuple(answer["warnings"]))


def show_preview(found: Mapping[str, Any]) -> None:
    """Print the plan of every client of a config."""
    console = TextConsole()
    columns = (
        "client",
        "budget",
        "epsilon",
        "delta",
        "rows",
        "batch",
        "rounds",
        "steps",
        "noise",
        "variance",
        "weight",
    )
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    for each in found["clients"]:
        planned = each["epsilon_planned"]
        table.add_row(
            each["name"] or str(each["client"]), f"{each['epsilon_budget']:.3g}",
            "unbounded" if planned is None else f"{planned:.3g}",
            f"{each['delta']:g}", str(each["samples"]), str(each["batch_size"]), str(each["rounds"]),
            str(each["steps"]), f"{each['noise_multiplier']:.3g}", f"{each['noise_variance']:.3g}",
            f"{each['weight']:.4f}",
        )  # fmt: skip
    console.print(f"{found['recipe']}: plan for each client")
    console.print(table)
    console.print(f"Against a third party: {found['third_party']}", soft_wrap=True)
    _show_gaps(console, tuple(found["not_covered"]))
    _show_warnings(console, tuple(found["warnings"]))


def show_bench(found: Mapping[str, Any]) -> None:
    """Print the benchmark results, one per line."""
    console = TextConsole()
    for key, value in found["figures"].items():
        console.print(f"{key:48} {value:10.4g}", soft_wrap=True)
    machine = found["machine"]
    console.print(f"{machine['cores']} cores, {machine['threads']} threads, GPU {machine['gpu']}", soft_wrap=True)


def show_ledger(found: Mapping[str, Any]) -> None:
    """Print the contents of a ledger."""
    if not found["chain_ok"]:
        return
    console = TextConsole()
    policy = found["policy"]
    budget = "no guarantee" if policy["epsilon"] is None else f"{policy['epsilon']:.4g}"
    converted = len(found["planned"]["converted"])
    kinds = f"; {converted} schedules of another kind than the first" if converted else ""
    rows = [
        ("client", str(found["client"])),
        (
            "budget",
            f"epsilon {budget}, delta {policy['delta']:g}, {policy['relation']}, accountant {found['accountant']}",
        ),
        ("protects", protects(policy["unit"])),
        ("spent", "unbounded" if found["spent"] is None else f"{found['spent']:.6g} by fixed composition"),
        (
            "filter",
            "unbounded" if found["filtered"] is None else f"{found['filtered']:.6g} by the privacy filter{kinds}",
        ),
        ("left", "unbounded" if found["left"] is None else f"{found['left']:.6g}"),
        ("charges", ", ".join(f"{number} {STATE_NAMES[state]}" for state, number in found["charges"].items())),
        (
            "runs",
            "; ".join(f"{each['run'] or '(unnamed)'}: {each['rounds']} rounds" for each in found["runs"]) or "none",
        ),
        ("chain", f"hash chain verified, {found['rows']} entries, head {found['head']}"),
        ("witness", "registered on this machine" if found["witnessed"] else "not registered on this machine"),
        *(
            ("adopted", f"in entry {each['row']}, {_day(each['at'])}, by key {each['key']}")
            for each in found["adopted"]
        ),
        *(("replaces", f"ledger {name[:12]}, which was retired") for name in found["replaces"]),
    ]
    for name, value in rows:
        console.print(f"{name:8} {value}", soft_wrap=True)


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def show_audit(found: Mapping[str, Any]) -> None:
    """Print the lower bound beside the claimed epsilon, what it means, and what was and was not audited."""
    console = TextConsole()
    console.print(
        f"client {found['client']}: claimed epsilon {found['epsilon_claimed']:.4g} at delta {found['delta']:g}; the "
        f"attack shows at least {found['epsilon_lower']:.4g} with {100 * found['confidence']:g} % confidence",
        soft_wrap=True,
    )
    verdict = (
        "REFUTED: the releases are distinguished better than the claim allows"
        if found["refuted"]
        else "not refuted (an audit cannot prove the claim)"
    )
    console.print(verdict)
    for sentence in found["meaning"]:
        console.print(f"  {sentence}", soft_wrap=True)
    for each in found["releases"]:
        console.print(f"audited: {_audited(each)}", soft_wrap=True)
    console.print(f"not audited: {', '.join(found['not_audited']) or 'none'}", soft_wrap=True)
    console.print(
        f"{found['kind']} audit, {found['canaries']} canaries, {found['runs']} training runs of {found['steps']} "
        "steps, "
        f"noise {found['noise']}, {found['seconds']:.1f} s; "
        f"estimate assuming Gaussian scores: {found['epsilon_if_gaussian']:.4g} (not a bound)",
        soft_wrap=True,
    )


def _audited(release: Mapping[str, Any]) -> str:
    """One release, how often it was audited, and what was found in it alone."""
    seen = f"{release['what']} ({release['audited']} of {release['times']})"
    if not release["audited"]:
        return seen
    return f"{seen}, alone at least {release['epsilon_lower']:.3g} of {release['epsilon_claimed']:.3g}"


def show_catalogue(found: Mapping[str, Any]) -> None:
    """Print the names of recipes, options, models, tasks, losses, metrics, datasets, partitions and budgets."""
    console = TextConsole()
    groups = {"recipes": found["recipes"]}
    groups |= {f"slot {slot}": rules for slot, rules in found["slots"].items()}
    groups |= {key: names for key, names in found.items() if key not in ("recipes", "slots")}
    for title, names in groups.items():
        table = Table.grid(padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True)
        table.add_column(style="dim")
        for name, words in names.items():
            table.add_row(name, words)
        console.print(title, style="bold")
        console.print(table)
        console.print()
    console.print("hush explain NAME says more about each, about config keys, and about terms.")


def show_explanations(found: Sequence[Mapping[str, Any]]) -> None:
    """Print what a word means."""
    console = TextConsole()
    for number, each in enumerate(found):
        if number:
            console.print()
        console.print(f"{each['word']} ({each['kind']})", style="bold", soft_wrap=True)
        console.print(each["text"][:1].upper() + each["text"][1:])
        table = Table.grid(padding=(0, 2, 0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for name, words in each["facts"]:
            table.add_row(name, words)
        if each["facts"]:
            console.print(table)


def _show_gaps(console: Console, gaps: tuple[str, ...]) -> None:
    if gaps:
        console.print("Not covered by the privacy guarantee:")
    for gap in gaps:
        console.print(f"  - {gap}", soft_wrap=True)


def _show_warnings(console: Console, warnings: tuple[str, ...]) -> None:
    for text in warnings:
        console.print(f"Warning: {text}", soft_wrap=True)


def _epsilon(value: float) -> str:
    return "no guarantee" if value in (0.0, float("inf")) else f"{value:.3f}"


def show_entries(listed: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables and figures that can be reproduced."""
    table = Table(title="hush reproduce ENTRY [--cells ALGORITHM:COLUMN,...]", title_justify="left")
    for column in ("entry", "description", "cells", "seeds"):
        table.add_column(column, justify="right" if column in ("cells", "seeds") else "left")
    for each in listed:
        table.add_row(each["entry"], each["title"], str(len(each["cells"])), str(each["seeds"]))
    TextConsole().print(table)


def show_reproduction(content: Mapping[str, Any], path: Path) -> None:
    """Print published and reproduced values, cell by cell."""
    console = TextConsole()
    for name in dict.fromkeys(name for cell in content["cells"] for name in cell["measures"]):
        title = content["title"] if name == "value" else f"{content['title']}: {name}"
        table = Table(title=title, title_justify="left")
        for column in ("cell", "published", "ours", "difference"):
            table.add_column(column, justify="left" if column == "cell" else "right")
        for cell in content["cells"]:
            value = cell["measures"].get(name)
            if value is not None:
                spread = "" if value["std"] is None else f" ± {value['std']:.2f}"
                printed, apart = value["printed"], value["difference"]
                table.add_row(
                    f"{cell['algorithm']}:{cell['column']}", "" if printed is None else f"{printed:g}",
                    f"{value['ours']:.2f}{spread}", "" if apart is None else f"{apart:+.2f}",
                )  # fmt: skip
        console.print(table)
    for note in content["notes"]:
        console.print(f"  - {note}", soft_wrap=True)
    console.print(f"Written: {path}", soft_wrap=True)
