"""The command line: parses and delegates. Heavy imports wait until a command needs them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from hush.cli_federation import federation_app
from hush.cli_reproduce import reproduce
from hush.cli_trust import audit, ledger_app
from hush.types import HushError

if TYPE_CHECKING:
    from hush.types import RunResult

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated learning in which every participant sets its own privacy budget.",
)

app.add_typer(ledger_app, name="ledger")
app.add_typer(federation_app, name="federation")
app.command()(audit)
app.command()(reproduce)

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The run's config.")]
Out = Annotated[Path | None, typer.Option(help="The directory to write; by default a new one under runs/.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key; may be repeated.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]
Data = Annotated[str | None, typer.Option(help="Directory with the public dataset files (or HUSH_DATA).")]
DEMO_RECIPES = "dp-fedavg,weiavg,minimum,robust-hdp"


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from hush import __version__

        print(f"hush {__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Out = None,
    seeds: Annotated[int, typer.Option(help="Seeds to average over.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Compare four recipes on the built-in data: clients with different budgets and batch sizes."""
    with as_file(files("hush").joinpath("demo.toml")) as path:
        _compare(path, DEMO_RECIPES, seeds, out or _fresh("demo"), (), False, None, as_json)


@app.command()
def run(
    file: File,
    out: Out = None,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    ledgers: Annotated[
        Path | None, typer.Option(help="Directory of ledger files that outlive the run: budgets for life.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one federation."""
    from hush import api
    from hush.config import config_hash, load
    from hush.terminal import Bar, show_run

    config = load(file, sets or ())
    label = f"{file.stem}-{config_hash(config)[:8]}"
    path = out or (_latest(label) if resume else _fresh(label))
    with Bar(config.rounds, quiet=as_json) as bar:
        result = api.simulate(
            file, overrides=sets or (), out=path, resume=resume, data=data, command=_command(),
            progress=lambda record: bar.advance(record.round, record), announce=bar.warn, ledgers=ledgers,
        )  # fmt: skip
    if as_json:
        _print_result(result)
    else:
        show_run(result, path)


@app.command()
def compare(
    file: File,
    recipes: Annotated[str, typer.Option(help="Recipe names, separated by commas.")],
    seeds: Annotated[int, typer.Option(help="Seeds to average over, counted up from the file's.")] = 1,
    out: Out = None,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run several recipes on the same clients: one table, one report."""
    label = f"compare-{file.stem}"
    path = out or (_latest(label) if resume else _fresh(label))
    _compare(file, recipes, seeds, path, sets or (), resume, data, as_json)


@app.command()
def sweep(
    file: File,
    grid: Annotated[list[str], typer.Option(metavar="KEY=V1,V2", help="Values to try; may be repeated.")],
    seeds: Annotated[int, typer.Option(help="Seeds to average over, counted up from the file's.")] = 1,
    out: Out = None,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run every combination of settings, all in lockstep: one table, one report."""
    from hush import api
    from hush.comparison import by_grid
    from hush.config import load

    label = f"sweep-{file.stem}"
    path = out or (_latest(label) if resume else _fresh(label))
    variants = by_grid(load(file, sets or ()), grid)
    rounds = sum(variant.rounds for variant in variants.values())
    _side_by_side(partial(api.sweep, file, grid), rounds, seeds, path, sets or (), resume, data, as_json)


@app.command()
def plan(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.toml]", help="A federation: every client of it.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="One client's budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="Its delta.")] = None,
    samples: Annotated[int | None, typer.Option(help="Its training samples.")] = None,
    batch: Annotated[int | None, typer.Option(help="Its expected batch size.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds it takes part in.")] = None,
    epochs: Annotated[int, typer.Option(help="Local epochs a round.")] = 1,
    accountant: Annotated[str, typer.Option(help="pld, rdp, or rdp-64 (Robust-HDP's).")] = "pld",
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    noise: Annotated[float | None, typer.Option(help="Ask what this noise multiplier costs.")] = None,
    sets: Sets = None,
    data: Data = None,
    plot: Annotated[Path | None, typer.Option(help="Write a page with a plot.")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer what a budget costs: for one client by its numbers, or for every client of a config."""
    from hush import api
    from hush.terminal import show_outlook, show_plan

    given = {"--epsilon": epsilon, "--delta": delta, "--samples": samples, "--batch": batch, "--rounds": rounds}
    if file is not None:
        if extra := [name for name, value in given.items() if value is not None]:
            raise HushError(f"{', '.join(extra)}: not with {file}, which gives every client's numbers; use --set")
        found = api.outlook(file, overrides=sets or (), data=data, plot=plot)
        print(json.dumps(found, indent=2)) if as_json else show_outlook(found)
        return
    if missing := [name for name, value in given.items() if value is None]:
        raise HushError(f"plan: missing {', '.join(missing)}; give these, or a FILE.toml")
    answer = api.plan(
        epsilon=epsilon or 0.0, delta=delta or 0.0, samples=samples or 0, batch=batch or 0, rounds=rounds or 0,
        epochs=epochs, noise_multiplier=noise, plot=plot,
        accountant=_choice("--accountant", accountant, "pld", "rdp", "rdp-64"),
        relation=_choice("--relation", relation, "add-remove", "replace-one"),
    )  # fmt: skip
    print(json.dumps(answer, indent=2)) if as_json else show_plan(answer)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List recipes, slots, models, datasets, partitions and budgets."""
    from hush.catalogue import catalogue
    from hush.terminal import show_catalogue

    found = catalogue()
    print(json.dumps(found, indent=2)) if as_json else show_catalogue(found)


@app.command()
def report(directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run or a comparison.")]) -> None:
    """Write the HTML report of a run directory anew."""
    from hush.report import write

    print(write(directory))


@app.command()
def measure(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run.")],
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Measure a run as the papers do: loss gap, gradient dissimilarity, fairness. Un-noised, for simulations."""
    from hush import api
    from hush.server.rundir import to_json
    from hush.terminal import show_measures

    found = api.measure(directory, data=data)
    sys.stdout.write(to_json(found).decode()) if as_json else show_measures(found)


@app.command()
def bench(
    suite: Annotated[
        list[str] | None, typer.Option(help="cpu, gpu, server, plan, scale or federation; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure ratios against rivals, side by side."""
    from hush.bench import run
    from hush.terminal import show_bench

    found = run(suite or ())
    print(json.dumps(found, indent=2)) if as_json else show_bench(found)


def _compare(
    file: Path, recipes: str, seeds: int, out: Path, sets: Any, resume: bool, data: str | None, as_json: bool
) -> None:
    from hush import api
    from hush.config import load

    names = [name.strip() for name in recipes.split(",") if name.strip()]
    rounds = load(file, sets).rounds * len(names)
    _side_by_side(partial(api.compare, file, names), rounds, seeds, out, sets, resume, data, as_json)


def _side_by_side(
    work: Callable[..., dict[str, Any]], rounds: int, seeds: int, out: Path, sets: Any, resume: bool,
    data: str | None, as_json: bool,
) -> None:  # fmt: skip
    from hush.terminal import Bar, show_comparison

    with Bar(rounds * max(seeds, 1), quiet=as_json) as bar:
        summary = work(
            seeds=seeds, overrides=sets, out=out, resume=resume, data=data, command=_command(),
            progress=lambda name, seed, record: bar.advance(None, record, f"{name}, seed {seed}"),
        )  # fmt: skip
    print(json.dumps(summary, indent=2)) if as_json else show_comparison(summary, out)


def _print_result(result: RunResult) -> None:
    from hush.server.rundir import to_json

    sys.stdout.write(to_json(result).decode())


def _command() -> str:
    return shlex.join(["hush", *sys.argv[1:]])


def _fresh(label: str) -> Path:
    """The first of runs/label, runs/label-2, ... that does not exist."""
    path, number = Path("runs") / label, 2
    while path.exists():
        path, number = Path("runs") / f"{label}-{number}", number + 1
    return path


def _latest(label: str) -> Path:
    """The newest run that `_fresh` made for this label."""
    made = [Path("runs") / label, *Path("runs").glob(f"{label}-[0-9]*")]
    existing = [path for path in made if path.exists()]
    if not existing:
        raise HushError(f"runs/{label}: nothing to resume; start without --resume, or name the directory with --out")
    return max(existing, key=lambda path: path.stat().st_mtime)


def _choice(option: str, value: str, *accepted: str) -> Any:
    if value not in accepted:
        raise HushError(f"{option}: found {value!r}; accepted: {', '.join(accepted)}")
    return value


def main() -> None:
    """Run a command; a user's mistake is one line and status 2."""
    try:
        status = app(standalone_mode=False)
    except (HushError, click.ClickException) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        print(f"hush: error: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        print("hush: stopped; a run directory can be continued with --resume", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
