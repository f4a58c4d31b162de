"""Benchmark of a round between processes, compared with the local work in it: seconds, and bytes of memory."""

from __future__ import annotations

import statistics
import tempfile
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from hush.config import parse
from hush.deploy.admin import audit_log, localhost
from hush.deploy.admin.processes import stopping
from hush.types import HushError, RoundRecord

_CLASSES = 10


def measure(sizes: tuple[int, ...] = (3, 20), rounds: int = 10) -> dict[str, float]:
    """Measure federations of these sizes on the built-in digits."""
    if find_spec("flwr") is None:
        raise HushError("--suite federation: Flower is not installed; install it with: pip install 'hush[deploy]'")
    figures: dict[str, float] = {}
    for size in sizes:
        figures |= _measured(size, rounds)
    return figures


def _measured(members: int, rounds: int) -> dict[str, float]:
    config = parse(
        {
            "rounds": rounds, "data": {"name": "digits", "clients": members},
            "privacy": {"budgets": 4.0, "noise": "secure"},
            "local": {"batch_size": 16, "lr": 0.5}, "recipe": {"name": "robust-hdp"},
        }
    )  # fmt: skip
    ended: list[float] = []
    memory: dict[str, int] = {}

    def watch(record: RoundRecord, left: object) -> None:
        ended.append(record.seconds)
        if record.round == rounds:
            memory.update({name: program.memory() for name, program in running.items()})

    with tempfile.TemporaryDirectory() as folder, stopping([]) as programs:
        place = localhost.make(Path(folder) / "fed", config)
        running = localhost.start(place, programs)
        localhost.coordinator(place, _CLASSES).run(config, place.runs / localhost.RUN, progress=watch)
        work = [_work(place.path / "kits" / name) for name in place.members()]
    between = statistics.median(after - before for before, after in pairwise(ended))
    slowest = statistics.median(max(each) for each in zip(*work, strict=True))
    key = f"federation.{members}_members"
    return {
        f"{key}.round_seconds": between,
        f"{key}.local_seconds": slowest,
        f"{key}.over_local_seconds": between - slowest,
        f"{key}.member_megabytes": max(size for name, size in memory.items() if name) / 1e6,
        f"{key}.superlink_megabytes": memory[""] / 1e6,
    }


def _work(kit: Path) -> list[float]:
    """Return the time that one member spent on training and sealing in each round, from its audit log."""
    return [
        float(line["seconds"])
        for line in audit_log.read(kit / "audit.jsonl")
        if line["event"] == "sent" and line["round"]
    ]
