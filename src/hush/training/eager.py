"""Eager training: each step samples, sums, adds noise and updates, one operation after the other.

The base of every path that needs no CUDA graph. A subclass says how the sums of a group are computed.

Guarantees:
    - Rows, clip, noise and divisor come from the client's `PrivacyPlan`, which is also what is accounted.
    - A client draws from its own source in a fixed order (rows, then noise, step by step), so its update does not
      depend on who trains beside it, beyond rounding.
    - For a model with dropout it draws a key for each example of a step besides, from a stream of its own.

Edge cases:
    - A client with fewer steps stops earlier.
    - A batch may be empty; its step is noise alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from hush.models import Model
from hush.training.clipped_sum import ClientGroup, ClippedSum
from hush.training.grouping import similar_batches
from hush.training.job import Job
from hush.training.precision import Precision
from hush.training.update_rule import UpdateRule

# From the parameters of the first clients of a group, the rows that each sampled, their clips, and the keys of these
# rows where the model has dropout: their sums.
Keys = Sequence[Tensor] | None
GroupSums = Callable[[Tensor, Sequence[Tensor], Tensor, Keys], Tensor]


class EagerSum(ClippedSum):
    """Clipped sums that are computed eagerly."""

    def __init__(self, model: Model, x: Tensor, y: Tensor, physical_batch: int, precision: Precision) -> None:
        self.model, self.x, self.y = model, x, y
        self.physical_batch, self.precision = physical_batch, precision

    def groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Return jobs of similar batch size."""
        return similar_batches(jobs)

    def start(self, jobs: Sequence[Job], number: int, resources: ExitStack) -> ClientGroup:
        """Return a group that computes its sums with `sums_of`."""
        return EagerGroup(jobs, self.sums_of(jobs), self.model.keyed)

    @abstractmethod
    def sums_of(self, jobs: Sequence[Job]) -> GroupSums:
        """Return the function that computes the sums of a group."""


class EagerGroup(ClientGroup):
    """Clients that step together."""

    def __init__(self, jobs: Sequence[Job], sums: GroupSums, keyed: bool = False) -> None:
        self.jobs, self.steps, self._keyed = jobs, jobs[0].plan.steps, keyed
        self._sums, self._rule = sums, UpdateRule.of(jobs)
        self._vectors = self._rule.start.clone()
        self._clips = torch.tensor([job.plan.clip for job in jobs], dtype=torch.float64, device=self._vectors.device)

    @property
    def vectors(self) -> Tensor:
        """Where the clients are now."""
        return self._vectors

    def step(self) -> None:
        """Take the next step."""
        step = self.done
        jobs = [job for job in self.jobs if job.plan.steps > step]
        active = len(jobs)
        rows = [job.plan.batch_rows(job.source, job.persons) + job.first_row for job in jobs]
        keys = None
        if self._keyed:
            keys = [job.source.keys(own.numel()).view_as(own) for job, own in zip(jobs, rows, strict=True)]
        sums = self._sums(self._rule.gradient_point(self._vectors[:active]), rows, self._clips[:active], keys)
        pairs = zip(jobs, sums.unbind(), strict=True)
        noised = [job.plan.privatise(total, job.source, job.vector.dtype) for job, total in pairs]
        self._rule.step(self._vectors, torch.stack(noised))


def padded_rows(rows: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return row numbers padded to the longest batch, clients x examples, and the mask of the real ones."""
    lengths = torch.tensor([len(own) for own in rows])
    table = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    mask = torch.arange(table.shape[1])[None] < lengths[:, None]
    return table.to(device), mask.to(device)
