"""Memory benchmark: the peak of a server that aggregates 200 updates of a ResNet-18, in one process and on Ray.

Each simulation runs in a process of its own. In one process, the server and the clients that train at the time are
measured together. On Ray the server is the driver; its workers hold the updates. On either engine these take 9 GiB of
the temporary directory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hush.bench.findings import Findings
from hush.bench.turns import descendants
from hush.seeds import rng
from hush.types import HushError

_CLIENTS, _ROWS, _PARAMETERS = 200, 4, 11_181_642
_LIMIT = 1800
# The simulation belongs to the API, a layer above this module: it is passed as a callable.
_PROGRAM = "import sys, hush; from hush.bench.memory import child; child(sys.argv[1], hush.simulate)"


def measure() -> Findings:
    """Measure both engines."""
    alone = _alone("process")
    note = (
        f"{_CLIENTS} clients, ResNet-18 of {_PARAMETERS:,} parameters on 32 x 32 images, one round of robust-hdp: "
        f"n x p is {4 * _CLIENTS * _PARAMETERS / 2**30:.1f} GiB. The interpreter with its libraries takes "
        f"{alone['start_mib']:,.0f} MiB of it."
    )
    found = Findings({"memory.resnet18.process_mib": alone["peak_mib"]}, {"memory.resnet18.process_mib": note})
    spread = _alone("ray")
    return found | Findings(
        {"memory.resnet18.driver_mib": spread["peak_mib"], "memory.resnet18.worker_mib": spread["worker_mib"]},
        {
            "memory.resnet18.worker_mib": "The larger of two workers, each with half of the updates, most of them in a "
            "file."
        },
    )


def _alone(engine: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, engine], capture_output=True, text=True, timeout=_LIMIT)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise HushError(f"--suite memory: the simulation on {engine} failed: {last[:200]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(engine: str, simulate: Callable[..., object]) -> None:
    """The entry point of that process."""
    from hush.data import from_arrays

    start = _peak()
    generator = rng(0, "bench", "memory")
    x = generator.standard_normal((_CLIENTS * _ROWS, 3, 32, 32), dtype=np.float32)
    workers: list[float] = []
    config = {
        "rounds": 1,
        "data": {"clients": _CLIENTS, "partition": "iid", "test_fraction": 1 / _ROWS},
        "model": {"name": "resnet18-gn"},
        "privacy": {"budgets": 2.0, "delta": 1e-3},
        "local": {"batch_size": 1, "steps": 1, "lr": 0.01},
        "recipe": {"name": "robust-hdp"},
        "engine": {"name": engine, "workers": 2} if engine == "ray" else {},
    }

    def after(_: object) -> None:
        workers.extend(map(_highest, descendants(os.getpid())))

    simulate(config, dataset=from_arrays(x, generator.integers(0, 10, len(x)), classes=10), callbacks=[after])
    found = {"start_mib": start, "peak_mib": _peak(), "worker_mib": max(workers, default=0.0)}
    sys.stdout.write(json.dumps(found) + "\n")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _highest(process: int) -> float:
    """Return the highest resident memory of another process in MiB; 0 if it is gone."""
    try:
        lines = (Path("/proc") / str(process) / "status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
