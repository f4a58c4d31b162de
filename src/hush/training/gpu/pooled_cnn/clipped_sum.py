"""Clipped sums of a pooled CNN by its own kernels: all clients in one launch, whatever their batch sizes.

Guarantees:
    - Those of `hush.training.gpu.graph_replay`.

Edge cases:
    - Nothing is padded: a client that has done its steps has no examples.
    - Batches that only the host may draw are prefetched; others are drawn on the device, all at once.
    - Where steps are small, clients with many of them do not wait for those with few: each group has its own stream.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

from hush.models import Model
from hush.training import memory
from hush.training.clipped_sum import ClientGroup, ClippedSum
from hush.training.gpu.graph_replay import THREADS
from hush.training.gpu.graph_step import kind_of
from hush.training.gpu.noise_bank import NoiseBank, device_rngs, noise_bank
from hush.training.gpu.pooled_cnn.network import PooledCnn
from hush.training.gpu.pooled_cnn.step import PooledCnnStep, cached_step, slots
from hush.training.gpu.prefetch import DEPTH, Prefetcher
from hush.training.gpu.sampling import can_sample, sample
from hush.training.grouping import similar_steps
from hush.training.job import Job
from hush.training.precision import Precision, triton_kernels, triton_precision


class PooledCnnSum(ClippedSum):
    """Clipped sums of a pooled CNN, inside captured steps."""

    def __init__(
        self, model: Model, network: PooledCnn, x: Tensor, y: Tensor, physical_batch: int | None, precision: Precision
    ) -> None:
        self.physical_batch = physical_batch or memory.MOST
        self._model, self._network, self._x, self._y = model, network, x, y
        self._limit, self._precision = physical_batch, precision

    def groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Jobs that take a similar number of steps."""
        return similar_steps(jobs)

    def start(self, jobs: Sequence[Job], number: int, resources: ExitStack) -> ClientGroup:
        """A group whose batches are drawn on the device, or prefetched."""
        rngs, wanted, batches = device_rngs(jobs), slots(jobs), None
        if can_sample(jobs, rngs):
            batches = sample(jobs, rngs, self._x.device)
            wanted = max(wanted, *batches.totals)
        room = (len(jobs), wanted)
        key = (kind_of(jobs), number)
        step = cached_step(self._model, self._network, self._x, self._y, key, room, self._limit, self._precision)
        step.load_clients(jobs)
        bank = noise_bank(jobs, rngs, step.noise[: len(jobs)])
        if batches is not None:
            packed = batches.packed(step.clients, step.slots)
            return _PooledCnnGroup(jobs, step, _sampled_steps(step, jobs, bank, packed, batches.totals))
        threads, noise = min(THREADS, os.cpu_count() or 1), step.noise
        prefetcher = Prefetcher(jobs, noise.shape[1], noise.dtype, threads, bank is None, tables=False)
        return _PooledCnnGroup(jobs, step, _prefetched_steps(step, jobs, bank, resources.enter_context(prefetcher)))


class _PooledCnnGroup(ClientGroup):
    """Clients that step together."""

    def __init__(self, jobs: Sequence[Job], step: PooledCnnStep, steps: Iterator[None]) -> None:
        self.jobs, self.steps = jobs, jobs[0].plan.steps
        self._step, self._steps, self.stream = step, steps, step.stream

    @property
    def vectors(self) -> Tensor:
        """Where the clients are now."""
        return self._step.vectors[: len(self.jobs)]

    def step(self) -> None:
        """Launch one step."""
        next(self._steps)


def _sampled_steps(
    step: PooledCnnStep, jobs: Sequence[Job], bank: NoiseBank | None, packed: Tensor, totals: Sequence[int]
) -> Iterator[None]:
    """One step after the other, with batches that are on the device already."""
    fewest, queued = [job.plan.steps for job in reversed(jobs)], False
    for number, (batch, total) in enumerate(zip(packed.unbind(), totals, strict=True)):
        active = len(jobs) - bisect_right(fewest, number)
        step.move_first(active)
        noise = None if bank is None else bank.step(number, active)
        if number == 0 and bank is not None:
            queued = step.enqueue(packed, bank.noise, max(totals))
        if queued:
            step.queued_step(total)
        else:
            step.step(batch, noise, total)
        yield


def _prefetched_steps(
    step: PooledCnnStep, jobs: Sequence[Job], bank: NoiseBank | None, prefetcher: Prefetcher
) -> Iterator[None]:
    """One step after the other, with what the host's threads draw."""
    copied: list[torch.cuda.Event] = []
    for number in range(-(-jobs[0].plan.steps // prefetcher.steps)):
        batches, noise = prefetcher.batches(), prefetcher.noise(number)
        counts = [[len(own[k]) for own in batches if len(own) > k] for k in range(max(map(len, batches)))]
        for k, packed in enumerate(_on_device(step, batches, len(counts))):
            active = len(counts[k])
            step.move_first(active)
            drawn = bank.step(number * prefetcher.steps + k, active) if bank is not None else None
            step.step(packed, drawn if noise is None else noise[k], sum(counts[k]))
            yield
        if noise is None or not step.vectors.is_cuda:
            prefetcher.release()
            continue
        # What the host drew must stay until it is copied.
        copied.append(torch.cuda.Event())
        copied[-1].record()
        if len(copied) == DEPTH:
            copied.pop(0).synchronize()
            prefetcher.release()


def _on_device(step: PooledCnnStep, batches: Sequence[Sequence[np.ndarray]], steps: int) -> list[Tensor]:
    """What each step of a chunk takes, on the device; the host does not wait for the copy."""
    packed = [step.packed([own[k] for own in batches if len(own) > k]) for k in range(steps)]
    if len({len(one) for one in packed}) > 1:
        return [torch.from_numpy(one).to(step.vectors.device) for one in packed]
    stacked = torch.from_numpy(np.stack(packed))
    pinned = stacked.pin_memory() if step.vectors.is_cuda else stacked
    return list(pinned.to(step.vectors.device, non_blocking=True).unbind())


def pooled_cnn_sums(
    network: PooledCnn,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    limit: int,
    precision: Precision,
) -> Tensor:
    """The clipped sums of one batch; arguments as those of `hush.training.select.clipped_sums`."""
    launch = triton_kernels(x.device).pooled_cnn
    rows = mask.flatten().nonzero()[:, 0]
    ends = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
    batch = launch.Batch(rows.int(), (rows // mask.shape[1]).int(), ends.int())
    space = launch.Workspace(network, max(1, min(limit, len(rows))), x.device)
    out = torch.empty_like(vectors, dtype=torch.float64)
    inputs, labels, products = x.flatten(0, 1).contiguous(), y.flatten(), triton_precision(precision)
    launch.sums(space, vectors.contiguous(), inputs, labels, batch, clips, products, out)
    return out
