"""Scale benchmark: time and memory of a whole simulation as the number of clients grows, one process per size."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from hush.bench.findings import Findings
from hush.seeds import rng
from hush.types import HushError

_FEW, _MANY, _MOST = 1_000, 10_000, 100_000
_SAMPLES, _WIDTH, _CLASSES, _ROUNDS = 50, 20, 4, 3
_LIMIT = 1800
# The simulation belongs to the API, a layer above this module: it is passed as a callable.
_PROGRAM = "import sys, hush, torch; from hush.bench.scale import child; child(int(sys.argv[1]), hush.simulate)"


def measure() -> Findings:
    """Compare ten thousand clients with one thousand, and a hundred thousand with ten thousand."""
    few, many, most = simulated_alone(_FEW), simulated_alone(_MANY), simulated_alone(_MOST)
    per_client = (many["seconds"] - few["seconds"]) / (_MANY - _FEW) / _ROUNDS
    note = (
        f"Logistic regression {_WIDTH} -> {_CLASSES}, {_SAMPLES} samples a client, {_ROUNDS} rounds of DP-FedAvg "
        f"through hush.simulate, set-up included: {few['seconds']:.1f} s for {_FEW:,} clients, {many['seconds']:.1f} s "
        f"for {_MANY:,}, or {1e3 * per_client:.2f} ms for each client more and round."
    )
    return Findings(
        {
            "scale.seconds_1k": few["seconds"],
            "scale.seconds_10k": many["seconds"],
            "scale.time_10k_over_1k": many["seconds"] / few["seconds"],
            "scale.rss_mib_10k": many["rss_mib"],
            "scale.rss_mib_10k_over_start": many["rss_mib"] - many["start_mib"],
            "scale.seconds_100k": most["seconds"],
            "scale.time_100k_over_10k": most["busy"] / many["busy"],
            "scale.rss_mib_100k": most["rss_mib"],
        },
        {"scale.time_10k_over_1k": note, "scale.time_100k_over_10k": "By processor time."},
    )


def simulated_alone(clients: int) -> dict[str, float]:
    """Return seconds and memory of a simulation in a separate process."""
    command = [sys.executable, "-c", _PROGRAM, str(clients)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise HushError(f"--suite scale: the simulation of {clients} clients failed: {last[:200]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(clients: int, simulate: Callable[..., object]) -> None:
    """The entry point of that process."""
    sys.stdout.write(json.dumps(simulated(clients, simulate)) + "\n")


def simulated(clients: int, simulate: Callable[..., object]) -> dict[str, float]:
    """Run a simulation of that many clients in this process, by `hush.simulate`."""
    from hush.data import from_arrays

    start = _peak()
    generator = rng(0, "bench", "scale")
    rows = clients * _SAMPLES
    x = generator.standard_normal((rows, _WIDTH), dtype=np.float32)
    y = generator.integers(0, _CLASSES, rows)
    began, busy = time.perf_counter(), time.process_time()
    simulate(
        {
            "rounds": _ROUNDS,
            "data": {"clients": clients, "partition": "iid"},
            "privacy": {"budgets": 2.0},
            "local": {"batch_size": 10},
            "recipe": {"name": "dp-fedavg"},
        },
        dataset=from_arrays(x, y),
    )
    return {
        "seconds": time.perf_counter() - began,
        "busy": time.process_time() - busy,
        "start_mib": start,
        "rss_mib": _peak(),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
