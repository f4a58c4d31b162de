"""The main command `hush`: parses arguments and delegates. Heavy imports wait until a command needs them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
import typer.core
from click.exceptions import NoArgsIsHelpError

from hush.cli.certificate import certificate
from hush.cli.data import data_app
from hush.cli.engine import Address, Engine, engine_arguments
from hush.cli.federation import local as run_locally
from hush.cli.federation_operations import operations_app
from hush.cli.live import live_page, say
from hush.cli.predict import predict
from hush.cli.privacy import attack, audit, ledger_app
from hush.cli.reproduce import reproduce
from hush.text import printable
from hush.types import HushError, RunInterrupted

if TYPE_CHECKING:
    from hush.table import Table
    from hush.types import RunResult

_LONGEST = 4000
# Help is plain text. With rich installed, typer would escape its brackets nevertheless: "\\[default: 1]".
typer.core.HAS_RICH = False
_INTERRUPTED = 130
EXIT_CODES = (
    "Exit status: 0 success; 1 a federation check that would be refused, a ledger check in which a figure differs, or "
    "output that was cut off; "
    "2 a mistake in what was given, or nothing could be trained, said in one line; "
    "130 stopped by Ctrl-C or on request, to be resumed with --resume. "
    "Environment: HUSH_DATA dataset files; NO_COLOR=1 no colours."
)
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated learning in which every participant sets its own privacy budget.",
    epilog=EXIT_CODES,
)

app.add_typer(ledger_app, name="ledger")
app.add_typer(operations_app, name="federation")
app.add_typer(data_app, name="data")
app.command()(audit)
app.command()(attack)
app.command()(certificate)
app.command()(reproduce)
app.command()(predict)

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The config of the run.")]
Out = Annotated[Path | None, typer.Option(help="The output directory; default: a new one under runs/.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; can be repeated.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in the output directory.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACKER", help="mlflow, tensorboard or wandb (offline); can be repeated."),
]
Live = Annotated[bool, typer.Option("--live", help="Show a live page of the run in the browser, on this machine.")]
Port = Annotated[int | None, typer.Option(help="Port of the live page; default: 8321, or a free one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON to standard output.")]
Data = Annotated[str | None, typer.Option(help="Directory with the public dataset files (or HUSH_DATA).")]
DEMO_RECIPES = "hush,robust-hdp,weiavg,dp-fedavg,minimum,fedavg"
# Three members with the demo's three budgets. One of them has most of what is known, and in a demo it is trusted.
DEMO_FEDERATION = ("privacy.budgets=[0.2, 1.0, 5.0]", "max_weight=1.0")


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from hush import __version__

        print(f"hush {__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Out = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds to average over.  [default: 3]")] = None,
    federation: Annotated[
        bool, typer.Option("--federation", help="Run hush in a federation of three real processes on this machine.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare hush with the recipes of the papers on built-in data, where every client has a budget of its own."""
    from hush.recipes.presets import SUMMARIES

    if federation and seeds is not None:
        raise HushError("--seeds: a federation's noise is secure and has no seed; leave it out with --federation")
    with as_file(files("hush").joinpath("demo.toml")) as path:
        if federation:
            print("Three members train a model together; they allow epsilon 0.2, 1 and 5.", file=sys.stderr)
            run_locally(path, directory=out or _fresh("demo-federation"), sets=list(DEMO_FEDERATION), as_json=as_json)
            return
        if not as_json:
            print("Ten clients train a model together on handwritten digits, and each sets its own privacy budget:")
            print("four allow epsilon 0.2 (strict: much noise), four allow 1, two allow 5 (loose: little noise).")
            print("Which recipe makes the most of it? Six are compared, with the same clients and budgets:")
            print("\n".join(f"  {name:11} {_short(SUMMARIES[name])}" for name in DEMO_RECIPES.split(",")))
        _compare(path, DEMO_RECIPES, 3 if seeds is None else seeds, out or _fresh("demo"), (), False, None, as_json)


