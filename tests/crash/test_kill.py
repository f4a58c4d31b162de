"""A run that is killed with no warning goes on where it was, with the same numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

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


def start(here: Path, out: str, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from hush.cli.main import main; main()", "run", "run.toml", "--out", out, *more]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=here, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def rounds(here: Path, out: str) -> int:
    path = here / out / "rounds.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def kill_after(here: Path, out: str, lines: int, delay: float, *more: str) -> None:
    process = start(here, out, *more)
    deadline = time.monotonic() + 120
    while rounds(here, out) < lines and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def numbers(here: Path, out: str) -> dict[str, Any]:
    result = json.loads((here / out / "result.json").read_text())
    result.pop("seconds")
    return dict(result)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors


def outcome(here: Path, out: str) -> tuple[dict[str, Any], bytes, int]:
    return numbers(here, out), (here / out / "model.safetensors").read_bytes(), rounds(here, out)


def run_whole_and_cut(here: Path, kills: list[tuple[int, float]]) -> None:
    """The same run twice at the same time, one of them killed and resumed."""
    (here / "run.toml").write_text(FILE)
    whole = start(here, "whole")
    for number, (lines, delay) in enumerate(kills):
        kill_after(here, "cut", lines, delay, *(["--resume"] if number else []))
    finish(start(here, "cut", "--resume"))
    finish(whole)


def test_killed_twice(tmp_path: Path) -> None:
    run_whole_and_cut(tmp_path, [(2, 0.0), (7, 0.004)])
    assert rounds(tmp_path, "whole") == 12
    assert outcome(tmp_path, "cut") == outcome(tmp_path, "whole")


@pytest.mark.soak
def test_killed_at_every_round(tmp_path: Path) -> None:
    run_whole_and_cut(tmp_path, [(n, 0.002 * (n % 5)) for n in range(1, 12)])
    assert rounds(tmp_path, "whole") == 12
    assert outcome(tmp_path, "cut") == outcome(tmp_path, "whole")
