"""DP-SGD over a chain on an accelerator: all clients in one launch, whatever their batch sizes.

Guarantees:
    - Those of `hush.local.device`.

Edge cases:
    - Those of `hush.local.device`. Nothing is padded: a client that has done its steps has no examples.
    - Batches that only the host may draw are drawn ahead by its threads; others all at once on the device.
    - Where steps are small, clients with many of them do not wait for those with few: each group has its own stream.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

from hush.local.ahead import DEPTH, Ahead
from hush.local.chain import Chain
from hush.local.chain_step import ChainStep, kept, slots
from hush.local.device import THREADS, Bank, place, scales, twins
from hush.local.draw import draw, drawable
from hush.local.job import Job
from hush.local.precision import Precision
from hush.local.replay import Kind
from hush.models import Model
from hush.privacy.noise import Twin

SMALL = 4096  # examples in a step up to which the device has room for another beside it
GROUPS = 2  # that run beside each other then: more were no faster


def groups_of(jobs: Sequence[Job]) -> list[list[int]]:
    """Those whose model moves and those whose model stands still; small ones, by how many steps they take."""
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i].plan.steps)
    found: dict[tuple[bool, int], list[int]] = {}
    small = sum(job.plan.batch for job in jobs) <= SMALL
    for i in order:
        behind = round(math.log2(jobs[order[0]].plan.steps / jobs[i].plan.steps)) if small else 0
        found.setdefault((jobs[i].still, min(behind, GROUPS - 1)), []).append(i)
    return list(found.values())


def train_chain(
    model: Model,
    chain: Chain,
    x: Tensor,
    y: Tensor,
    groups: Sequence[Sequence[Job]],
    limit: int | None,
    precision: Precision,
) -> list[Tensor]:
    """The vectors of each group at its end, clients x p. Jobs with more steps come first in a group."""
    with ExitStack() as stack:
        runs = [_Run(model, chain, x, y, number, jobs, limit, precision, stack) for number, jobs in enumerate(groups)]
        here = torch.cuda.current_stream(x.device) if x.is_cuda else None
        for run in runs:
            if run.stream is not None and here is not None:
                run.stream.wait_stream(here)
        while waiting := [run for run in runs if run.done < run.steps]:
            # The one that is furthest behind, so that large and small steps share the device.
            run = min(waiting, key=lambda r: r.done / r.steps)
            with torch.cuda.stream(run.stream):
                next(run.walk)
            run.done += 1
        for run in runs:
            if run.stream is not None and here is not None:
                here.wait_stream(run.stream)
    return [run.step.vectors[: len(run.jobs)].clone() for run in runs]


class _Run:
    """A group of clients on its way."""

    def __init__(
        self, model: Model, chain: Chain, x: Tensor, y: Tensor, number: int, jobs: Sequence[Job],
        limit: int | None, precision: Precision, stack: ExitStack,
    ) -> None:  # fmt: skip
        self.jobs, self.done, self.steps = jobs, 0, jobs[0].plan.steps
        kind: Kind = "still" if jobs[0].still else "corrected" if any(job.corrected for job in jobs) else "plain"
        found, on_device = twins(jobs), False
        wanted = slots(jobs)
        if drawable(jobs, found):
            draws, on_device = draw(jobs, found, x.device), True
            wanted = max(wanted, *draws.totals)
        self.step = kept(model, chain, x, y, (kind, number), (len(jobs), wanted), limit, precision)
        self.stream = self.step.stream
        place(self.step, jobs)
        moving = scales(jobs, self.step.scales.dtype).to(x.device)
        # One that only the host may draw for makes the host draw for all.
        bank = _bank(self.step, jobs, found)
        if on_device:
            packed = draws.packed(self.step.clients, self.step.slots)
            self.walk = _walk(self.step, jobs, moving, bank, packed, draws.totals)
            return
        threads = min(THREADS, os.cpu_count() or 1)
        ahead = Ahead(jobs, self.step.noise.shape[1], self.step.noise.dtype, threads, bank is None, tables=False)
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        stack.callback(ahead.stop)
        ahead.start(pool)
        self.walk = _hosted(self.step, jobs, moving, bank, ahead)


def _bank(step: ChainStep, jobs: Sequence[Job], found: Sequence[Twin | None]) -> Bank | None:
    return None if None in found else Bank(jobs, [twin for twin in found if twin], step.noise[: len(jobs)])


def _walk(
    step: ChainStep, jobs: Sequence[Job], moving: Tensor, bank: Bank | None, packed: Tensor, totals: Sequence[int]
) -> Iterator[None]:
    """One step after the other, all batches being there."""
    active, fewest = -1, [job.plan.steps for job in reversed(jobs)]
    for number, (batch, total) in enumerate(zip(packed.unbind(), totals, strict=True)):
        active = _move(step, moving, active, len(jobs) - bisect_right(fewest, number))
        step.step(batch, None if bank is None else bank.step(number, active), total)
        yield


def _hosted(step: ChainStep, jobs: Sequence[Job], moving: Tensor, bank: Bank | None, ahead: Ahead) -> Iterator[None]:
    """One step after the other, with what the host's threads draw."""
    active = -1
    handed: list[torch.cuda.Event] = []
    for number in range(-(-jobs[0].plan.steps // ahead.steps)):
        batches, noise = ahead.batches(), ahead.noise(number)
        counts = [[len(mine[k]) for mine in batches if len(mine) > k] for k in range(max(map(len, batches)))]
        for k, packed in enumerate(_handed(step, batches, len(counts))):
            active = _move(step, moving, active, len(counts[k]))
            drawn = bank.step(number * ahead.steps + k, active) if bank is not None else None
            step.step(packed, drawn if noise is None else noise[k], sum(counts[k]))
            yield
        if noise is None or not step.vectors.is_cuda:
            ahead.release()
            continue
        # What the host drew must stay until it is copied.
        handed.append(torch.cuda.Event())
        handed[-1].record()
        if len(handed) == DEPTH:
            handed.pop(0).synchronize()
            ahead.release()


def _move(step: ChainStep, moving: Tensor, before: int, active: int) -> int:
    """Let the first clients move and no others."""
    if active != before:
        step.scales.zero_()
        step.scales[:, :active].copy_(moving[:, :active])
    return active


def _handed(step: ChainStep, batches: Sequence[Sequence[np.ndarray]], steps: int) -> list[Tensor]:
    """What each step of a hand-over takes, on the device; nobody waits for the copy."""
    packed = [step.packed([mine[k] for mine in batches if len(mine) > k]) for k in range(steps)]
    if len({len(one) for one in packed}) > 1:
        return [torch.from_numpy(one).to(step.vectors.device) for one in packed]
    there = torch.from_numpy(np.stack(packed))
    pinned = there.pin_memory() if step.vectors.is_cuda else there
    return list(pinned.to(step.vectors.device, non_blocking=True).unbind())
