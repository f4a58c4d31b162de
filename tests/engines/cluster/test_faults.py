"""Random kills on a cluster of three nodes: workers, a node and the driver. The run ends as if nothing had happened,
and every ledger file has the charges of a run in which nothing did. Two of the nodes join when it is under way.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hush.bench.turns import descendants
from hush.engines.cluster.ray_workers import library
from hush.privacy.ledger.ledger import inspect
from hush.seeds import rng
from hush.server.run_directory import RESULT, saved_round

pytestmark = pytest.mark.soak
KILLS, ROUNDS, LIMIT = 20, 60, 1500
CONFIG = f"""
seed = 4
rounds = {ROUNDS}
[data]
name = "digits"
clients = 9
[model]
name = "mlp"
hidden = 300
[privacy]
budgets = [0.5, 0.6, 0.6, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]
delta = 1e-4
noise = "seeded"
[local]
batch_size = 16
lr = 0.1
steps = 25
[recipe]
name = "hush"
[engine]
block = 2
"""


class Kill:
    """Kills something of a running cluster at random."""

    def __init__(self, cluster: Any, out: Path) -> None:
        self.cluster, self.out, self.random = cluster, out, rng(0, "kills")
        self.nodes: list[Any] = []
        self.driver = self._start()
        self.done: list[str] = []

    def _start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-c",
            "from hush.cli.main import main; main()",
            "run",
            str(self.out.parent / "run.toml"),
            "--resume",
            "--out",
        ]
        place = [str(self.out), "--ledgers", str(ledgers_of(self.out)), "--address", self.cluster.address]
        with (self.out.parent / "driver.log").open("ab") as log:
            return subprocess.Popen([*command, *place], stdout=log, stderr=log, start_new_session=True)

    def join(self) -> None:
        """Have two more nodes join, and wait until workers on them take part in the run."""
        self.wait(lambda: saved_round(self.out) >= 2 and len(worker_processes()) == 1)
        self.nodes += [self.cluster.add_node(num_cpus=1) for _ in range(2)]
        self.wait(lambda: len(worker_processes()) == 3)

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until something is so, while the driver runs."""
        ends = time.monotonic() + LIMIT
        while not until():
            assert self.driver.poll() is None and time.monotonic() < ends
            time.sleep(0.05)

    def one(self, kind: str) -> None:
        """Kill a worker, the last node (another joins), or the driver (which is started again)."""
        time.sleep(self.random.uniform(0, 0.3))
        if kind == "worker":
            workers = worker_processes()
            if not workers:
                return
            os.kill(int(self.random.choice(workers)), signal.SIGKILL)
        elif kind == "node":
            self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)
            self.nodes.append(self.cluster.add_node(num_cpus=1))
        else:
            self.driver.kill()
            self.driver.wait()
            self.driver = self._start()
        self.done.append(kind)


def worker_processes() -> list[int]:
    """The processes of Hush's workers on the nodes that this process has started, by Ray's title."""
    found = []
    for number in descendants(os.getpid()):
        try:
            if Path(f"/proc/{number}/cmdline").read_bytes().startswith(b"ray::Worker"):
                found.append(number)
        except OSError:
            continue
    return found


def ledgers_of(out: Path) -> Path:
    """The directory of the ledger files of a run."""
    return out.with_name(f"{out.name}-ledgers")


def charges(out: Path) -> dict[str, list[tuple[str, int, int, str]]]:
    """What each ledger file says of rounds: what happened, in which round and attempt, and its details."""
    return {
        path.name: [(row.kind, row.round, row.attempt, row.detail) for row in inspect(path)[0] if row.round]
        for path in sorted(ledgers_of(out).glob("*.ledger"))
    }


def content(out: Path) -> tuple[dict[str, np.ndarray], list[Any], list[Any]]:
    """The released model, the guarantees, and who was charged in each round."""
    result = json.loads((out / RESULT).read_bytes())
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_bytes().splitlines()]
    return load_file(out / "model.safetensors"), result["guarantees"], [line["charged"] for line in lines]


def test_twenty_random_kills_change_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    library()
    (tmp_path / "run.toml").write_text(CONFIG)
    command = [
        sys.executable,
        "-c",
        "from hush.cli.main import main; main()",
        "run",
        str(tmp_path / "run.toml"),
        "--out",
        str(tmp_path / "calm"),
        "--ledgers",
        str(ledgers_of(tmp_path / "calm")),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)

    cluster: Any = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 4},
        },
    )
    kill = Kill(cluster, tmp_path / "stormy")
    began = time.monotonic()
    try:
        kill.join()
        # One node and three drivers among them; the others are workers.
        kinds = ["node", "driver", "driver", "driver"] + ["worker"] * (KILLS - 4)
        order = [kinds[i] for i in kill.random.permutation(KILLS)]
        while kill.driver.poll() is None and time.monotonic() - began < LIMIT:
            due = KILLS * saved_round(tmp_path / "stormy") / (ROUNDS - 5) if (tmp_path / "stormy").exists() else 0
            if len(kill.done) < min(KILLS, due):
                kill.one(order[len(kill.done)])
            time.sleep(0.05)
        assert kill.driver.poll() == 0, (tmp_path / "driver.log").read_text()[-2000:]
    finally:
        kill.driver.kill()
        cluster.shutdown()
    assert len(kill.done) == KILLS, kill.done
    calm, stormy = content(tmp_path / "calm"), content(tmp_path / "stormy")
    assert calm[0].keys() == stormy[0].keys()
    assert all(np.array_equal(calm[0][name], stormy[0][name]) for name in calm[0])
    assert calm[1] == stormy[1] and calm[2] == stormy[2]
    # The driver that seals answers, and the one that seals orders, made the same charges, once each.
    asked, charged = (
        {name: rows(each) for name, each in charges(tmp_path / run).items()} for run in ("calm", "stormy")
    )
    assert len(asked) == 9 and asked == charged


def rows(entries: list[tuple[str, int, int, str]]) -> list[tuple[str, int, int, str]]:
    """The charges among the entries of a ledger; every one of them was sent."""
    made = [entry for entry in entries if entry[0] == "RESERVED"]
    assert sorted(entry[1:3] for entry in made) == sorted(entry[1:3] for entry in entries if entry[0] == "SENT")
    assert all(attempt == 1 for _, _, attempt, _ in made)
    return made
