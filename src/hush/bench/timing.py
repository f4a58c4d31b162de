"""Timing: the compared functions alternate, and the best of several repetitions counts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_SIDE = 1024


def best(
    contestants: Mapping[str, Callable[[], object]], turns: int = 2, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of each contestant's best turn, after one turn to warm up. Turns alternate, so noise hits all alike."""
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


def crowded() -> bool:
    """Whether other work takes its share of the cores, so that a long turn never has them to itself."""
    return os.getloadavg()[1] > 1.5 * (os.cpu_count() or 1)


def fair() -> tuple[Callable[[], float], str]:
    """The clock for contestants on one thread, and a word: processor time where other work shares the cores."""
    if crowded() and torch.get_num_threads() == 1:
        return time.process_time, " Other processes share the cores, so CPU time counts, on one thread."
    return time.perf_counter, ""


def busy(work: Callable[[], object]) -> float:
    """Return the CPU time of all threads in seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def wait() -> None:
    """Wait until the GPU, if there is one, has finished all work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak(device: str) -> float:
    """Multiplications and additions a second in a large float32 matrix product."""
    side = _SIDE if device == "cpu" else 8 * _SIDE
    a = torch.ones(side, side, device=device)
    out = torch.empty_like(a)

    def product() -> Tensor:
        return torch.mm(a, a, out=out)

    return 2 * side**3 / best({"product": product}, turns=5)["product"]


def stream(device: str) -> float:
    """Bytes a second read and written by a copy."""
    a = torch.ones(1 << (24 if device == "cpu" else 28), device=device)
    out = torch.empty_like(a)
    return 2 * a.numel() * a.element_size() / best({"copy": lambda: out.copy_(a)}, turns=5)["copy"]
