"""Benchmark of a round between processes, compared with the local work in it: seconds, and bytes of memory.

On a machine with other load, seconds of the processor say more than those of the clock: `cpu_seconds` are those of all
processes of a federation together, so a round takes at least their number over that of the cores.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hush.config import parse
from hush.deploy.admin import audit_log, localhost
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.admin.processes import Program, stopping
from hush.seeds import rng
from hush.types import HushError, RoundRecord

_CLASSES = 10
_IMAGES, _IMAGE_ROUNDS = 64, 4  # of each member, and the rounds with a large model
_DIGITS = {"local": {"batch_size": 16, "lr": 0.5}, "recipe": {"name": "robust-hdp"}}
_SUMS = {**_DIGITS, "recipe": {"name": "dp-fedavg"}, "secure_aggregation": True}
_RESNET = {
    "model": {"name": "resnet18-gn"}, "local": {"batch_size": 32, "steps": 4, "lr": 0.01},
    "recipe": {"name": "robust-hdp"},
}  # fmt: skip


def measure(sizes: tuple[int, ...] = (3, 20), rounds: int = 10) -> dict[str, float]:
    """Measure federations of these sizes on the built-in digits, with sums, and two members with a large model."""
    if find_spec("flwr") is None:
        raise HushError("--suite federation: Flower is not installed; install it with: pip install 'hush[deploy]'")
    figures: dict[str, float] = {}
    for size in sizes:
        figures |= _measured(f"{size}_members", size, rounds, _DIGITS)
        figures |= _measured(f"{size}_members.secure_aggregation", size, rounds, _SUMS)
    return figures | _measured("resnet18", 2, _IMAGE_ROUNDS, _RESNET, images=True)


def _measured(
    name: str, members: int, rounds: int, more: Mapping[str, Any], *, images: bool = False
) -> dict[str, float]:
    config = parse(
        {
            "rounds": rounds, "data": {"name": "digits", "clients": members},
            "privacy": {"budgets": 4.0, "noise": "secure"}, **more,
        }
    )  # fmt: skip
    ended: list[float] = []
    busy: list[float] = []
    memory: dict[str, int] = {}

    def watch(record: RoundRecord, left: object) -> None:
        ended.append(record.seconds)
        busy.append(time.process_time() + sum(program.processor_seconds() for program in running.values()))
        if record.round == rounds:
            memory.update({name: program.memory() for name, program in running.items()})

    with tempfile.TemporaryDirectory() as folder, stopping([]) as programs:
        # The large model is of images, and what they show changes no time.
        small = config.model_copy(update={"model": parse({}).model, "secure_aggregation": False})
        place = localhost.make(Path(folder) / "fed", small if images else config)
        if images:
            _with_images(place)
        running: dict[str, Program] = localhost.start(place, programs)
        localhost.coordinator(place, _CLASSES).run(config, place.runs / localhost.RUN, progress=watch)
        work = [_work(place.path / "kits" / name) for name in place.members()]
    between = statistics.median(after - before for before, after in pairwise(ended))
    slowest = statistics.median(max(each) for each in zip(*work, strict=True))
    key = f"federation.{name}"
    return {
        f"{key}.round_seconds": between,
        f"{key}.cpu_seconds": (busy[-1] - busy[0]) / (rounds - 1),
        f"{key}.local_seconds": slowest,
        f"{key}.over_local_seconds": between - slowest,
        f"{key}.round_over_local": between / slowest,
        f"{key}.member_megabytes": max(size for name, size in memory.items() if name) / 1e6,
        f"{key}.superlink_megabytes": memory[""] / 1e6,
    }


def _with_images(place: FederationFolder) -> None:
    """Give every member, and the test set, images of the size of CIFAR-10's in place of digits."""
    kits = sorted((place.path / "kits").iterdir())
    for number, path in enumerate((*(kit / "data.npz" for kit in kits), place.path / "test.npz")):
        drawn = rng(number, "bench", "images")
        x = drawn.standard_normal((_IMAGES, 3, 32, 32), dtype=np.float32)
        np.savez(path, x=x, y=drawn.integers(0, _CLASSES, _IMAGES))


def _work(kit: Path) -> list[float]:
    """Return the time that one member spent on training and sealing in each round, from its audit log."""
    return [
        float(line["seconds"])
        for line in audit_log.read(kit / "audit.jsonl")
        if line["event"] == "sent" and line["round"]
    ]
