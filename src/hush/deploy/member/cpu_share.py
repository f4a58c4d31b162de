"""The CPU share of a member's process: at most a part of this machine's cores, at any time and on average.

The process runs on no more cores than the share, rounded up, and pauses between answers until its computing time is
within the share. An answer is sent before the pause.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable

import torch

_LONGEST = 60.0  # seconds of one pause, so that a member that paused is not taken for one that is gone


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CpuShare:
    """Keeps this process within a share of its cores; a share of 1 changes nothing."""

    def __init__(
        self, share: float, *, number: int | None = None, worked: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep,
    ) -> None:  # fmt: skip
        self._share, self._sleep, self._worked, self._clock = share, sleep, worked, clock
        self._cores = cores() if number is None else number
        self._since = worked(), clock()

    @property
    def most_cores(self) -> int:
        """The number of cores to which the process is limited."""
        return max(1, math.ceil(self._share * self._cores))

    def limit_cores(self) -> None:
        """Limit the process and its arithmetic to that many cores."""
        if self._share >= 1:
            return
        torch.set_num_threads(min(torch.get_num_threads(), self.most_cores))
        if hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.most_cores])

    def pause(self) -> float:
        """Sleep until the computing time since the last pause is within the share; return the seconds."""
        before, began = self._since
        worked, passed = self._worked() - before, self._clock() - began
        seconds = 0.0
        if self._share < 1:
            seconds = min(_LONGEST, max(0.0, worked / (self._share * self._cores) - passed))
        if seconds:
            self._sleep(seconds)
        self._since = self._worked(), self._clock()
        return seconds
