"""DP-SGD for many clients at once.

Guarantees:
    - Rows, clip, noise and divisor come from the client's `PrivacyPlan`, which is also what is accounted.
    - A client draws from its own source in a fixed order (rows, then noise, step by step), so its update does not
      depend on who trains beside it, beyond rounding.

Edge cases:
    - Clients with different batch sizes, steps and amounts of data train together: alike ones are grouped, shorter
      batches are padded and masked, and a client with fewer steps stops earlier.
    - A batch may be empty; its step is noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from hush.local.per_example import clipped_sums
from hush.models import Model
from hush.privacy.noise import Source
from hush.privacy.plan import PrivacyPlan


@dataclass(frozen=True)
class Job:
    """One client's training in one round."""

    vector: Tensor
    first_row: int
    plan: PrivacyPlan
    lr: float
    source: Source


def train(model: Model, x: Tensor, y: Tensor, jobs: Sequence[Job], physical_batch: int = 4096) -> list[Tensor]:
    """The update (end minus start) of each job. A job's rows are `x[first_row : first_row + plan.samples]`."""
    updates: list[Tensor] = [torch.empty(0)] * len(jobs)
    for group in _alike(jobs):
        ends = _train_group(model, x, y, [jobs[i] for i in group], physical_batch)
        for i, end in zip(group, ends, strict=True):
            updates[i] = end - jobs[i].vector
    return updates


def _alike(jobs: Sequence[Job]) -> Iterator[list[int]]:
    """Groups of similar batch size, longest first within a group, so that little is padded."""

    def octave(i: int) -> int:
        return round(2 * math.log2(jobs[i].plan.batch))

    order = sorted(range(len(jobs)), key=lambda i: (octave(i), -jobs[i].plan.steps))
    for _, group in groupby(order, key=octave):
        yield list(group)


def _train_group(model: Model, x: Tensor, y: Tensor, jobs: Sequence[Job], physical_batch: int) -> Tensor:
    vectors = torch.stack([job.vector for job in jobs])
    clips = torch.tensor([job.plan.clip for job in jobs], dtype=torch.float64, device=vectors.device)
    for step in range(jobs[0].plan.steps):
        active = sum(job.plan.steps > step for job in jobs)
        rows, mask = _batch(jobs[:active], x.device)
        sums = clipped_sums(model, vectors[:active], x[rows], y[rows], mask, clips[:active], physical_batch)
        for i, job in enumerate(jobs[:active]):
            vectors[i] -= job.lr * job.plan.privatise(sums[i], job.source)
    return vectors


def _batch(jobs: Sequence[Job], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row numbers of each client's Poisson batch, padded to the longest, and the mask of the real ones."""
    drawn = [job.plan.sample(job.source) + job.first_row for job in jobs]
    longest = max(1, max(len(rows) for rows in drawn))
    rows = torch.stack(
        [torch.nn.functional.pad(r, (0, longest - len(r)), value=jobs[i].first_row) for i, r in enumerate(drawn)]
    )
    lengths = torch.tensor([len(r) for r in drawn])
    mask = torch.arange(longest)[None] < lengths[:, None]
    return rows.to(device), mask.to(device)
