"""Side-by-side timing: contestants take turns, and the best of several turns counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def best(contestants: Mapping[str, Callable[[], object]], turns: int = 2) -> dict[str, float]:
    """Seconds of each contestant's best turn, after one turn to warm up. Turns alternate, so noise hits all alike."""
    for work in contestants.values():
        work()
    seconds = dict.fromkeys(contestants, float("inf"))
    for _ in range(turns):
        for name, work in contestants.items():
            began = time.perf_counter()
            work()
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return seconds
