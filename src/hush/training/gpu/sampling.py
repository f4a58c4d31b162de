"""Sampling on the GPU, Poisson or of a fixed size: all batches of a round are drawn at once, so that no step waits for
the host.

Guarantees:
    - Rates are the plans'. A client's rows come from the device generator of its own source, all steps of a round in
      one call, so they do not depend on who trains beside it.

Edge cases:
    - `can_sample` is false where only the host may draw, for persons, for rows with rates of their own, and for rounds
      too long to be in memory at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from hush.privacy import device_draws
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
        clients: What is known of each client: rows, steps, bar, first row, where it begins in `chosen`, and the size of
            its batches if that is fixed, else -1.
        ends: Where each client's examples begin in each step, and where they end: steps x (clients + 1).
        totals: Examples of each step.
        largest: Examples of the largest batch of each step.
    """

    chosen: Tensor
    clients: Tensor
    ends: Tensor
    totals: Sequence[int]
    largest: Sequence[int]

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
    plain = all(job.persons is None and not job.plan.groups for job in jobs)
    return sum(map(decisions, jobs)) <= _MOST and None not in rngs and plain


def decisions(job: Job) -> int:
    """How many rows of a client there are to be chosen or not, in all steps."""
    return job.plan.steps * job.plan.samples


def sample(jobs: Sequence[Job], rngs: Sequence[DeviceRng | None], device: torch.device) -> RoundBatches:
    """The batches of all steps. Jobs with more steps come first."""
    sizes, drawing = list(map(decisions, jobs)), [rng for rng in rngs if rng is not None]
    bars = {plan: threshold(plan.rate) for plan in {job.plan for job in jobs}}
    fields, begin = [], 0
    for job, size in zip(jobs, sizes, strict=True):
        plan = job.plan
        fixed = plan.batch if plan.sampler == "fixed" else -1
        fields.append((plan.samples, plan.steps, bars[plan], job.first_row, begin, fixed))
        begin += size
    device_draws.prepare(drawing)
    clients = torch.tensor(fields, dtype=torch.int64).to(device)
    steps, number = jobs[0].plan.steps, len(jobs)
    chosen = torch.empty(begin, dtype=torch.uint8, device=device)
    counts = torch.zeros(steps, number, dtype=torch.int32, device=device)
    for first, end in _parts(sizes):
        words = torch.empty(sum(sizes[first:end]), dtype=torch.int64, device=device)
        firsts = [0, *accumulate(sizes[first:end])]
        device_draws.words(drawing[first:end], words, list(zip(firsts, sizes[first:end], strict=False)))
        samplers = {job.plan.sampler for job in jobs[first:end]}
        for sampler, kernel in (("poisson", _kernels(words).DECIDE), ("fixed", _kernels(words).LOWEST)):
            if sampler in samplers:
                kernel[end - first, jobs[first].plan.steps](
                    words, clients, chosen, counts, first, number, FIELDS=clients.shape[1], B=_BLOCK, num_warps=4
                )
    ends = torch.zeros(steps, number + 1, dtype=torch.int32, device=device)
    ends[:, 1:] = counts.cumsum(1)
    totals, largest = torch.stack([ends[:, -1], counts.amax(1)]).tolist()
    return RoundBatches(chosen, clients, ends, totals, largest)


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
