"""Noise benchmark: secure beside seeded, normal numbers alone and in rounds of both workloads, on either device.

`python -m hush.bench.noise` prints the figures of this machine as JSON and needs PyTorch and NumPy alone, and on a GPU
Triton.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

from hush.bench.findings import Findings
from hush.bench.timing import best, fair_clock
from hush.bench.workloads import Workload, w1, w2
from hush.privacy.noise import Secure, Seeded
from hush.privacy.source import Source
from hush.training.train import train


def measure() -> Findings:
    """Measure the GPU if there is one, else the processor."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    key = "gpu" if device == "cuda" else "cpu"
    clock, note = (time.perf_counter, "") if device == "cuda" else fair_clock()
    figures = {
        f"{key}.{work.name}.secure_over_seeded": rounds(work, clock) for work in (w1(device=device), w2(device=device))
    }
    notes = {found: note.strip() for found in figures if note}
    return normals(key, 1 << (28 if device == "cuda" else 22), device) | Findings(figures, notes)


def rounds(work: Workload, clock: Callable[[], float], turns: int = 3) -> float:
    """Return how much longer a round takes with secure noise."""

    def trained(secure: bool) -> Callable[[], object]:
        return lambda: train(work.model, work.x, work.y, work.jobs(secure=secure))

    seconds = best({"seeded": trained(False), "secure": trained(True)}, turns, clock)
    return seconds["secure"] / seconds["seeded"]


def normals(key: str, size: int, device: str) -> Findings:
    """Measure draws of that many float32 numbers."""
    sources: dict[str, Source] = {"seeded": Seeded(0, 0, 1), "secure": Secure()}
    seconds = best({name: _draw(source, device, size) for name, source in sources.items()}, turns=9)
    rates = {f"{key}.noise.{name}_normals_per_second": size / taken for name, taken in seconds.items()}
    return Findings({**rates, f"{key}.noise.secure_over_seeded": seconds["secure"] / seconds["seeded"]})


def _draw(source: Source, device: str, size: int) -> Callable[[], object]:
    rng = source.device_rng(torch.device(device)) if device != "cpu" else None
    if rng is None:
        return lambda: source.normal(size, torch.float32).to(device)
    target = torch.empty(size, device=device)
    return lambda: rng.fill(target)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure().record("python -m hush.bench.noise"), indent=2) + "\n")
