"""pfl-research with Opacus clients, as a baseline: measured in separate processes, if it is installed.

`HUSH_BENCH_PFL` may name a directory that it was installed into (`pip install --target`), since it pins an older
dp-accounting than Hush. A process for each core, as its documentation starts them on one machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from hush.bench.timing import what_failed
from hush.bench.workloads import Workload

_LIMIT = 1800


def times(work: Workload) -> dict[str, float] | str:
    """Return the duration of a round without the start-up, and the CPU time of all processes, or why they are unknown.

    The processes share the clients, and the first one tells its own CPU time.
    """
    place = os.environ.get("HUSH_BENCH_PFL", "")
    found = (Path(place) / "pfl").is_dir() if place else importlib.util.find_spec("pfl") is not None
    if not found or importlib.util.find_spec("opacus") is None:
        return "Not measured: pfl or opacus not installed (pip install pfl opacus)."
    paths = [place, *(path for path in sys.path if path)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={os.cpu_count()}"]
    program = ["--module", "hush.bench.pfl_app", str(len(work.plans)), str(work.plans[0].samples)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run([*command, *program], capture_output=True, text=True, timeout=_LIMIT, env=environment)
    except subprocess.TimeoutExpired:
        return f"Not measured: pfl-research took more than {_LIMIT} s."
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not answers:
        return f"Not measured: pfl-research failed ({what_failed(done.stderr)[:120]})."
    read: dict[str, float] = json.loads(answers[-1])
    return {**read, "all": read["busy"] * (os.cpu_count() or 1)}
