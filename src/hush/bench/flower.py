"""Flower's simulation with Opacus clients, as a baseline: measured in a separate process, if Flower is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

from hush.bench.timing import what_failed
from hush.bench.workloads import Workload

_LIMIT = 1800
_PROGRAM = "from hush.bench.flower_app import main; main()"


def seconds(work: Workload) -> tuple[float, float] | str:
    """Return the duration of a round without Flower's start-up and its clients' CPU time, or why they are unknown."""
    found = times(work)
    return found if isinstance(found, str) else (found["seconds"], found["busy"])


def times(work: Workload) -> dict[str, float] | str:
    """Return the duration of a round, the CPU time of its clients and of all processes, or why they are unknown."""
    missing = [name for name in ("flwr", "ray", "opacus") if importlib.util.find_spec(name) is None]
    if missing:
        return f"Not measured: {' and '.join(missing)} not installed (pip install flwr[simulation] opacus)."
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DEDUP_LOGS": "0"}
    # Ray lowers the priority of its workers; our processes keep the default.
    quiet["RAY_worker_niceness"] = "0"
    command = [sys.executable, "-c", _PROGRAM, str(len(work.plans)), str(work.plans[0].samples)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, env=os.environ | quiet)
    except subprocess.TimeoutExpired:
        return f"Not measured: Flower's simulation took more than {_LIMIT} s."
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not answers:
        return f"Not measured: Flower's simulation failed ({what_failed(done.stderr)[:120]})."
    found: dict[str, float] = json.loads(answers[-1])
    return found
