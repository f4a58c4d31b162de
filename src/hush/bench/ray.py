"""Ray benchmark: rounds on two workers against one process, the server's time as clients grow, and Flower's simulation.

What is compared runs in turns in the same minutes, because other load on a machine slows down both sides; the median
counts. The first round of a run, in which workers start, is left out.
"""

from __future__ import annotations

import importlib.util
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hush.bench import flower
from hush.bench.findings import Findings
from hush.bench.workloads import w1
from hush.config import parse
from hush.data import from_arrays
from hush.engines import simulator
from hush.engines.cluster.ray_workers import library
from hush.engines.row_stores import FiledRows
from hush.engines.server_rng import server_rng
from hush.engines.setup import prepare
from hush.recipes import RECIPES
from hush.recipes.context import RoundView
from hush.recipes.held_rows import HeldRows
from hush.recipes.limits import InfluenceLimits
from hush.recipes.round import Invitation, aggregate
from hush.seeds import rng
from hush.types import HeldVector, HushError, Layout, Task, Update

_TURNS, _ROUNDS = 3, 2
_SAMPLES, _TEST = 400, 0.05
_SIZES = (500, 1000, 2000)
_PARAMETERS = 1_000_000
_FLOWER_CLIENTS, _FLOWER_SAMPLES = 200, 128
_SERVER_RECIPES = ("robust-hdp", "hush", "pfa", "rc-dpfl")


def measure() -> Findings:
    """Measure what `HUSH_BENCH_RAY` names (overhead, server, flower, scaling), or all of it."""
    parts: Mapping[str, Callable[[], Findings]] = {
        "overhead": overhead, "server": server_growth, "flower": over_flower, "scaling": scaling,
    }  # fmt: skip
    chosen = os.environ.get("HUSH_BENCH_RAY", ",".join(parts)).split(",")
    found = Findings()
    for name in chosen:
        found = found | parts[name]()
    return found


def overhead() -> Findings:
    """Compare rounds like W1 on two workers with the same rounds in one process of two threads."""
    seconds: dict[str, list[float]] = {"process": [], "ray": []}
    with _Started(2):
        for _ in range(_TURNS):
            for engine in seconds:
                seconds[engine] += _round_seconds(20, _SAMPLES, engine, workers=2)
    process, ray = (statistics.median(times) for times in seconds.values())
    note = (
        f"20 clients x {_SAMPLES:,} samples of W1, {_TURNS} turns of {_ROUNDS - 1} rounds each: median {process:.1f} s "
        f"in one process of two threads, {ray:.1f} s on two workers of one thread each, evaluation included."
    )
    figures = {"ray.w1.over_process": ray / process, "ray.w1.process_seconds": process, "ray.w1.seconds": ray}
    return Findings(figures, {"ray.w1.over_process": note})


