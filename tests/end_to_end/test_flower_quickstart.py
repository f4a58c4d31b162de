"""The quickstart in Flower's own two modes: between SuperLink and SuperNodes as real processes, and in its simulation.

The simulation needs Ray, which is not installed by default: without it that test is skipped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hush
from hush.privacy.ledger import totals
from hush.privacy.ledger.ledger import inspect
from tests.support.paths import ROOT

pytestmark = pytest.mark.soak
pytest.importorskip("flwr")

_APP = ROOT / "examples" / "flower_quickstart"
_EPSILON = (2.0, 8.0)
_WAIT = 60.0


def _environment(path: Path) -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    home = path / "home"
    home.mkdir(exist_ok=True)
    scripts = sysconfig.get_path("scripts")
    paths = {"FLWR_HOME": str(home), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    return {
        **os.environ,
        **quiet,
        **paths,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def _running(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=log.parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_WAIT)


def _wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + _WAIT
    while words not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise AssertionError(f"no {words!r} in {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)


def _ran(path: Path, out: str, environment: dict[str, str]) -> str:
    config = f"ledgers='{path / 'ledgers'}' out='{path / out}'"
    command = ["flwr", "run", str(path / "app"), "tested", "--stream", "--run-config", config]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=400, env=environment, cwd=path, check=True
    ).stdout


def _check_ledgers(path: Path) -> None:
    for client, epsilon in enumerate(_EPSILON):
        book = inspect(path / "ledgers" / f"client-{client}.ledger")[1]
        planned = hush.plan(epsilon=epsilon, delta=1e-5, samples=750, batch=64, rounds=3)
        assert len(book.charges) == 3
        assert totals.epsilon(book.totals, book.terms.policy, book.terms.accountant) == planned["epsilon"]


def test_three_rounds_between_superlink_and_supernodes_and_a_second_run_is_refused(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    with contextlib.ExitStack() as running:
        address = running.enter_context(_superlink(tmp_path, environment))
        for client in range(len(_EPSILON)):
            node = tmp_path / f"supernode-{client}.log"
            command = ["flower-supernode", "--insecure", "--superlink", address, "--port", str(_free_port())]
            facts = f"partition-id={client} num-partitions={len(_EPSILON)}"
            running.enter_context(_running([*command, "--node-config", facts], node, environment))
            _wait_for(node, "SuperNode ID")
        _check_two_runs(tmp_path, environment)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Flower's simulation needs Ray: flwr[simulation]")
def test_three_rounds_in_the_simulation_and_a_second_run_is_refused(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    with _superlink(tmp_path, environment, "--simulation"):
        _check_two_runs(tmp_path, environment)


@contextlib.contextmanager
def _superlink(path: Path, environment: dict[str, str], *more: str) -> Iterator[str]:
    port = _free_port()
    address = f"127.0.0.1:{port}"
    shutil.copytree(_APP, path / "app")
    (path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "tested"\n[superlink.tested]\naddress = "{address}"\ninsecure = true\n'
    )
    link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port), *more]
    log = path / "superlink.log"
    with _running([*link, "--disable-runtime-dependency-installation"], log, environment):
        _wait_for(log, "Uvicorn running")
        yield address


def _check_two_runs(path: Path, environment: dict[str, str]) -> None:
    """Three rounds that spend what the plan says, and a second run in which every reply is a refusal."""
    printed = _ran(path, "first.json", environment)
    assert "Strategy execution finished" in printed, printed[-3000:]
    accuracy = json.loads((path / "first.json").read_text())
    assert accuracy["3"] > accuracy["0"] + 0.2
    _check_ledgers(path)
    again = _ran(path, "second.json", environment)
    assert again.count("budget spent: the client's ledger does not cover this round") == 3 * len(_EPSILON)
    _check_ledgers(path)
