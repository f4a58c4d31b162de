"""Clipped sums of a linear layer by its own kernels: a few launches for a step of all clients of any number of runs.

Guarantees:
    - Those of `hush.training.clipped_sum.ClippedSum`.
    - Batches and noise are drawn on the device, from the device generator of each client's own source.

Edge cases:
    - Clients with fewer steps stop earlier; their batches may be empty, and nothing is padded.
    - Rounds that are too long to be sampled at once are taken by some clients after the others.
    - Rows that only the host may draw, or persons', are left to other paths (`can_train`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from hush.privacy.source import DeviceRng
from hush.training.clipped_sum import ClientGroup, ClippedSum
from hush.training.closed_form import LinearLayer, input_means
from hush.training.gpu.graph_step import step_scales
from hush.training.gpu.noise_bank import NoiseBank
from hush.training.gpu.sampling import can_sample, decisions, sample
from hush.training.job import Job
from hush.training.precision import triton_kernels
from hush.training.update_rule import drifts, pull_of

_CLASSES = 128
_AT_ONCE = 1 << 28  # rows times steps that are sampled at a time


class LinearSum(ClippedSum):
    """Clipped sums of a linear layer, of all clients at once."""

    subtracts_input_mean = True

    def __init__(
        self, layer: LinearLayer, x: Tensor, y: Tensor, jobs: Sequence[Job], rngs: Sequence[DeviceRng | None]
    ) -> None:
        # No gradient of an example is formed: nothing depends on how many are worked on at a time.
        self.physical_batch = max(1, len(x))
        self._layer, self._x, self._y = layer, x, y
        self._rngs = {id(job): rng for job, rng in zip(jobs, rngs, strict=True)}

    def groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """As many jobs together as are sampled at a time."""
        groups: list[list[int]] = []
        room = 0
        for i in sorted(range(len(jobs)), key=lambda i: -jobs[i].plan.steps):
            if not groups or decisions(jobs[i]) > room:
                groups.append([])
                room = _AT_ONCE
            groups[-1].append(i)
            room -= decisions(jobs[i])
        return groups

    def start(self, jobs: Sequence[Job], number: int, resources: ExitStack) -> ClientGroup:
        """A group whose batches and noise are drawn on the device."""
        rngs = [rng for job in jobs if (rng := self._rngs[id(job)]) is not None]
        return _LinearGroup(jobs, rngs, self._layer, self._x, self._y)


class _LinearGroup(ClientGroup):
    """Clients that step together. What the steps need is drawn with the first of them, and kept up to the last."""

    def __init__(
        self, jobs: Sequence[Job], rngs: Sequence[DeviceRng], layer: LinearLayer, x: Tensor, y: Tensor
    ) -> None:
        self.jobs, self.steps = jobs, jobs[0].plan.steps
        self._layer, self._x, self._y, self._rngs = layer, x, y, rngs
        start = torch.stack([job.vector for job in jobs])
        self._points = torch.stack([start, start])
        self._fewest = [job.plan.steps for job in reversed(jobs)]
        self._ready: _Ready | None = None

    @property
    def vectors(self) -> Tensor:
        """Where the clients are now."""
        return self._points[0]

    def step(self) -> None:
        """Launch one step."""
        number = self.done
        if self._ready is None:
            self._ready = _Ready(self.jobs, self._rngs, self._layer, self._x, self._y, self._points)
        self._ready.take(number, len(self.jobs) - bisect_right(self._fewest, number))
        if number + 1 == self.steps:
            self._ready = None


class _Ready:
    """The buffers of a group, its batches, and its noise."""

    def __init__(
        self, jobs: Sequence[Job], rngs: Sequence[DeviceRng], layer: LinearLayer, x: Tensor, y: Tensor, points: Tensor
    ) -> None:
        device = x.device
        batches = sample(jobs, rngs, device)
        self._totals, self._largest = batches.totals, batches.largest
        packed = batches.packed(len(jobs), max(1, *batches.totals))
        means = input_means(jobs)
        self._step = triton_kernels(device).linear.Step(
            layer=layer,
            x=x,
            y=y,
            points=points,
            from_start=torch.tensor([job.at_start for job in jobs], dtype=torch.int8).to(device),
            means=None if means is None else means.to(device).contiguous(),
            packed=packed,
            clips=torch.tensor([job.plan.clip for job in jobs], dtype=torch.float64).to(device),
            drift=drifts(jobs) if any(job.drift is not None for job in jobs) else None,
            scales=step_scales(jobs).contiguous().to(device),
            pulls=any(pull_of(job) for job in jobs),
        )
        noisy = any(job.plan.private for job in jobs)
        # The bank may draw in the buffer that it is given: never in the parameters.
        self._bank = NoiseBank(jobs, rngs, torch.zeros_like(points[0])) if noisy else None

    def take(self, number: int, active: int) -> None:
        """Launch the step of that number for the first clients."""
        noise = None if self._bank is None else self._bank.step(number, active)
        self._step.take(number, active, self._largest[number], self._totals[number], noise)


def can_train(layer: LinearLayer, x: Tensor, y: Tensor, jobs: Sequence[Job], rngs: Sequence[DeviceRng | None]) -> bool:
    """Whether the kernels can train these jobs: numbers, loss, and how batches are drawn."""
    kernels = triton_kernels(x.device)
    if kernels is None or kernels.linear.name_of(layer.loss) is None or layer.classes > _CLASSES:
        return False
    targets = torch.int64 if layer.loss.softmax else torch.float32
    if x.dtype != torch.float32 or y.dtype != targets or not (x.is_contiguous() and y.is_contiguous()):
        return False
    plain = all(job.vector.dtype == torch.float32 and not job.plan.discrete for job in jobs)
    return plain and all(can_sample([job], [rng]) for job, rng in zip(jobs, rngs, strict=True))


def linear_sums(layer: LinearLayer, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    """The clipped sums of one batch; arguments as those of `hush.training.select.clipped_sums`."""
    number, counts, rows = len(mask), mask.sum(1), mask.flatten().nonzero()[:, 0]
    packed = torch.cat([counts.new_zeros(1), counts.cumsum(0), rows]).int()[None]
    flat, targets = x.flatten(0, 1).flatten(1).contiguous(), y.flatten(0, 1).contiguous()
    step = triton_kernels(x.device).linear.Step(
        layer=layer,
        x=flat,
        y=targets,
        points=torch.stack([vectors, vectors]),
        from_start=torch.zeros(number, dtype=torch.int8, device=x.device),
        means=None,
        packed=packed,
        clips=clips,
        drift=None,
        scales=clips.new_zeros(4, number, 1),
        pulls=False,
    )
    parts, length = step.sums(0, number, max(1, int(counts.max())), len(rows))
    used = torch.arange(len(parts), device=x.device)[:, None] * length < counts
    found: Tensor = torch.where(used[..., None], parts, 0.0).sum(0)
    return found
