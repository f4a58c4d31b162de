"""DP-SGD over a chain on an accelerator: all clients in one launch, whatever their batch sizes, the host drawing ahead.

Guarantees:
    - Those of `hush.local.device`.

Edge cases:
    - Those of `hush.local.device`. Nothing is padded: a client that has done its steps has no examples.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from hush.local.ahead import DEPTH, Ahead
from hush.local.chain import Chain
from hush.local.chain_step import ChainStep, kept
from hush.local.device import THREADS, Bank, place, scales, twins
from hush.local.job import Job
from hush.local.precision import Precision
from hush.local.replay import Kind
from hush.models import Model


def groups_of(jobs: Sequence[Job]) -> list[list[int]]:
    """Those whose model moves and those whose model stands still, each with more steps first."""
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i].plan.steps)
    return [group for still in (False, True) if (group := [i for i in order if jobs[i].still is still])]


def train_chain(
    model: Model, chain: Chain, x: Tensor, y: Tensor, jobs: Sequence[Job], limit: int, precision: Precision
) -> Tensor:
    """The vectors of a group at its end, clients x p. Jobs with more steps come first."""
    kind: Kind = "still" if jobs[0].still else "corrected" if any(job.corrected for job in jobs) else "plain"
    step = kept(model, chain, x, y, jobs, limit, precision, kind)
    place(step, jobs)
    found = twins(jobs)
    # One that only the host may draw for makes the host draw for all.
    bank = None if None in found else Bank(jobs, [twin for twin in found if twin], step.noise[: len(jobs)])
    threads = min(THREADS, os.cpu_count() or 1)
    ahead = Ahead(jobs, step.noise.shape[1], step.noise.dtype, threads, bank is None, tables=False)
    with ThreadPoolExecutor(threads) as pool:
        try:
            ahead.start(pool)
            _steps(step, jobs, ahead, bank)
        finally:
            ahead.stop()
    return step.vectors[: len(jobs)].clone()


def _steps(step: ChainStep, jobs: Sequence[Job], ahead: Ahead, bank: Bank | None) -> None:
    moving, active = scales(jobs, step.scales.dtype).to(step.scales.device), -1
    handed: list[torch.cuda.Event] = []
    for number in range(-(-jobs[0].plan.steps // ahead.steps)):
        batches, noise = ahead.batches(), ahead.noise(number)
        counts = [[len(mine[k]) for mine in batches if len(mine) > k] for k in range(max(map(len, batches)))]
        for k, packed in enumerate(_handed(step, batches, len(counts))):
            if len(counts[k]) != active:
                active = len(counts[k])
                step.scales.zero_()
                step.scales[:, :active].copy_(moving[:, :active])
            drawn = bank.step(number * ahead.steps + k, active) if bank is not None else None
            step.step(packed, drawn if noise is None else noise[k], sum(counts[k]))
        if noise is None:
            ahead.release()
            continue
        # What the host drew must stay until it is copied.
        handed.append(torch.cuda.Event())
        handed[-1].record()
        if len(handed) == DEPTH:
            handed.pop(0).synchronize()
            ahead.release()


def _handed(step: ChainStep, batches: Sequence[Sequence[np.ndarray]], steps: int) -> list[Tensor]:
    """What each step of a hand-over takes, on the device; nobody waits for the copy."""
    packed = [step.packed([mine[k] for mine in batches if len(mine) > k]) for k in range(steps)]
    if len({len(one) for one in packed}) > 1:
        return [torch.from_numpy(one).to(step.vectors.device) for one in packed]
    there = torch.from_numpy(np.stack(packed))
    pinned = there.pin_memory() if step.vectors.is_cuda else there
    return list(pinned.to(step.vectors.device, non_blocking=True).unbind())
