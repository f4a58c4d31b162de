"""Profiled work: the distribution of its time over operators or kernels."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from hush.bench.timing import wait


def profiled(work: Callable[[], object], rows: int = 12) -> list[tuple[str, float]]:
    """Return the largest fractions of the time in operators (CPU) or kernels (GPU), and the rest."""
    on_device = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    work()
    wait()
    with profile(activities=activities) as run:
        work()
        wait()
    spent: dict[str, float] = {}
    for event in run.key_averages():
        # An operator that launches a kernel includes the kernel's time as well.
        counts = not on_device or "CPU" not in str(event.device_type)
        own = event.self_device_time_total if on_device else event.self_cpu_time_total
        if counts and own > 0:
            spent[kernel_name(event.key)] = spent.get(kernel_name(event.key), 0.0) + own
    total = sum(spent.values()) or 1.0
    largest = sorted(spent.items(), key=lambda item: -item[1])[:rows]
    shares = [(name, own / total) for name, own in largest]
    return [*shares, ("all others", 1.0 - sum(share for _, share in shares))]


def kernel_name(key: str) -> str:
    """Return a kernel's name without its template types."""
    whole = key.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", whole, maxsplit=1)[0]
