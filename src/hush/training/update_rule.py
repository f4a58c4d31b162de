"""The update rule of local training: y -= lr (H + drift + pull (y - start)).

H is the noised mean gradient. It is taken at y, or at the start for clients that ask for it. Every training path, on a
CPU or a GPU, takes its steps with this rule. Two fused kernels compute it, in one pass over the parameters
(`hush.training.gpu.kernels.update`) and without drift and pull (`hush.training.gpu.pooled_cnn`); tests compare them
with it.

Guarantees:
    - Drift and pull are added after the noise: they depend on the data only through what is released already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.training.job import Job


@dataclass(frozen=True)
class UpdateRule:
    """The rule for a group of clients, a row each.

    Attributes:
        start: Where the clients began, clients x p.
        lr: Step sizes, clients x 1. A client with step size zero does not move.
        drift: Added to the gradient in every step, clients x p, if any client has one.
        pull: How strongly a step pulls toward the start, clients x 1, if any does.
        at_start: Which clients take their gradients at the start, clients x 1, or a bool for all of them.
    """

    start: Tensor
    lr: Tensor
    drift: Tensor | None
    pull: Tensor | None
    at_start: Tensor | bool

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> UpdateRule:
        """Return the rule of these jobs."""
        start = torch.stack([job.vector for job in jobs])
        drift = pull = None
        if any(job.drift is not None for job in jobs):
            drift = drifts(jobs)
        if any(pull_of(job) for job in jobs):
            pull = start.new_tensor([[pull_of(job)] for job in jobs])
        mixed = torch.tensor([[job.at_start] for job in jobs], device=start.device)
        lr = start.new_tensor([[job.lr] for job in jobs])
        return cls(start, lr, drift, pull, mixed if any(job.at_start for job in jobs) else False)

    def gradient_point(self, vectors: Tensor) -> Tensor:
        """Return where the gradients of the next step are taken, given where the first clients are now."""
        if isinstance(self.at_start, bool):
            return self.start if self.at_start else vectors
        active = len(vectors)
        return torch.where(self.at_start[:active], self.start[:active], vectors)

    def step(self, vectors: Tensor, gradient: Tensor) -> None:
        """Move the first clients by one step, in place; `gradient` is their noised mean gradient."""
        active = len(gradient)
        now, step = vectors[:active], gradient
        if self.drift is not None:
            step = step + self.drift[:active]
        if self.pull is not None:
            step = step + self.pull[:active] * (now - self.start[:active])
        now.sub_(self.lr[:active] * step)


def pull_of(job: Job) -> float:
    """Return how strongly a job's steps pull toward the start: not at all if all gradients are taken there."""
    return 0.0 if job.at_start else job.proximal


def drifts(jobs: Sequence[Job]) -> Tensor:
    """Return the drift of each job, zero where there is none, jobs x p."""
    return torch.stack([torch.zeros_like(job.vector) if job.drift is None else job.drift for job in jobs])
