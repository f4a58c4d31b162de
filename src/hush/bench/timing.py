"""Timing: the compared functions alternate, and the best of several repetitions counts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_SIDE = 1024


def best(
    contestants: Mapping[str, Callable[[], object]], turns: int = 2, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the seconds of each function's best run after a warm-up; runs alternate, so disturbances affect all."""
    for work in contestants.values():
        work()
    seconds = dict.fromkeys(contestants, float("inf"))
    for _ in range(turns):
        for name, work in contestants.items():
            began = clock()
            work()
            wait()
            seconds[name] = min(seconds[name], clock() - began)
    return seconds


def cores_are_shared() -> bool:
    """Return whether other processes use the cores, so that a long run never has them to itself."""
    return os.getloadavg()[1] > 1.5 * (os.cpu_count() or 1)


def fair_clock() -> tuple[Callable[[], float], str]:
    """Return the clock for single-threaded functions and its name: CPU time if other processes use the cores."""
    if cores_are_shared() and torch.get_num_threads() == 1:
        return time.process_time, " Other processes share the cores, so CPU time counts, on one thread."
    return time.perf_counter, ""


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of all threads in seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def wait() -> None:
    """Wait until the GPU, if there is one, has finished all work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def what_failed(stderr: str) -> str:
    """Return the line in which a process names its first error, or its last line."""
    lines = stderr.strip().splitlines() or ["no message"]
    return next((line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line.split("]: ")[-1])), lines[-1])


def peak(device: str) -> float:
    """Return multiplications and additions per second of a large float32 matrix product."""
    side = _SIDE if device == "cpu" else 8 * _SIDE
    a = torch.ones(side, side, device=device)
    out = torch.empty_like(a)

    def product() -> Tensor:
        return torch.mm(a, a, out=out)

    return 2 * side**3 / best({"product": product}, turns=5)["product"]


def stream(device: str) -> float:
    """Return bytes per second read and written by a copy."""
    a = torch.ones(1 << (24 if device == "cpu" else 28), device=device)
    out = torch.empty_like(a)
    return 2 * a.numel() * a.element_size() / best({"copy": lambda: out.copy_(a)}, turns=5)["copy"]
