"""Rows, and noise where only the host may draw it, drawn by threads of the host some steps before they are needed.

What a client draws does not depend on what it has learned, so that nothing has to wait for anything but room. Several
steps are handed over at a time, because every handing over costs more than a draw.

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

import numpy as np
import torch
from torch import Tensor

from hush.local.job import Job

DEPTH = 4  # hand-overs that can wait
STEPS = 8  # in each, if the host draws no noise


@dataclass(frozen=True)
class Drawn:
    """The draws of a few steps.

    Attributes:
        rows: The tables of rows, steps x clients x places, -1 where there is none.
        longest: Places of each table that are in use.
        wide: The table of a step whose longest batch found no room, by the number of the step.
        noise: Standard normal numbers, steps x clients x p, or none if the host draws no noise.
        active: Clients that take part in each step: the first ones.
    """

    rows: Tensor
    longest: Sequence[int]
    wide: dict[int, Tensor]
    noise: Tensor | None
    active: Sequence[int]


def places(jobs: Sequence[Job]) -> int:
    """Width of a table in which practically every batch finds room: eight standard deviations above the mean."""
    return max(min(job.plan.samples, job.plan.batch + 8 * math.isqrt(job.plan.batch) + 8) for job in jobs)


class Ahead:
    """The draws of a group of clients, those with more steps first."""

    def __init__(
        self, jobs: Sequence[Job], size: int, dtype: torch.dtype, threads: int, noisy: bool = True, tables: bool = True
    ) -> None:
        self._jobs, self._stopped, self._noisy = jobs, False, noisy
        self.steps = 1 if noisy else STEPS
        pinned = torch.cuda.is_available()
        self._rows = torch.full((DEPTH, self.steps, len(jobs), places(jobs) if tables else 0), -1, pin_memory=pinned)
        shape = (DEPTH, self.steps, len(jobs) if noisy else 0, size)
        self._noise = torch.zeros(shape, dtype=dtype, pin_memory=pinned)
        # NumPy's views, because every call of PyTorch would hand the interpreter to another thread and back.
        self._places, self._numbers = self._rows.numpy(), self._noise.numpy()
        self._shares = [range(start, len(jobs), threads) for start in range(min(threads, len(jobs)))]
        self._room = [Semaphore(DEPTH) for _ in self._shares]
        self._ready: list[SimpleQueue[list[list[np.ndarray]] | Exception]] = [SimpleQueue() for _ in self._shares]

    def start(self, pool: ThreadPoolExecutor) -> None:
        """Begin to draw, on as many threads as there are shares."""
        for number in range(len(self._shares)):
            pool.submit(self._work, number)

    def stop(self) -> None:
        """Let the threads end, whatever is left to draw."""
        self._stopped = True
        self.release()

    def take(self, number: int) -> Drawn:
        """The draws of the hand-over of that number, when they are there."""
        slot, batches = number % DEPTH, self.batches()
        steps = range(max(map(len, batches)))
        active = [sum(len(mine) > k for mine in batches) for k in steps]
        longest = [max(1, *(len(mine[k]) for mine in batches[:count])) for k, count in zip(steps, active, strict=True)]
        width = self._rows.shape[3]
        wide = {k: self._wide([mine[k] for mine in batches[: active[k]]]) for k in steps if longest[k] > width}
        return Drawn(self._rows[slot], longest, wide, self.noise(number), active)

    def noise(self, number: int) -> Tensor | None:
        """The noise of that hand-over, steps x clients x p, if the host draws any."""
        return self._noise[number % DEPTH] if self._noisy else None

    def batches(self) -> list[list[np.ndarray]]:
        """The rows of the next hand-over, when they are there: for each client, its batches as far as it has any."""
        batches: list[list[np.ndarray]] = [[] for _ in self._jobs]
        for share, ready in zip(self._shares, self._ready, strict=True):
            found = ready.get()
            if isinstance(found, Exception):
                raise found
            for i, mine in zip(share, found, strict=True):
                batches[i] = mine
        return batches

    def release(self) -> None:
        """Make room for one more hand-over: the oldest one is used up."""
        for room in self._room:
            room.release()

    def _work(self, share: int) -> None:
        try:
            for number in range(-(-self._jobs[0].plan.steps // self.steps)):
                self._room[share].acquire()
                if self._stopped:
                    return
                self._ready[share].put([self._draw(i, number) for i in self._shares[share]])
        except Exception as error:
            self._ready[share].put(error)

    def _draw(self, i: int, number: int) -> list[np.ndarray]:
        """A client's rows for each step of the hand-over that it still takes."""
        job, slot, drawn = self._jobs[i], number % DEPTH, []
        left = job.plan.steps - number * self.steps
        for k in range(self.steps):
            place = self._places[slot, k, i]
            if k >= left:
                place[:] = -1
                continue
            rows = job.plan.sample(job.source).numpy() + job.first_row
            drawn.append(rows)
            place[: len(rows)] = rows[: len(place)]
            place[len(rows) :] = -1
            if job.plan.private and self._noisy:
                self._numbers[slot, k, i] = job.source.normal(self._noise.shape[3], self._noise.dtype).numpy()
        return drawn

    def _wide(self, batches: Sequence[np.ndarray]) -> Tensor:
        table = np.full((len(self._jobs), max(map(len, batches))), -1)
        for place, rows in zip(table, batches, strict=False):
            place[: len(rows)] = rows
        return torch.from_numpy(table)
