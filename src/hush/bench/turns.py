"""Turns: simulations take turns, a round each in one process, so that other load on a machine slows down all alike."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hush.config import parse
from hush.data import from_arrays
from hush.engines import simulator
from hush.engines.cluster.ray_workers import library, send_notices_to_log
from hush.engines.setup import prepare
from hush.seeds import rng
from hush.types import HushError

_TEST = 0.05


class Spent(NamedTuple):
    """What a round took, in seconds.

    `seconds` is by the clock, the others are processor time: `busy` of all processes, `own` of this one, and `path` of
    this one and of the busiest other, which is how long the round would take on cores that nothing else uses.
    """

    seconds: float
    busy: float
    own: float
    path: float


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A simulation of W1's clients: how many, of how many samples, and where."""

    clients: int
    samples: int
    rounds: int
    engine: str = "process"
    workers: int = 2
    block: int | None = None
    model: str = "cnn"
    shape: tuple[int, ...] = (1, 28, 28)

    def run(self, after: Callable[[object], None]) -> None:
        """Run it, and call a function after each round."""
        generator = rng(0, "bench", "ray")
        total = int(np.ceil(self.clients * np.ceil(self.samples / (1 - _TEST))))
        data = from_arrays(
            generator.standard_normal((total, *self.shape), dtype=np.float32), generator.integers(0, 10, total),
            classes=10,
        )  # fmt: skip
        settings: dict[str, Any] = {"name": self.engine, "workers": self.workers}
        config: dict[str, Any] = {
            "rounds": self.rounds,
            "data": {"clients": self.clients, "partition": "iid", "test_fraction": _TEST},
            "model": {"name": self.model},
            "privacy": {"budgets": 2.0, "delta": 1e-4, "clip": 3.0},
            "local": {"batch_size": [16, 32, 64, 128] if self.samples >= 128 else 16, "lr": 0.01},
            "recipe": {"name": "dp-fedavg"},
            "engine": settings if self.block is None else {**settings, "block": self.block},
        }
        simulator.run(prepare(parse(config), dataset=data), callbacks=[after])


def alternated(runs: Mapping[str, Simulated]) -> dict[str, list[Spent]]:
    """Run simulations that take turns, a round each, and return what the rounds of each took, but for the first.

    Each has a thread of its own, of which one is not waiting, and as many arithmetic threads as it has workers.
    """
    took: dict[str, list[Spent]] = {name: [] for name in runs}
    failed: list[BaseException] = []
    order, left = list(runs), {name: each.rounds for name, each in runs.items()}
    turn = threading.Condition()
    now = [order[0]]

    def passed(name: str) -> None:
        following = [*order[order.index(name) + 1 :], *order[: order.index(name) + 1]]
        now[0] = next((each for each in following if left[each]), "")
        turn.notify_all()

    def work(name: str, run: Simulated) -> None:
        torch.set_num_threads(run.workers)
        began = [_now(run.engine)]

        def after(_: object) -> None:
            if left[name] < run.rounds:
                took[name].append(_spent(began[0], _now(run.engine)))
            left[name] -= 1
            if left[name]:
                passed(name)
                turn.wait_for(lambda: now[0] == name or failed)
                if failed:
                    raise HushError("--suite ray: another simulation failed")
            began[0] = _now(run.engine)

        with turn:
            turn.wait_for(lambda: now[0] == name or failed)
            try:
                if not failed:
                    run.run(after)
            except BaseException as error:
                failed.append(error)
            left[name] = 0
            passed(name)

    before = torch.get_num_threads()
    threads = [threading.Thread(target=work, args=each) for each in runs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(before)
    if failed:
        raise failed[0]
    return took


class StartedRay:
    """Ray with so many CPUs, for as long as the context."""

    def __init__(self, cpus: int) -> None:
        self._ray, self._cpus = library(), cpus

    def __enter__(self) -> None:
        if self._ray.is_initialized():
            raise HushError("--suite ray: Ray is connected already; accepted: a process without it")
        self._ray.init(
            address="local", num_cpus=self._cpus, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
            object_store_memory=1 << 30,
        )  # fmt: skip
        send_notices_to_log()

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()


def processor_seconds() -> float:
    """Return the processor time so far of this process and of all living ones that descend from it."""
    return time.process_time() + sum(map(_ticks, descendants(os.getpid())))


class _Now(NamedTuple):
    clock: float
    own: float
    others: Mapping[int, float]


def _now(engine: str) -> _Now:
    """Return the clock and processor time so far; on Ray, also of each process that descends from this one."""
    others = {number: _ticks(number) for number in descendants(os.getpid())} if engine == "ray" else {}
    return _Now(time.perf_counter(), time.process_time(), others)


def _spent(began: _Now, ended: _Now) -> Spent:
    own = ended.own - began.own
    others = [seconds - began.others.get(number, 0.0) for number, seconds in ended.others.items()]
    return Spent(ended.clock - began.clock, own + sum(others), own, own + max(others, default=0.0))


def descendants(of: int) -> list[int]:
    """Return the processes that descend from one."""
    parents: dict[int, list[int]] = {}
    for each in Path("/proc").glob("[0-9]*"):
        parents.setdefault(_parent(each), []).append(int(each.name))
    found, waiting = [], [of]
    while waiting:
        waiting += (children := parents.get(waiting.pop(), []))
        found += children
    return found


def _parent(process: Path) -> int:
    fields = _stat(process)
    return int(fields[1]) if fields else -1


def _ticks(number: int) -> float:
    fields = _stat(Path("/proc") / str(number))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(process: Path) -> list[str]:
    """Return the fields of a process behind its name: state, parent and so on; none if it is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