def scaling() -> Findings:
    """Measure rounds on one and two workers, of as many clients (strong) and of as many each (weak), and what calls
    and sums of updates cost.
    """
    strong: dict[int, list[float]] = {1: [], 2: []}
    weak: list[float] = []
    calls: dict[int, list[float]] = {64: [], 1: []}
    for _ in range(_TURNS):
        for workers in strong:
            with _Started(workers):
                strong[workers] += _round_seconds(16, 600, "ray", workers=workers)
        with _Started(2):
            weak += _round_seconds(32, 600, "ray", workers=2)
            for blocks in calls:
                calls[blocks] += _round_seconds(64, 20, "ray", workers=2, block=64 // blocks, model="logreg")
    one, two, more = statistics.median(strong[1]), statistics.median(strong[2]), statistics.median(weak)
    many, few = statistics.median(calls[64]), statistics.median(calls[1])
    return Findings(
        {
            "ray.strong.one_over_two_workers": one / two,
            "ray.weak.one_over_two_workers": one / more,
            "ray.block_milliseconds": 1e3 * max(0.0, many - few) / 63,
            "ray.tiny_round_seconds": few,
            "ray.one_worker_seconds": one,
            "ray.two_workers_seconds": two,
            "ray.two_workers_twice_seconds": more,
        },
        {
            "ray.strong.one_over_two_workers": "16 clients x 600 samples of W1 on one worker over the same on two; "
            f"medians {one:.2f} s and {two:.2f} s.",
            "ray.weak.one_over_two_workers": f"16 clients on one worker over 32 on two; {one:.2f} s and {more:.2f} s.",
            "ray.block_milliseconds": "64 clients of a logistic regression in 64 blocks less the same in one, a block.",
        },
    )


def over_flower() -> Findings:
    """Compare rounds of 200 clients with Flower's simulation of Opacus clients, whose backend is Ray as well."""
    work = w1(_FLOWER_CLIENTS, _FLOWER_SAMPLES)
    ours: list[float] = []
    with _Started(2):
        ours += _round_seconds(_FLOWER_CLIENTS, _FLOWER_SAMPLES, "ray", workers=2)
    found = flower.seconds(work)
    if isinstance(found, str):
        return Findings({}, {"ray.flower_opacus_over_ours": found})
    with _Started(2):
        ours += _round_seconds(_FLOWER_CLIENTS, _FLOWER_SAMPLES, "ray", workers=2)
    mine, other = statistics.mean(ours), found[0]
    rival = _installed("pfl")
    note = (
        f"{_FLOWER_CLIENTS} clients x {_FLOWER_SAMPLES} samples of W1: {other:.1f} s a round in Flower's simulation, "
        f"{mine:.1f} s on two workers, the mean of rounds before and after it, evaluation included. "
        f"pfl-research: {'installed, not measured' if rival else 'not installed, not measured'}."
    )
    figures = {
        "ray.flower_opacus_over_ours": other / mine,
        "ray.flower.seconds": other,
        "ray.flower.ours_seconds": mine,
    }
    return Findings(figures, {"ray.flower_opacus_over_ours": note})


def server_growth() -> Findings:
    """Measure the server's part of a round for more and more clients, whose updates wait in files."""
    figures: dict[str, float] = {}
    notes: dict[str, str] = {}
    with ExitStack() as resources:
        store = FiledRows(_PARAMETERS, resources)
        for block in _updates(_SIZES[-1]):
            store.add(block)
        for name in _SERVER_RECIPES:
            taken = {n: _server_seconds(name, HeldRows.of(store), n) for n in _SIZES}
            figures |= {f"ray.server.{name}.seconds_{n}": seconds for n, seconds in taken.items()}
            low, high = taken[_SIZES[0]], taken[_SIZES[-1]]
            key = f"ray.server.{name}.time_2000_over_500"
            figures[key] = high / low
            exponent = math.log(high / low) / math.log(_SIZES[-1] / _SIZES[0])
            words = ", ".join(f"{seconds:.1f} s for {n:,}" for n, seconds in taken.items())
            notes[key] = f"{words} clients of {_PARAMETERS:,} parameters: time grows as n^{exponent:.2f}."
    return Findings(figures, notes)


def _server_seconds(name: str, rows: HeldRows, clients: int) -> float:
    """Return the processor time in which a recipe aggregates the first updates of a store."""
    generator = rng(0, "bench", "ray", name)
    chosen = rows.take(torch.arange(clients))
    layout = Layout(("a", "b", "c"), ((800, 1000), (190, 1000), (10_000,)))
    # A tenth of the clients has a large budget.
    budgets = torch.from_numpy(np.where(np.arange(clients) % 10 == 0, 8.0, generator.uniform(0.1, 1.0, clients)))
    recipe = RECIPES[name]
    facts = RoundView(
        round=1,
        clients=tuple(range(clients)),
        updates=torch.zeros(clients, 0),
        samples=torch.full((clients,), 100.0, dtype=torch.float64),
        epsilon=budgets,
        planned_noise=torch.ones(clients, dtype=torch.float64),
        reach=torch.ones(clients, dtype=torch.float64),
        layout=layout,
        budgets=budgets,
        groups=torch.zeros(clients, dtype=torch.int64),
        rounds=10,
    )
    models = torch.zeros(recipe.assign.models, layout.size)
    slots = {
        "assign": recipe.assign.start(clients),
        "local": recipe.local.start(clients, layout.size),
        "protect": recipe.protect.start(1.0),
        "step": recipe.step.start(models),
    }
    began = time.process_time()
    aggregate(
        recipe, facts, Invitation(_tasks(clients, layout), dict.fromkeys(range(clients), 0), False),
        _held_updates(clients, layout), models, slots, server_rng(0, False)(1),
        limits=InfluenceLimits(), step=True, held=chosen,
    )  # fmt: skip
    return time.process_time() - began


def _tasks(clients: int, layout: Layout) -> list[Task]:
    empty = torch.empty(1, 0)
    return [Task(client=c, round=1, models=empty, layout=layout, answer=layout) for c in range(clients)]


def _held_updates(clients: int, layout: Layout) -> list[Update]:
    facts = HeldVector(layout.size, "torch.float32", 1.0)
    empty: Any = None
    return [
        Update(client=c, round=1, vector=torch.empty(0), layout=layout, receipt=empty, held=facts)
        for c in range(clients)
    ]


def _updates(clients: int) -> Any:
    """Yield updates in blocks of 16: two groups of signals, and noise over two decades."""
    generator = rng(0, "bench", "ray", "updates")
    signals = torch.from_numpy(generator.standard_normal((2, _PARAMETERS), dtype=np.float32)) * 0.01
    drawn = torch.from_numpy(generator.standard_normal(_PARAMETERS + 16 * clients, dtype=np.float32))
    scales = torch.from_numpy(10 ** generator.uniform(-2, 0, clients)).float()
    for first in range(0, clients, 16):
        rows = range(first, min(clients, first + 16))
        noise = [scales[c] * drawn[16 * c : 16 * c + _PARAMETERS] for c in rows]
        yield torch.stack([signals[c % 2] + each for c, each in zip(rows, noise, strict=True)])


def _round_seconds(
    clients: int, samples: int, engine: str, workers: int, block: int | None = None, model: str = "cnn"
) -> list[float]:
    """Return the duration of each round but the first of a simulation of W1's clients."""
    generator = rng(0, "bench", "ray")
    total = clients * math.ceil(samples / (1 - _TEST))
    data = from_arrays(
        generator.standard_normal((total, 1, 28, 28), dtype=np.float32), generator.integers(0, 10, total), classes=10
    )
    settings: dict[str, Any] = {"name": engine, "workers": workers}
    config: dict[str, Any] = {
        "rounds": _ROUNDS,
        "data": {"clients": clients, "partition": "iid", "test_fraction": _TEST},
        "model": {"name": model},
        "privacy": {"budgets": 2.0, "delta": 1e-4, "clip": 3.0},
        "local": {"batch_size": [16, 32, 64, 128] if samples >= 128 else 16, "lr": 0.01},
        "recipe": {"name": "dp-fedavg"},
        "engine": settings if block is None else {**settings, "block": block},
    }
    ended: list[float] = []
    before = torch.get_num_threads()
    torch.set_num_threads(workers)
    try:
        simulator.run(prepare(_parsed(config), dataset=data), callbacks=[lambda _: ended.append(time.perf_counter())])
    finally:
        torch.set_num_threads(before)
    return [b - a for a, b in pairwise(ended)]


def _parsed(config: Mapping[str, Any]) -> Any:
    return parse(dict(config))


class _Started:
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

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
