"""Ray benchmark: rounds on two workers against one process, the server's time as clients grow, and other simulators.

What is compared takes turns, a round each in one process, because other load on a machine slows down both sides; the
median counts, and processor time is given beside the clock. The first round of a run, in which workers start, is left
out.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hush.bench import cluster_model, flower, pfl_research
from hush.bench.findings import Findings
from hush.bench.turns import Simulated, Spent, StartedRay, alternated
from hush.bench.workloads import Workload, w1
from hush.engines.row_stores import FileRows
from hush.engines.server_rng import server_rng
from hush.recipes import RECIPES
from hush.recipes.context import RoundView
from hush.recipes.limits import InfluenceLimits
from hush.recipes.round import Invitation, aggregate
from hush.recipes.stored_rows import StoredRows
from hush.seeds import rng
from hush.types import Layout, Task, Update, VectorFacts

_W1 = Simulated(clients=20, samples=2400, rounds=5)
_STRONG = Simulated(clients=16, samples=600, rounds=4, engine="ray")
_TINY = Simulated(clients=64, samples=20, rounds=3, engine="ray", model="logreg")
_MANY = 2048  # tiny clients, for what each of them costs the driver
_SIZES = (500, 1000, 2000)
_PARAMETERS = 1_000_000
_OTHERS, _FEW = 200, (32, 128)  # clients of other simulators, and how many samples each has
_SERVER_RECIPES = ("robust-hdp", "hush", "pfa", "rc-dpfl")
_NODES = 1000


def overhead() -> Findings:
    """Compare rounds like W1 on two workers with the same rounds in one process of two threads."""
    with StartedRay(2):
        took = alternated({"process": _W1, "ray": replace(_W1, engine="ray")})
    process, ray = took["process"], took["ray"]
    ratio = statistics.median(b.seconds / a.seconds for a, b in zip(process, ray, strict=True))
    note = (
        f"{_W1.clients} clients x {_W1.samples:,} samples of W1, {len(ray)} rounds each in turn: median "
        f"{_median(process):.1f} s in one process of two threads, {_median(ray):.1f} s on two workers of one thread "
        f"each, evaluation included; the ratio is the median of those of neighbouring rounds. {_load()}"
    )
    return Findings(
        {
            "ray.w1.over_process": ratio,
            "ray.w1.busy_over_process": _median_busy(ray) / _median_busy(process),
            "ray.w1.process_seconds": _median(process),
            "ray.w1.seconds": _median(ray),
        },
        {
            "ray.w1.over_process": note,
            "ray.w1.busy_over_process": "Processor time of the driver, the workers and Ray's own processes over that "
            f"of the one process: {_median_busy(ray):.1f} s and {_median_busy(process):.1f} s a round.",
        },
    )


def scaling() -> Findings:
    """Measure rounds on one and two workers, of as many clients (strong) and of as many each (weak); fit the model of
    `cluster_model` to some of the runs, check it against the others, and ask it for a thousand nodes.
    """
    with StartedRay(10):  # a place for every worker, though only those of one run compute at a time
        took = alternated(
            {
                "one": replace(_STRONG, workers=1),
                "two": replace(_STRONG, workers=2),
                "twice": replace(_STRONG, workers=2, clients=2 * _STRONG.clients),
                "blocks": replace(_TINY, workers=2, block=1),
                "block": replace(_TINY, workers=2, block=_TINY.clients),
                "many": replace(_TINY, workers=2, clients=_MANY),
            }
        )
    one, two, twice = ("one", "two", "twice")
    clock = {name: _median(rounds) for name, rounds in took.items()}
    busy = {name: _median_busy(rounds) for name, rounds in took.items()}
    own = {name: statistics.median(each.own for each in rounds) for name, rounds in took.items()}
    path = {name: statistics.median(each.path for each in rounds) for name, rounds in took.items()}
    costs = cluster_model.fitted(
        one=(_STRONG.clients, path[one]),
        one_block=own["block"],
        blocks=(_TINY.clients, own["blocks"]),
        many=(_MANY, own["many"]),
        addition=cluster_model.addition_seconds(),
    )
    modelled = {
        "two": costs.round_seconds(clients=_STRONG.clients, workers=2),
        "twice": costs.round_seconds(clients=2 * _STRONG.clients, workers=2),
    }
    figures = {
        "ray.strong.one_over_two_workers": path[one] / path[two],
        "ray.strong.clock_one_over_two_workers": clock[one] / clock[two],
        "ray.strong.busy_two_over_one_worker": busy[two] / busy[one],
        "ray.weak.one_over_two_workers": path[one] / path[twice],
        "ray.weak.clock_one_over_two_workers": clock[one] / clock[twice],
        "ray.weak.busy_twice_over_two_ones": busy[twice] / (2 * busy[one]),
        **{f"ray.{name}.seconds": seconds for name, seconds in clock.items() if name in (one, two, twice)},
        **{f"ray.{name}.path_seconds": seconds for name, seconds in path.items() if name in (one, two, twice)},
        **{f"ray.model.{name}": value for name, value in costs.figures().items()},
        "ray.model.strong_over_measured": modelled["two"] / path[two],
        "ray.model.weak_over_measured": modelled["twice"] / path[twice],
    }
    for clients in (10_000, 100_000, 1_000_000):
        size = {"clients": clients, "workers": _NODES * cluster_model.CORES}
        key, block = f"ray.model.thousand_nodes.{clients}_clients", costs.best_block(**size)
        seconds = costs.round_seconds(**size, block=block)
        alone = costs.round_seconds(clients=clients, workers=cluster_model.CORES)
        figures |= {
            f"{key}.seconds": seconds,
            f"{key}.block": float(block),
            f"{key}.seconds_with_usual_block": costs.round_seconds(**size),
            f"{key}.one_node_seconds": alone,
            f"{key}.over_one_node": alone / seconds,
        }
    notes = {
        "ray.strong.one_over_two_workers": f"{_STRONG.clients} clients x {_STRONG.samples} samples of W1 on one worker "
        "over the same on two, by the processor time of the driver and the busiest worker: medians "
        f"{path[one]:.2f} s and {path[two]:.2f} s; by the clock {clock[one]:.2f} s and {clock[two]:.2f} s. {_load()}",
        "ray.weak.one_over_two_workers": f"{_STRONG.clients} clients on one worker over {2 * _STRONG.clients} on two: "
        f"{path[one]:.2f} s and {path[twice]:.2f} s; by the clock {clock[one]:.2f} s and {clock[twice]:.2f} s.",
        "ray.model.strong_over_measured": "The model is fitted to the runs on one worker and to tiny rounds alone.",
    }
    return Findings(figures, notes)


def over_flower() -> Findings:
    """Compare rounds of 200 clients with Flower's simulation of Opacus clients, whose backend is Ray as well."""
    return _over("flower", "Flower's simulation", flower.times)


