"""The commands of a privacy officer: look into a ledger, and attack a run's own claim."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hush.types import HushError

ledger_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look into a client's privacy ledger.")
LedgerFile = Annotated[Path, typer.Argument(metavar="FILE", help="The ledger.")]


@ledger_app.command()
def show(file: LedgerFile, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say whose it is, what is spent and left, and whether its chain is whole."""
    from hush.privacy.ledger.statement import describe
    from hush.terminal import show_ledger

    found = describe(file)
    print(json.dumps(found, indent=2)) if as_json else show_ledger(found)
    if not found["chain_ok"]:
        raise HushError(str(found["fault"]))


@ledger_app.command()
def verify(file: LedgerFile) -> None:
    """Check every row and every hash."""
    from hush.privacy.ledger.statement import verify

    print(f"{file}: {verify(file)} rows, chain whole")


@ledger_app.command()
def export(file: LedgerFile) -> None:
    """Print every row as a line of JSON."""
    from hush.privacy.ledger.statement import export

    for row in export(file):
        sys.stdout.write(json.dumps(row) + "\n")


def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The run's config.")],
    client: Annotated[int | None, typer.Option(help="By default the one with the largest budget.")] = None,
    kind: Annotated[str, typer.Option(help="auto, one-run or two-datasets.")] = "auto",
    canaries: Annotated[int | None, typer.Option(help="Planted rows of a one-run audit.")] = None,
    runs: Annotated[int | None, typer.Option(help="Trainings; by default what fits into about a minute.")] = None,
    confidence: Annotated[float, typer.Option(help="Such as 0.95 or 0.999.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the audit itself.")] = 0,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key.")] = None,
    data: Annotated[str | None, typer.Option(help="Directory with the public dataset files (or HUSH_DATA).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")] = False,
) -> None:
    """Attack the run as configured: a lower bound on epsilon, beside the epsilon that is claimed."""
    from hush import api
    from hush.terminal import show_audit

    found = api.audit(
        file, client=client, kind=kind, canaries=canaries, runs=runs, confidence=confidence, seed=seed,
        overrides=sets or (), data=data,
    )  # fmt: skip
    print(json.dumps(found, indent=2)) if as_json else show_audit(found)
