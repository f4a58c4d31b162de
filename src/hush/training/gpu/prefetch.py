"""Prefetching: threads of the host draw rows, and noise where only the host may, some steps before they are needed.

What a client draws does not depend on what it has learned, so draws wait for nothing but room. Several steps are handed
over at a time, as a chunk, because each hand-over costs more than a draw.

Guarantees:
    - Each client's source is used by one thread alone, for rows and then for noise (if the host draws it), step by
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

from hush.training.job import Job

DEPTH = 4  # chunks that can wait
CHUNK_STEPS = 8  # steps of a chunk, if the host draws no noise


@dataclass(frozen=True)
class Chunk:
    """The draws of a few steps.

    Attributes:
        rows: The tables of rows, steps x clients x places, -1 where there is none.
        longest: Places of each table that are in use.
        wide: The table of a step whose longest batch is wider than its table, by the number of the step.
        noise: Standard normal numbers, steps x clients x p, or none if the host draws no noise.
        active: Clients that take part in each step: the first ones.
    """

    rows: Tensor
    longest: Sequence[int]
    wide: dict[int, Tensor]
    noise: Tensor | None
    active: Sequence[int]


def table_width(jobs: Sequence[Job]) -> int:
    """Width of a table that practically every batch fits into: eight standard deviations above the mean."""
    return max(min(job.plan.samples, job.plan.batch + 8 * math.isqrt(job.plan.batch) + 8) for job in jobs)


class Prefetcher:
    """The draws of a group of clients, those with more steps first. As a context manager it runs its threads."""

    def __init__(
        self, jobs: Sequence[Job], size: int, dtype: torch.dtype, threads: int, noisy: bool = True, tables: bool = True
    ) -> None:
        self._jobs, self._stopped, self._noisy = jobs, False, noisy
        self.steps = 1 if noisy else CHUNK_STEPS
        pinned = torch.cuda.is_available()
        self._rows = torch.full(
            (DEPTH, self.steps, len(jobs), table_width(jobs) if tables else 0), -1, pin_memory=pinned
        )
        shape = (DEPTH, self.steps, len(jobs) if noisy else 0, size)
        self._noise = torch.zeros(shape, dtype=dtype, pin_memory=pinned)
        # NumPy's views, because every call of PyTorch would hand the interpreter to another thread and back.
        self._places, self._numbers = self._rows.numpy(), self._noise.numpy()
        self._shares = [range(start, len(jobs), threads) for start in range(min(threads, len(jobs)))]
        # Every share has a thread of its own, or it could wait for one that waits for it.
        self._pool = ThreadPoolExecutor(len(self._shares))
        self._room = [Semaphore(DEPTH) for _ in self._shares]
        self._ready: list[SimpleQueue[list[list[np.ndarray]] | Exception]] = [SimpleQueue() for _ in self._shares]

    def __enter__(self) -> Prefetcher:
        """Start to draw, with a thread for each share of the clients."""
        for number in range(len(self._shares)):
            self._pool.submit(self._work, number)
        return self

    def __exit__(self, *_: object) -> None:
        """Let the threads end, whatever is left to draw."""
        self._stopped = True
        self.release()
        self._pool.shutdown()

    def chunk(self, number: int) -> Chunk:
        """The chunk of that number, as soon as it is drawn."""
        slot, batches = number % DEPTH, self.batches()
        steps = range(max(map(len, batches)))
        active = [sum(len(mine) > k for mine in batches) for k in steps]
        longest = [max(1, *(len(mine[k]) for mine in batches[:count])) for k, count in zip(steps, active, strict=True)]
        width = self._rows.shape[3]
        wide = {k: self._wide([mine[k] for mine in batches[: active[k]]]) for k in steps if longest[k] > width}
        return Chunk(self._rows[slot], longest, wide, self.noise(number), active)

    def noise(self, number: int) -> Tensor | None:
        """The noise of that chunk, steps x clients x p, if the host draws any."""
        return self._noise[number % DEPTH] if self._noisy else None

    def batches(self) -> list[list[np.ndarray]]:
        """The rows of the next chunk, as soon as they are drawn: for each client, its batches as far as it has any."""
        batches: list[list[np.ndarray]] = [[] for _ in self._jobs]
        for share, ready in zip(self._shares, self._ready, strict=True):
            found = ready.get()
            if isinstance(found, Exception):
                raise found
            for i, mine in zip(share, found, strict=True):
                batches[i] = mine
        return batches

    def release(self) -> None:
        """Make room for one more chunk: the oldest one is used up."""
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
        """A client's rows for each step of the chunk that it takes."""
        job, slot, drawn = self._jobs[i], number % DEPTH, []
        left = job.plan.steps - number * self.steps
        for k in range(self.steps):
            place = self._places[slot, k, i]
            if k >= left:
                place[:] = -1
                continue
            rows = job.plan.batch_rows(job.source, job.persons).numpy() + job.first_row
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