def over_pfl() -> Findings:
    """Compare rounds of 200 clients with pfl-research's simulation of Opacus clients."""
    return _over("pfl", "pfl-research", pfl_research.times)


def _over(name: str, rival: str, measured: Callable[[Workload], dict[str, float] | str]) -> Findings:
    """Compare rounds with a rival's, before and after it, or tell why it could not be measured."""
    before = _ours()
    took = {samples: measured(w1(_OTHERS, samples)) for samples in _FEW}
    ours = {
        samples: [*rounds, *after] for (samples, rounds), after in zip(before.items(), _ours().values(), strict=True)
    }
    found = Findings()
    for samples, theirs in took.items():
        key = f"ray.{name}_opacus_over_ours.{samples}_samples"
        if isinstance(theirs, str):
            return Findings({}, {key: theirs})
        mine = statistics.mean(each.seconds for each in ours[samples])
        busy = statistics.mean(each.busy for each in ours[samples])
        note = (
            f"{_OTHERS} clients x {samples} samples of W1: {theirs['seconds']:.2f} s a round in {rival}, {mine:.2f} s "
            f"on two workers, the mean of {len(ours[samples])} rounds before and after it, evaluation included; "
            f"processor time of all processes {theirs['all']:.2f} s and {busy:.2f} s. {_load()}"
        )
        figures = {
            key: theirs["seconds"] / mine,
            f"ray.{name}_busy_over_ours.{samples}_samples": theirs["all"] / busy,
            f"ray.{name}.{samples}_samples.seconds": theirs["seconds"],
            f"ray.{name}.{samples}_samples.ours_seconds": mine,
        }
        found |= Findings(figures, {key: note})
    return found


def _ours() -> dict[int, list[Spent]]:
    runs = {samples: Simulated(clients=_OTHERS, samples=samples, rounds=4, engine="ray") for samples in _FEW}
    with StartedRay(sum(run.workers for run in runs.values())):  # a place for every worker, though they take turns
        took = alternated({str(samples): run for samples, run in runs.items()})
    return {samples: took[str(samples)] for samples in runs}


def server_growth() -> Findings:
    """Measure the server's part of a round for more and more clients, whose updates wait in files."""
    figures: dict[str, float] = {}
    notes: dict[str, str] = {}
    with ExitStack() as resources:
        store = FileRows(_PARAMETERS, resources)
        for block in _updates(_SIZES[-1]):
            store.add(block)
        for name in _SERVER_RECIPES:
            taken = {n: _server_seconds(name, StoredRows.of(store), n) for n in _SIZES}
            figures |= {f"ray.server.{name}.seconds_{n}": seconds for n, seconds in taken.items()}
            low, high = taken[_SIZES[0]], taken[_SIZES[-1]]
            key = f"ray.server.{name}.time_2000_over_500"
            figures[key] = high / low
            exponent = math.log(high / low) / math.log(_SIZES[-1] / _SIZES[0])
            words = ", ".join(f"{seconds:.1f} s for {n:,}" for n, seconds in taken.items())
            notes[key] = f"{words} clients of {_PARAMETERS:,} parameters: time grows as n^{exponent:.2f}. {_load()}"
    return Findings(figures, notes)


def _server_seconds(name: str, rows: StoredRows, clients: int) -> float:
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
        _updates_elsewhere(clients, layout), models, slots, server_rng(0, False)(1),
        limits=InfluenceLimits(), step=True, stored=chosen,
    )  # fmt: skip
    return time.process_time() - began


def _tasks(clients: int, layout: Layout) -> list[Task]:
    empty = torch.empty(1, 0)
    return [Task(client=c, round=1, models=empty, layout=layout, answer=layout) for c in range(clients)]


def _updates_elsewhere(clients: int, layout: Layout) -> list[Update]:
    facts = VectorFacts(layout.size, "torch.float32", 1.0)
    empty: Any = None
    return [
        Update(client=c, round=1, vector=torch.empty(0), layout=layout, receipt=empty, vector_facts=facts)
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


def _median(rounds: Sequence[Spent]) -> float:
    return statistics.median(each.seconds for each in rounds)


def _median_busy(rounds: Sequence[Spent]) -> float:
    return statistics.median(each.busy for each in rounds)


def _load() -> str:
    return f"Load average {os.getloadavg()[0]:.1f}."


PARTS: Mapping[str, Callable[[], Findings]] = {
    "overhead": overhead, "server": server_growth, "flower": over_flower, "pfl": over_pfl, "scaling": scaling,
}  # fmt: skip
