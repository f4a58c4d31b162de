"""A run that is killed with no warning goes on where it was, with the same numbers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import Child, ForkServer

FILE = """\
seed = 3
rounds = 12
[data]
name = "synthetic"
clients = 8
samples = 200
[model]
name = "mlp"
hidden = 16
[privacy]
budgets = "dist2"
[local]
batch_size = [16, 32]
[recipe]
name = "robust-hdp"
step = { rule = "momentum", beta = 0.5 }
"""


def start(fork_server: ForkServer, here: Path, out: str, *more: str) -> Child:
    number = len(fork_server.children)
    return fork_server.start(["run", "run.toml", "--out", out, *more], here / f"{number}.log", cwd=here)


def rounds(here: Path, out: str) -> int:
    path = here / out / "rounds.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def kill_after(fork_server: ForkServer, here: Path, lines: int, delay: float, *more: str) -> None:
    process = start(fork_server, here, "cut", *more)
    deadline = time.monotonic() + 120
    while rounds(here, "cut") < lines and process.alive() and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()


def numbers(here: Path, out: str) -> dict[str, Any]:
    result = json.loads((here / out / "result.json").read_text())
    result.pop("seconds")
    return dict(result)


def finish(process: Child) -> None:
    assert process.status(200) == 0, process.said()


def outcome(here: Path, out: str) -> tuple[dict[str, Any], bytes, int]:
    return numbers(here, out), (here / out / "model.safetensors").read_bytes(), rounds(here, out)


def run_whole_and_cut(parent: ForkServer, here: Path, kills: list[tuple[int, float]]) -> None:
    """The same run twice at the same time, one of them killed and resumed."""
    (here / "run.toml").write_text(FILE)
    with parent.tidy() as fork_server:
        whole = start(fork_server, here, "whole")
        for number, (lines, delay) in enumerate(kills):
            kill_after(fork_server, here, lines, delay, *(["--resume"] if number else []))
        finish(start(fork_server, here, "cut", "--resume"))
        finish(whole)


def test_killed_twice(tmp_path: Path, parent: ForkServer) -> None:
    run_whole_and_cut(parent, tmp_path, [(2, 0.0), (7, 0.004)])
    assert rounds(tmp_path, "whole") == 12
    assert outcome(tmp_path, "cut") == outcome(tmp_path, "whole")


@pytest.mark.soak
def test_killed_at_every_round(tmp_path: Path, parent: ForkServer) -> None:
    run_whole_and_cut(parent, tmp_path, [(n, 0.002 * (n % 5)) for n in range(1, 12)])
    assert rounds(tmp_path, "whole") == 12
    assert outcome(tmp_path, "cut") == outcome(tmp_path, "whole")
