"""`hush reproduce`: reproduce tables and figures of the papers."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from hush.cli.engine import Address, Engine, engine_arguments
from hush.cli.live import live_page
from hush.types import HushError


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[ENTRY]", help="Entry to reproduce, such as robust-hdp/table-12.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all entries.")] = False,
    cells: Annotated[
        str, typer.Option(help="Only these cells, such as robust-hdp:dist6,hush: (an empty part selects all).")
    ] = "",
    seeds: Annotated[int | None, typer.Option(help="Number of seeds to average over.")] = None,
    first_seed: Annotated[int | None, typer.Option(help="The first seed; default: the entry's, mostly 0.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds, instead of the paper's.")] = None,
    mode: Annotated[str | None, typer.Option(help="faithful (the paper's setup) or sound.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    engine: Engine = None,
    address: Address = None,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The output directory; default: a new one under runs/reproduce.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Directory with the public dataset files (or HUSH_DATA).")] = None,
    kept: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Fill the cells from a table that has the same runs, without running."
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Show a live page in the browser, on this machine.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON to standard output.")] = False,
) -> None:
    """Reproduce a table or figure of a paper, cell by cell. An interrupted reproduction resumes when run again."""
    from hush import reproduce as table
    from hush.progress import progress_bar, round_words
    from hush.server.run_directory import to_json
    from hush.terminal import show_entries, show_reproduction

    if list_ or name is None:
        if name is not None:
            raise HushError("--list: cannot be combined with an entry")
        found = [table.entry(each) for each in table.entries()]
        listed = [{"entry": e.name, "title": e.title, "seeds": e.seeds, "modes": list(e.modes),
                   "cells": [cell.name for cell in e.cells]} for e in found]  # fmt: skip
        print(json.dumps(listed, indent=2)) if as_json else show_entries(listed)
        return
    given = engine_arguments(engine, address)
    chosen = [cell.strip() for cell in cells.split(",") if cell.strip()]
    places = [f'engine.{"name" if key == "engine" else key}="{value}"' for key, value in given.items()]
    what = table.make_request(name, chosen, seeds, rounds, mode, device, sets or (), places, first_seed)
    path = out or Path("runs") / "reproduce" / what.label()
    said = shlex.join(["hush", *sys.argv[1:]])
    if kept is not None:
        content = table.repeated(what, kept, path, said)
        sys.stdout.write(to_json(content).decode()) if as_json else show_reproduction(content, path)
        return
    with live_page(path, live, several=True), progress_bar(what.rounds, False if as_json else None) as bar:
        content = table.reproduce(
            what, path, data, said,
            lambda cell, seed, record: bar.advance(None, round_words(record, f"{cell}, seed {seed}")),
        )  # fmt: skip
    if as_json:
        sys.stdout.write(to_json(content).decode())
    else:
        show_reproduction(content, path)
