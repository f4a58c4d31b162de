"""Run directories that grow as a live page looks at them, and a browser to look with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hush.privacy.accounting.cost import Cost
from hush.privacy.round_costs import ClientCosts, RoundCosts
from hush.server.run_directory import plain
from hush.types import Policy
from tests.support.report_runs import CLIENTS, make_run, record

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = Path("/usr/bin/chromium")
_ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
)


def begun(path: Path, rounds: int) -> Path:
    """A run that is planned for so many rounds and has done none."""
    make_run(path, records=[], finished=False)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["config"]["rounds"] = rounds
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "privacy.json").write_bytes(costs().to_json())
    return path


def costs() -> RoundCosts:
    """Four kinds of clients: two budgets, two noises."""
    each = [Cost(what="model update", kind="poisson-gaussian", noise=noise, steps=1, rate=0.1) for noise in (3.0, 4.0)]
    return RoundCosts(
        tuple(
            ClientCosts(
                policy=Policy(2.0 + client % 2, 1e-4), accountant="pld", earlier=(),
                stages=((each[client % 2],),),
            )
            for client in range(CLIENTS)
        ),
        tuple(f"clinic {client}" for client in range(CLIENTS)),
    )  # fmt: skip


def add_round(path: Path, number: int) -> None:
    """Append a round as a run does."""
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(json.dumps(plain(asdict(record(number)))).encode() + b"\n")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips the test where there is none."""
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=_ARGUMENTS.split())
        try:
            yield browser
        finally:
            browser.close()
