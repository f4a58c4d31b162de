"""Rows and noise drawn by threads of the host, some steps before an accelerator needs them.

What a client draws does not depend on what it has learned, so that nothing has to wait for anything but room.

Guarantees:
    - Each client's source is asked by one thread alone, for rows and then for noise (if the host draws it), step by
      step.

Edge cases:
    - A batch too large for its place in the table makes a larger table for that step.
    - A thread's error is raised where its draws are awaited.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Semaphore

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from hush.local.job import Job

DEPTH = 4  # steps that can wait


@dataclass(frozen=True)
class Drawn:
    """One step's draws.

    Attributes:
        rows: The table of rows, clients x places, -1 where there is none.
        longest: Places of the table that are in use.
        noise: Standard normal numbers, clients x p, or none if the host draws no noise.
        active: Clients that take part: the first ones.
    """

    rows: Tensor
    longest: int
    noise: Tensor | None
    active: int


def places(jobs: Sequence[Job]) -> int:
    """Width of a table in which practically every batch finds room: eight standard deviations above the mean."""
    return max(min(job.plan.samples, job.plan.batch + 8 * math.isqrt(job.plan.batch) + 8) for job in jobs)


class Ahead:
    """The draws of a group of clients, those with more steps first."""

    def __init__(self, jobs: Sequence[Job], size: int, dtype: torch.dtype, threads: int, noisy: bool = True) -> None:
        self._jobs, self._stopped, self._noisy = jobs, False, noisy
        pinned = torch.cuda.is_available()
        self._rows = torch.full((DEPTH, len(jobs), places(jobs)), -1, pin_memory=pinned)
        self._noise = torch.zeros(DEPTH, len(jobs) if noisy else 0, size, dtype=dtype, pin_memory=pinned)
        self._places, self._numbers = self._rows.numpy(), self._noise.numpy()
        self._shares = [range(start, len(jobs), threads) for start in range(min(threads, len(jobs)))]
        self._room = [Semaphore(DEPTH) for _ in self._shares]
        self._ready: list[SimpleQueue[list[Tensor] | Exception]] = [SimpleQueue() for _ in self._shares]

    def start(self, pool: ThreadPoolExecutor) -> None:
        """Begin to draw, on as many threads as there are shares."""
        for number in range(len(self._shares)):
            pool.submit(self._work, number)

    def stop(self) -> None:
        """Let the threads end, whatever is left to draw."""
        self._stopped = True
        self.release()

    def take(self, step: int) -> Drawn:
        """The draws of that step, when they are there."""
        batches: dict[int, Tensor] = {}
        for share, ready in zip(self._shares, self._ready, strict=True):
            found = ready.get()
            if isinstance(found, Exception):
                raise found
            batches.update(zip(share, found, strict=False))
        longest = max(1, *(len(rows) for rows in batches.values()))
        rows = self._rows[step % DEPTH]
        if longest > rows.shape[1]:
            padded = pad_sequence([batches[i] for i in sorted(batches)], batch_first=True, padding_value=-1)
            rows = functional.pad(padded, (0, 0, 0, len(self._jobs) - len(padded)), value=-1)
        return Drawn(rows, longest, self._noise[step % DEPTH] if self._noisy else None, len(batches))

    def release(self) -> None:
        """Make room for one more step: the oldest one is used up."""
        for room in self._room:
            room.release()

    def _work(self, number: int) -> None:
        try:
            for step in range(self._jobs[0].plan.steps):
                self._room[number].acquire()
                if self._stopped:
                    return
                drawn = [self._draw(i, step) for i in self._shares[number]]
                self._ready[number].put([rows for rows in drawn if rows is not None])
        except Exception as error:
            self._ready[number].put(error)

    def _draw(self, i: int, step: int) -> Tensor | None:
        job, slot = self._jobs[i], step % DEPTH
        place = self._places[slot, i]
        if step >= job.plan.steps:
            place[:] = -1
            return None
        rows = job.plan.sample(job.source) + job.first_row
        # NumPy's views, because every call of PyTorch would hand the interpreter to another thread and back.
        count = len(rows)
        place[:count] = rows.numpy()[: len(place)]
        place[count:] = -1
        if job.plan.private and self._noisy:
            self._numbers[slot, i] = job.source.normal(self._noise.shape[2], self._noise.dtype).numpy()
        return rows