@app.command()
def run(
    file: File,
    out: Out = None,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    ledgers: Annotated[
        Path | None,
        typer.Option(
            help="Directory of persistent ledger files: budgets apply across runs, and noise is secure by default."
        ),
    ] = None,
    engine: Engine = None,
    address: Address = None,
    track: Track = None,
    live: Live = False,
    port: Port = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one training run."""
    from hush.config import config_hash
    from hush.simulation import Simulation
    from hush.terminal import Announcement, show_run

    simulation = Simulation.from_toml(file, settings=sets or (), data_dir=data, **engine_arguments(engine, address))
    label = f"{file.stem}-{config_hash(simulation.config)[:8]}"
    path = out or (_latest(label) if resume else _fresh(label))
    with _interruptible(), live_page(path, live, port):
        done = simulation.fit(
            path, resume=resume, callbacks=() if as_json else Announcement(), progress=False if as_json else None,
            ledgers=ledgers, track=track, command=_command(),
        )  # fmt: skip
    if as_json:
        _print_result(done.run)
    else:
        show_run(done.run, path)
    if done.run.stopped:
        raise _StoppedError(f"{done.run.ended}; continue with --resume")


@app.command()
def compare(
    file: File,
    recipes: Annotated[str, typer.Option(help="Recipe names, separated by commas.")],
    seeds: Annotated[int, typer.Option(help="Number of seeds to average over, starting from the config's seed.")] = 1,
    out: Out = None,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    engine: Engine = None,
    address: Address = None,
    track: Track = None,
    live: Live = False,
    port: Port = None,
    as_json: AsJson = False,
) -> None:
    """Compare several recipes on the same clients, in one table and one report."""
    label = f"compare-{file.stem}"
    path = out or (_latest(label) if resume else _fresh(label))
    with live_page(path, live, port, several=True):
        arguments = engine_arguments(engine, address)
        _compare(file, recipes, seeds, path, sets or (), resume, data, as_json, track, **arguments)


@app.command()
def sweep(
    file: File,
    grid: Annotated[list[str], typer.Option(metavar="KEY=V1,V2", help="Values to try; can be repeated.")],
    within_budget: Annotated[
        bool,
        typer.Option(
            "--within-budget",
            help="Keep each client's budget over all combinations and the noised evaluations that choose among them.",
        ),
    ] = False,
    ledgers: Annotated[
        Path | None, typer.Option(help="Directory of persistent ledger files, with --within-budget.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds to average over, starting from the config's seed.")] = 1,
    out: Out = None,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    engine: Engine = None,
    address: Address = None,
    track: Track = None,
    live: Live = False,
    port: Port = None,
    as_json: AsJson = False,
) -> None:
    """Run every combination of settings together, with one table and one report."""
    from hush.simulation import Simulation

    label = f"sweep-{file.stem}"
    path = out or (_latest(label) if resume else _fresh(label))
    simulation = Simulation.from_toml(file, settings=sets or (), data_dir=data, **engine_arguments(engine, address))
    with live_page(path, live, port, several=True):
        work = partial(simulation.sweep, grid, track=track, within_budget=within_budget, ledgers=ledgers)
        _side_by_side(work, seeds, path, resume, as_json)


@app.command()
def plan(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.toml]", help="Config file: plan every client.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="One client's budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="Its delta.")] = None,
    samples: Annotated[int | None, typer.Option(help="Number of training samples of the client.")] = None,
    batch: Annotated[int | None, typer.Option(help="Expected batch size.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds the client takes part in.")] = None,
    epochs: Annotated[int, typer.Option(help="Local epochs per round.")] = 1,
    accountant: Annotated[str, typer.Option(help="pld, rdp, or rdp-64 (Robust-HDP's).")] = "pld",
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    noise: Annotated[float | None, typer.Option(help="Report the cost of this noise multiplier.")] = None,
    sets: Sets = None,
    data: Data = None,
    plot: Annotated[Path | None, typer.Option(help="Write an HTML page with a plot.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the noise for a budget, for one client from options or for every client of a config."""
    from hush import api
    from hush.terminal import show_plan, show_preview

    given = {"--epsilon": epsilon, "--delta": delta, "--samples": samples, "--batch": batch, "--rounds": rounds}
    if file is not None:
        if extra := [name for name, value in given.items() if value is not None]:
            raise HushError(
                f"{', '.join(extra)}: cannot be combined with {file}, which defines these values; use --set"
            )
        found = api.preview(file, overrides=sets or (), data=data, plot=plot)
        print(json.dumps(found, indent=2)) if as_json else show_preview(found)
        return
    if missing := [name for name, value in given.items() if value is None]:
        raise HushError(f"plan: missing {', '.join(missing)}; pass these options, or a FILE.toml")
    answer = api.plan(
        epsilon=epsilon or 0.0, delta=delta or 0.0, samples=samples or 0, batch=batch or 0, rounds=rounds or 0,
        epochs=epochs, noise_multiplier=noise, plot=plot,
        accountant=_choice("--accountant", accountant, "pld", "rdp", "rdp-64"),
        relation=_choice("--relation", relation, "add-remove", "replace-one"),
    )  # fmt: skip
    print(json.dumps(answer, indent=2)) if as_json else show_plan(answer)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List recipes, slots, models, tasks, losses, metrics, datasets, partitions and budgets."""
    from hush.names import catalogue
    from hush.terminal import show_catalogue

    found = catalogue()
    print(json.dumps(found, indent=2)) if as_json else show_catalogue(found)


def _known_words(incomplete: str) -> list[str]:
    """Return the words that begin so, for the shell's completion."""
    from hush.explain import everything

    return sorted({each.word for each in everything() if each.word.startswith(incomplete)})


@app.command()
def explain(
    word: Annotated[
        str,
        typer.Argument(
            metavar="WORD", help="A recipe, a config key, a name of hush list, or a term.", autocompletion=_known_words
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Explain a recipe, an option, a config key, a name of hush list, or a term of the glossary."""
    from dataclasses import asdict

    from hush.explain import explain as meanings
    from hush.terminal import show_explanations

    found = [asdict(each) for each in meanings(word)]
    print(json.dumps(found, indent=2)) if as_json else show_explanations(found)


@app.command()
def report(directory: Annotated[Path, typer.Argument(metavar="DIR", help="Run or comparison directory.")]) -> None:
    """Write the HTML report of a run or comparison directory again."""
    from hush.report import write

    print(printable(write(directory), _LONGEST))


@app.command()
def watch(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A run, comparison, sweep, reproduction or federation directory."),
    ],
    port: Port = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Follow a run in the browser while it goes on, on this machine alone. Ctrl-C ends the page, not the run."""
    from hush.live import serve, source_of

    if not directory.exists():
        say(f"{directory}: not there yet; the page waits for it")

    def opened(address: str) -> None:
        say(f"Live page: {address}")
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(source_of(directory), port=port, opened=opened)


@app.command()
def measure(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a finished run.")],
    data: Data = None,
    bound: Annotated[
        bool, typer.Option("--bound", help="With the convergence bound of the recipe's paper (logistic regression).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute the metrics of the papers: loss gap, gradient dissimilarity, fairness. Not private; simulations only."""
    from hush import api
    from hush.server.run_directory import to_json
    from hush.terminal import show_measures

    found = api.measure(directory, data=data, bound=bound)
    sys.stdout.write(to_json(found).decode()) if as_json else show_measures(found)


@app.command()
def bench(
    suite: Annotated[
        list[str] | None,
        typer.Option(help="cpu, gpu, server, plan, isolation, scale, memory, federation or ray; can be repeated."),
    ] = None,
    part: Annotated[list[str] | None, typer.Option(help="A part of the suite, such as ray has; repeatable.")] = None,
    into: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add the figures to those of an earlier --json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Benchmark Hush against other libraries."""
    from hush.bench import run
    from hush.bench.findings import add_to
    from hush.progress import task_progress
    from hush.terminal import show_bench

    with task_progress("measuring", "suites", False if as_json else None) as update:
        found = run(suite or (), lambda name, done, of: update(done, of, f"measuring {name}"), part or ())
    if into is not None:
        add_to(into, found)
    print(json.dumps(found, indent=2)) if as_json else show_bench(found)


def _short(words: str) -> str:
    """Words on lines of a table whose first column takes 14 characters."""
    lines = textwrap.wrap(words, max(shutil.get_terminal_size().columns - 15, 40))
    return f"\n{' ' * 14}".join(lines)


def _compare(
    file: Path, recipes: str, seeds: int, out: Path, sets: Any, resume: bool, data: str | None, as_json: bool,
    track: list[str] | None = None,
    **engine: str,
) -> None:  # fmt: skip
    from hush.simulation import Simulation

    names = [name.strip() for name in recipes.split(",") if name.strip()]
    simulation = Simulation.from_toml(file, settings=sets, data_dir=data, **engine)
    _side_by_side(partial(simulation.compare, names, track=track), seeds, out, resume, as_json)


def _side_by_side(work: Callable[..., Table], seeds: int, out: Path, resume: bool, as_json: bool) -> None:
    from hush.server.run_directory import to_json
    from hush.terminal import show_comparison

    with _interruptible():
        found = work(seeds=seeds, out=out, resume=resume, progress=False if as_json else None, command=_command())
    if as_json:
        sys.stdout.write(to_json(found.facts).decode())
    elif "tuning" in found.facts:
        print(found)
        print(f"Report: {printable(out / 'report.html', _LONGEST)}")
    else:
        show_comparison(found.facts, out)


class _StoppedError(click.ClickException):
    """Ctrl-C stopped a run; an exception of the command line's, since typer ends a command at a KeyboardInterrupt."""


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except RunInterrupted as stopped:
        raise _StoppedError(stopped.words("--resume")) from None


def _print_result(result: RunResult) -> None:
    from hush.server.run_directory import to_json

    sys.stdout.write(to_json(result).decode())


def _command() -> str:
    return shlex.join(["hush", *sys.argv[1:]])


def _fresh(label: str) -> Path:
    """Return the first of runs/label, runs/label-2, ... that does not exist."""
    path, number = Path("runs") / label, 2
    while path.exists():
        path, number = Path("runs") / f"{label}-{number}", number + 1
    return path


def _latest(label: str) -> Path:
    """Return the newest run that `_fresh` created for this label."""
    made = [Path("runs") / label, *Path("runs").glob(f"{label}-[0-9]*")]
    existing = [path for path in made if path.exists()]
    if not existing:
        raise HushError(f"runs/{label}: nothing to resume; start without --resume, or pass the directory with --out")
    return max(existing, key=lambda path: path.stat().st_mtime)


def _choice(option: str, value: str, *accepted: str) -> Any:
    if value not in accepted:
        raise HushError(f"{option}: found {value!r}; accepted: {', '.join(accepted)}")
    return value


def main() -> None:
    """Run a command; a user error prints one line and exits with status 2."""
    try:
        status = app(prog_name="hush", standalone_mode=False)
    except NoArgsIsHelpError as asked:
        print(asked.ctx.get_help() if asked.ctx is not None else asked.format_message())
        status = 0
    except _StoppedError as stopped:
        print(f"hush: {stopped.message}", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except (HushError, click.ClickException) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        print(f"hush: error: {printable(' '.join(text.split()), _LONGEST)}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print(
            "hush: error: out of memory; use less data or a smaller model",
            file=sys.stderr,
        )
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        status = _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    if status == _INTERRUPTED:
        print("hush: interrupted; resume the run with --resume", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else 0)
