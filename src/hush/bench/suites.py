"""The suites of `hush bench`, each a few figures under stable keys."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hush.bench import rivals, server
from hush.bench.timing import best
from hush.bench.workloads import Workload, w1, w2
from hush.engines.outcome import versions
from hush.local.train import train
from hush.privacy import accounting
from hush.seeds import rng
from hush.types import HushError, unknown


def run(suites: Sequence[str]) -> dict[str, Any]:
    """Measure the suites named, or those that suit the machine."""
    for name in suites:
        if name not in SUITES:
            raise unknown("--suite", "suite", name, SUITES)
    figures: dict[str, float] = {}
    for name in suites or ("cpu", "server", "plan"):
        figures |= SUITES[name]()
    return {"figures": figures, "machine": _machine(), "versions": versions(), "measured": time.strftime("%Y-%m-%d")}


def cpu() -> dict[str, float]:
    """A round of DP training on this processor, over a plain loop and over Opacus."""
    return {**_against(w1(), "cpu.w1"), **_against(w2(), "cpu.w2")}


def gpu() -> dict[str, float]:
    """The same on an accelerator."""
    if not torch.cuda.is_available():
        raise HushError("--suite gpu: no CUDA device is available here; accepted here: cpu, server, plan")
    work = w1(device="cuda")
    figures = _against(work, "gpu.w1")
    return {**figures, "gpu.w1.samples_per_second": work.samples / figures["gpu.w1.ours_seconds"]}


def plan() -> dict[str, float]:
    """Calibration of clients of which no two are alike."""
    generator = rng(0, "bench", "plan")
    clients = [
        (
            float(10 ** generator.uniform(-1, 1)),
            1e-5,
            float(10 ** generator.uniform(-2.5, -0.5)),
            int(generator.integers(100, 5000)),
        )
        for _ in range(100)
    ]
    began = time.perf_counter()
    accounting.noise_multipliers(clients)
    return {"plan.clients_per_second": len(clients) / (time.perf_counter() - began)}


def federation() -> dict[str, float]:
    """Rounds between processes on this machine, over the local work in them."""
    from hush.deploy.bench import measure

    return measure()


def _against(work: Workload, key: str) -> dict[str, float]:
    def ours() -> None:
        train(work.model, work.x, work.y, work.jobs())
        if work.x.is_cuda:
            torch.cuda.synchronize()

    contestants: dict[str, Callable[[], object]] = {"ours": ours, "plain": rivals.plain(work)}
    if (hooks := rivals.opacus(work)) is not None:
        contestants["opacus"] = hooks
    seconds = best(contestants)
    figures = {
        f"{key}.ours_seconds": seconds["ours"],
        f"{key}.ours_over_plain": seconds["ours"] / seconds["plain"],
        f"{key}.plain_over_ours": seconds["plain"] / seconds["ours"],
    }
    if "opacus" in seconds:
        figures[f"{key}.opacus_over_ours"] = seconds["opacus"] / seconds["ours"]
    return figures


def _machine() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"system": platform.platform(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": device}


SUITES: Mapping[str, Callable[[], dict[str, float]]] = {
    "cpu": cpu,
    "gpu": gpu,
    "server": server.measure,
    "plan": plan,
    "federation": federation,
}
