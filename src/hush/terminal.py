"""What a person sees in a terminal: progress on standard error, tables on standard output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hush.types import RoundRecord, RunResult


class Bar:
    """A live progress bar, in rounds."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
            TimeRemainingColumn(),
        )  # fmt: skip
        console = Console(stderr=True)
        hidden = quiet or not console.is_terminal
        self._quiet = quiet
        self._progress = Progress(*columns, console=console, disable=hidden, transient=True)
        self._task = self._progress.add_task("preparing", total=total)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def warn(self, gaps: tuple[str, ...]) -> None:
        """The run's first line: what no epsilon covers."""
        if not self._quiet:
            self._progress.console.print(f"Not covered by any epsilon here: {'; '.join(gaps)}", soft_wrap=True)

    def advance(self, completed: int | None, record: RoundRecord, label: str = "training") -> None:
        """One more round is done."""
        words = f"{label}: accuracy {_percent(sum(record.accuracy_per_client) / len(record.accuracy_per_client))}"
        if completed is None:
            self._progress.update(self._task, advance=1, description=words)
        else:
            self._progress.update(self._task, completed=completed, description=words)


def show_measures(found: Mapping[str, Any]) -> None:
    """What `hush measure` found."""
    table = Table(title="Measured without noise, for simulations alone", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, value in found.items():
        table.add_row(name.replace("_", " "), f"{value:.6g}")
    Console(highlight=False).print(table)


def show_run(result: RunResult, path: Path) -> None:
    """The outcome of one run."""
    console = Console(highlight=False)
    table = Table(
        title=f"{result.recipe} on {result.dataset}, {result.model}, {result.rounds} rounds", title_justify="left"
    )
    for column in ("mean accuracy", "worst client", "best client", "loss", "largest epsilon spent"):
        table.add_column(column, justify="right")
    a = result.accuracy
    table.add_row(
        _percent(a["mean"]), _percent(a["min"]), _percent(a["max"]), f"{result.loss:.3f}",
        _epsilon(max(g.epsilon_spent or 0.0 for g in result.guarantees)),
    )  # fmt: skip
    console.print(table)
    _show_gaps(console, result.not_covered)
    console.print(f"{result.seconds:.1f} s. Report: {path / 'report.html'}", soft_wrap=True)


def show_comparison(summary: Mapping[str, Any], path: Path) -> None:
    """One line a recipe, best first."""
    console = Console(highlight=False)
    table = Table(title=f"Accuracy over seeds {', '.join(map(str, summary['seeds']))}", title_justify="left")
    for column in ("recipe", "mean", "± std", "worst client", "largest epsilon spent", "seconds"):
        left = column == "recipe"
        table.add_column(column, justify="left" if left else "right", overflow="fold" if left else "ellipsis")
    ranked = sorted(summary["recipes"].items(), key=lambda item: -item[1]["accuracy"]["mean"])
    for name, entry in ranked:
        runs = entry["runs"]
        table.add_row(
            name,
            _percent(entry["accuracy"]["mean"]),
            _percent(entry["accuracy"]["std"]) if len(runs) > 1 else "–",
            _percent(min(run["accuracy"]["min"] for run in runs)),
            _epsilon(max(run["epsilon_spent_max"] or 0.0 for run in runs)),
            f"{sum(run['seconds'] for run in runs):.1f}",
        )
    console.print(table)
    shared = [set(entry["not_covered"]) for entry in summary["recipes"].values()]
    _show_gaps(console, tuple(sorted(set.union(*shared))))
    console.print(f"Report: {path / 'report.html'}", soft_wrap=True)


def show_plan(answer: Mapping[str, Any]) -> None:
    """The noise for a budget, how it is spent, and what other choices would need."""
    console = Console(highlight=False)
    console.print(
        f"noise multiplier {answer['noise_multiplier']:.4f}: spends epsilon {answer['epsilon']:.4f} at delta "
        f"{answer['delta']:g} toward the server, over {answer['steps']} steps at sampling rate "
        f"{answer['sample_rate']:.4g} ({answer['relation']}, Poisson batches, accountant {answer['accountant']})",
        soft_wrap=True,
    )
    console.print(f"At this noise the budget affords {answer['affordable_rounds']} rounds.")
    marks = list(answer["epsilon_by_round"].items())
    shown = sorted({round(i * (len(marks) - 1) / 5) for i in range(6)})
    console.print(
        "epsilon after round: " + ", ".join(f"{marks[i][0]}: {marks[i][1]:.3g}" for i in shown), soft_wrap=True
    )
    table = Table(title="For the same budget and rounds", title_justify="left")
    for column in ("batch", "epochs", "steps a round", "noise multiplier", "noise of a step", "noise of an update"):
        table.add_column(column, justify="right")
    for choice in answer["choices"]:
        table.add_row(
            str(choice["batch"]), str(choice["epochs"]), str(choice["steps"]), f"{choice['noise_multiplier']:.4g}",
            f"{choice['gradient_noise']:.4g}", f"{choice['update_noise']:.4g}",
        )  # fmt: skip
    console.print(table)
    console.print(
        "noise: of each coordinate, for clip 1 and learning rate 1; of a step its deviation, else its variance"
    )


def show_outlook(found: Mapping[str, Any]) -> None:
    """Every client of a federation."""
    console = Console(highlight=False)
    columns = ("client", "budget", "spends", "delta", "rows", "batch", "rounds", "steps", "noise", "variance", "weight")
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    for each in found["clients"]:
        planned = each["epsilon_planned"]
        table.add_row(
            str(each["client"]), f"{each['epsilon_budget']:.3g}", "no bound" if planned is None else f"{planned:.3g}",
            f"{each['delta']:g}", str(each["samples"]), str(each["batch_size"]), str(each["rounds"]),
            str(each["steps"]), f"{each['noise_multiplier']:.3g}", f"{each['noise_variance']:.3g}",
            f"{each['weight']:.4f}",
        )  # fmt: skip
    console.print(f"{found['recipe']}: what each client may expect")
    console.print(table)
    console.print(f"Toward a third party: {found['third_party']}", soft_wrap=True)
    _show_gaps(console, tuple(found["not_covered"]))


def show_bench(found: Mapping[str, Any]) -> None:
    """The figures, a line each."""
    console = Console(highlight=False)
    for key, value in found["figures"].items():
        console.print(f"{key:48} {value:10.4g}", soft_wrap=True)
    machine = found["machine"]
    console.print(f"{machine['cores']} cores, {machine['threads']} threads, GPU {machine['gpu']}", soft_wrap=True)


def show_ledger(found: Mapping[str, Any]) -> None:
    """What a ledger says."""
    if not found["chain_ok"]:
        return
    console = Console(highlight=False)
    policy = found["policy"]
    budget = "none promised" if policy["epsilon"] is None else f"{policy['epsilon']:.4g}"
    rows = [
        ("client", str(found["client"])),
        (
            "budget",
            f"epsilon {budget}, delta {policy['delta']:g}, {policy['relation']}, accountant {found['accountant']}",
        ),
        ("spent", "no bound" if found["spent"] is None else f"{found['spent']:.6g}"),
        ("left", "no bound" if found["left"] is None else f"{found['left']:.6g}"),
        ("charges", ", ".join(f"{number} {state.lower()}" for state, number in found["charges"].items())),
        (
            "runs",
            "; ".join(f"{each['run'] or '(unnamed)'}: {each['rounds']} rounds" for each in found["runs"]) or "none",
        ),
        ("chain", f"whole, {found['rows']} rows, head {found['head']}"),
    ]
    for name, value in rows:
        console.print(f"{name:8} {value}", soft_wrap=True, markup=False)


def show_audit(found: Mapping[str, Any]) -> None:
    """The bound, the claim, and what to make of them."""
    console = Console(highlight=False)
    console.print(
        f"client {found['client']}: claimed epsilon {found['epsilon_claimed']:.4g} at delta {found['delta']:g}; the "
        f"attack shows at least {found['epsilon_lower']:.4g} with {100 * found['confidence']:g} % confidence",
        soft_wrap=True,
    )
    console.print(
        f"{found['kind']} audit, {found['canaries']} canaries, {found['runs']} trainings of {found['steps']} steps, "
        f"noise {found['noise']}, {found['seconds']:.1f} s; "
        f"if scores were normal: {found['epsilon_if_gaussian']:.4g} (no proof)",
        soft_wrap=True,
    )
    verdict = "REFUTED: the claim cannot be true" if found["refuted"] else "not refuted; an audit cannot prove a claim"
    console.print(verdict)


def show_catalogue(found: Mapping[str, Any]) -> None:
    """All that can be named."""
    console = Console(highlight=False)
    recipes = Table("recipe", "what it does", title="Recipes", title_justify="left")
    for name, words in found["recipes"].items():
        recipes.add_row(name, words)
    console.print(recipes)
    slots = Table("slot", "rules", title="Slots of a recipe", title_justify="left")
    for name, rules in found["slots"].items():
        slots.add_row(name, ", ".join(rules))
    console.print(slots)
    for key in ("models", "datasets", "partitions", "budgets"):
        console.print(f"{key}: {', '.join(found[key])}")


def _show_gaps(console: Console, gaps: tuple[str, ...]) -> None:
    if gaps:
        console.print("Not covered by any epsilon here:")
    for gap in gaps:
        console.print(f"  - {gap}", markup=False, soft_wrap=True)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


def _epsilon(value: float) -> str:
    return "none promised" if value in (0.0, float("inf")) else f"{value:.3f}"


def show_entries(listed: Sequence[Mapping[str, Any]]) -> None:
    """What can be reproduced."""
    table = Table(title="hush reproduce ENTRY [--cells ALGORITHM:COLUMN,...]", title_justify="left")
    for column in ("entry", "what", "cells", "seeds"):
        table.add_column(column, justify="right" if column in ("cells", "seeds") else "left")
    for each in listed:
        table.add_row(each["entry"], each["title"], str(len(each["cells"])), str(each["seeds"]))
    Console(highlight=False).print(table)


def show_reproduction(content: Mapping[str, Any], path: Path) -> None:
    """Paper and ours, cell by cell."""
    console = Console(highlight=False)
    for name in dict.fromkeys(name for cell in content["cells"] for name in cell["measures"]):
        title = content["title"] if name == "value" else f"{content['title']}: {name}"
        table = Table(title=title, title_justify="left")
        for column in ("cell", "printed", "ours", "difference"):
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
