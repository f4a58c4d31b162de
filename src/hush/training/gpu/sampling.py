"""Poisson sampling on the GPU: all batches of a round are drawn at once, so that no step waits for the host.

Guarantees:
    - Rates are the plans'. A client's rows come from the device generator of its own source, all steps of a round in
      one call, so they do not depend on who trains beside it.

Edge cases:
    - `can_sample` is false where only the host may draw, for samplers that are not Poisson's, for persons, for rows
      with rates of their own, and for rounds too long to be in memory at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hush.privacy.noise import threshold
from hush.privacy.source import DeviceRng
from hush.training.job import Job
from hush.training.precision import triton_kernels

_WORDS = 1 << 25  # drawn at a time
_MOST = 1 << 30  # rows times steps of all clients
_BLOCK = 1024


@dataclass(frozen=True)
class RoundBatches:
    """The batches of a round.

    Attributes:
        chosen: For each client, step and row, one after the other: one if the row is in the batch.
        clients: What is known of each client: rows, steps, bar, first row, and where it begins in `chosen`.
        ends: Where each client's examples begin in each step, and where they end: steps x (clients + 1).
        totals: Examples of each step.
    """

    chosen: Tensor
    clients: Tensor
    ends: Tensor
    totals: Sequence[int]

    def packed(self, clients: int, slots: int) -> Tensor:
        """As `hush.training.gpu.pooled_cnn.step` takes them, steps x numbers, with room for so many clients and
        examples.
        """
        steps, number = len(self.ends), self.ends.shape[1] - 1
        out = torch.zeros(steps, clients + 1 + 2 * slots, dtype=torch.int32, device=self.ends.device)
        out[:, : number + 1] = self.ends
        out[:, number + 1 : clients + 1] = self.ends[:, -1:]
        _kernels(out).PLACE[number, steps](
            self.chosen, self.clients, self.ends, out, number, out.stride(0), clients + 1, slots,
            FIELDS=self.clients.shape[1], B=_BLOCK, num_warps=4,
        )  # fmt: skip
        return out


def can_sample(jobs: Sequence[Job], rngs: Sequence[DeviceRng | None]) -> bool:
    """Whether these clients' rows can be drawn on the device."""
    decisions = sum(job.plan.steps * job.plan.samples for job in jobs)
    plain = all(job.plan.sampler == "poisson" and job.persons is None and not job.plan.groups for job in jobs)
    return decisions <= _MOST and None not in rngs and plain


def sample(jobs: Sequence[Job], rngs: Sequence[DeviceRng | None], device: torch.device) -> RoundBatches:
    """The batches of all steps. Jobs with more steps come first."""
    sizes = [job.plan.steps * job.plan.samples for job in jobs]
    fields, begin = [], 0
    for job, size in zip(jobs, sizes, strict=True):
        fields.append((job.plan.samples, job.plan.steps, threshold(job.plan.rate), job.first_row, begin))
        begin += size
    clients = torch.tensor(fields, dtype=torch.int64).to(device)
    steps, number = jobs[0].plan.steps, len(jobs)
    chosen = torch.empty(begin, dtype=torch.uint8, device=device)
    counts = torch.zeros(steps, number, dtype=torch.int32, device=device)
    for first, end in _parts(sizes):
        words = torch.empty(sum(sizes[first:end]), dtype=torch.int64, device=device)
        for rng, own in zip(rngs[first:end], words.split(sizes[first:end]), strict=True):
            assert rng is not None
            rng.words(own)
        _kernels(words).DECIDE[end - first, jobs[first].plan.steps](
            words, clients, chosen, counts, first, number, FIELDS=clients.shape[1], B=_BLOCK, num_warps=4
        )
    ends = torch.zeros(steps, number + 1, dtype=torch.int32, device=device)
    ends[:, 1:] = counts.cumsum(1)
    return RoundBatches(chosen, clients, ends, ends[:, -1].tolist())


def _parts(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Clients whose words are drawn at a time."""
    parts, first, total = [], 0, 0
    for i, size in enumerate(sizes):
        if total + size > _WORDS and i > first:
            parts.append((first, i))
            first, total = i, 0
        total += size
    return [*parts, (first, len(sizes))]


def _kernels(like: Tensor) -> Any:
    return triton_kernels(like.device).sampling
