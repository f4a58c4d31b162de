"""Privacy commands: inspect a ledger, and audit the claimed epsilon of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hush.text import printable
from hush.types import HushError

_LONGEST = 4000
ledger_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Inspect a client's privacy ledger.")
LedgerFile = Annotated[Path, typer.Argument(metavar="FILE", help="The ledger.")]


@ledger_app.command()
def show(file: LedgerFile, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the client, the epsilon spent and remaining, and verify the hash chain."""
    from hush.privacy.ledger.statement import describe
    from hush.terminal import show_ledger

    found = describe(file)
    print(json.dumps(found, indent=2)) if as_json else show_ledger(found)
    if not found["chain_ok"]:
        raise HushError(str(found["fault"]))


@ledger_app.command()
def verify(file: LedgerFile) -> None:
    """Verify every entry and every hash."""
    from hush.privacy.ledger.statement import verify

    print(printable(f"{file}: {verify(file)} entries, hash chain verified", _LONGEST))


@ledger_app.command()
def export(file: LedgerFile) -> None:
    """Print every entry as a line of JSON."""
    from hush.privacy.ledger.statement import export

    for row in export(file):
        sys.stdout.write(json.dumps(row) + "\n")


@ledger_app.command()
def check(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A ledger, or the directory of a finished run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recompute every figure of a ledger, or of the cards of a run, with dp-accounting alone; status 1 if one differs.

    An auditor can do the same without Hush: src/hush/privacy/ledger_check.py is one file that needs dp-accounting only.
    """
    from dataclasses import asdict

    from hush.privacy.ledger.statement import check
    from hush.privacy.ledger_check import report
    from hush.server.run_directory import to_json

    found = check(path)
    if as_json:
        sys.stdout.write(to_json([{**asdict(each), "agrees": each.agrees} for each in found]).decode())
    else:
        print("\n".join(printable(line, _LONGEST) for line in report(found)))
    if not all(each.agrees for each in found):
        raise typer.Exit(1)


@ledger_app.command()
def adopt(file: LedgerFile) -> None:
    """Accept a ledger that was moved to this machine as the latest copy. The adoption is recorded in the ledger."""
    from hush.privacy.ledger.statement import adopt

    adopt(file)
    print(printable(f"{file}: adopted; it is now registered with the witness of this machine", _LONGEST))


@ledger_app.command()
def retire(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The former path of the ledger, or its directory.")],
) -> None:
    """Free the path of a deleted ledger. Only if the rows it covered will never be used again."""
    from hush.privacy.ledger.statement import retire

    for place in retire(path):
        print(printable(f"{place}: retired; a new ledger at this path will record that it replaces this one", _LONGEST))


def attack(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The config of the run.")],
    epsilon: Annotated[str, typer.Option(help="Budgets for all clients, in turn; inf is without privacy.")] = "inf,8,1",
    shadows: Annotated[int, typer.Option(help="Number of shadow runs at each budget.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the runs and of who is left out.")] = 0,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key.")] = None,
    data: Annotated[str | None, typer.Option(help="Directory with the public dataset files (or HUSH_DATA).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON to standard output.")] = False,
) -> None:
    """Infer membership (LiRA) from the final model, with and without privacy: what a budget buys."""
    from hush import Simulation

    try:
        epsilons = [float(each) for each in epsilon.split(",")]
    except ValueError:
        raise HushError(f"--epsilon: found {epsilon!r:.80}; accepted: numbers or inf, such as inf,8,1") from None
    simulation = Simulation.from_toml(file, settings=sets or (), data_dir=data)
    found = simulation.attack(epsilons, shadows=shadows, seed=seed)
    if as_json:
        # JSON has no infinity.
        print(json.dumps([{**each, "epsilon": f"{each['epsilon']:g}"} for each in found.facts["attacks"]], indent=2))
    else:
        print(found)


def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The config of the run.")],
    client: Annotated[
        int | None, typer.Option(help="The client to audit; default: the one with the largest budget.")
    ] = None,
    kind: Annotated[str, typer.Option(help="auto, one-run or two-datasets.")] = "auto",
    canaries: Annotated[int | None, typer.Option(help="Number of canaries of a one-run audit.")] = None,
    runs: Annotated[
        int | None, typer.Option(help="Number of training runs; default: what fits into about a minute.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence level, such as 0.95 or 0.999.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the audit.")] = 0,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key.")] = None,
    data: Annotated[str | None, typer.Option(help="Directory with the public dataset files (or HUSH_DATA).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON to standard output.")] = False,
) -> None:
    """Audit a run as configured: an empirical lower bound on epsilon, compared with the claimed epsilon."""
    from hush import api
    from hush.terminal import show_audit

    found = api.audit(
        file, client=client, kind=kind, canaries=canaries, runs=runs, confidence=confidence, seed=seed,
        overrides=sets or (), data=data, progress=False if as_json else None,
    )  # fmt: skip
    print(json.dumps(found, indent=2)) if as_json else show_audit(found)
