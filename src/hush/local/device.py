"""DP-SGD on an accelerator: groups of alike clients side by side, while the host draws ahead.

Guarantees:
    - Those of `hush.local.train`. The mean and the noise of a step are the plan's: what `privatise` makes of a sum and
      of its noise is read off the plan itself, since it is linear in both.
    - Noise that can be replayed is drawn on the device, from the twin of each client's own source.

Edge cases:
    - Clients that have done their steps stay in the group without moving.
    - `suits` says which jobs can be trained this way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from hush.local.ahead import DEPTH, Ahead, places
from hush.local.job import Job
from hush.local.precision import Precision
from hush.local.replay import Kind, Replay, kept
from hush.models import Model
from hush.privacy.noise import Twin
from hush.privacy.plan import PrivacyPlan

_MOST = 2**26  # numbers of noise that may wait on the host
_THREADS = 4  # more of them only wait for the interpreter


class _Constant:
    """A source without chance, to read off a plan what it does."""

    def __init__(self, value: float) -> None:
        self._value = value

    def uniform(self, size: int) -> Tensor:
        return torch.full((size,), self._value, dtype=torch.float64)

    def chosen(self, size: int, rate: float) -> Tensor:
        return torch.arange(size if self._value < rate else 0)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.full((size,), self._value, dtype=dtype)

    def twin(self, device: torch.device) -> None:
        return None

    def discrete(self, size: int, sigma: int) -> Tensor:
        return torch.full((size,), int(self._value), dtype=torch.int64)


def suits(jobs: Sequence[Job]) -> bool:
    """Whether noise is added as a multiple of normal numbers, and drawn on the device or little enough to wait."""
    if any(job.plan.discrete for job in jobs):
        return False
    return DEPTH * len(jobs) * jobs[0].vector.numel() <= _MOST or None not in _twins(jobs)


def train_groups(
    model: Model, x: Tensor, y: Tensor, groups: Sequence[Sequence[Job]], limit: int, precision: Precision
) -> list[Tensor]:
    """The vectors of each group at its end, clients x p. Jobs with more steps come first in a group."""
    here = torch.cuda.current_stream(x.device)
    draws = [sum(job.plan.steps for job in jobs) for jobs in groups]
    most = min(_THREADS, os.cpu_count() or 1)
    running = [
        _Group(jobs, _replay(model, x, y, number, jobs, limit, precision), round(most * n / sum(draws)))
        for number, (jobs, n) in enumerate(zip(groups, draws, strict=True))
    ]
    # Every share of draws needs a thread of its own, or it could wait for one that waits for it.
    with ThreadPoolExecutor(most + len(groups)) as pool:
        try:
            for group in running:
                group.stream.wait_stream(here)
                group.ahead.start(pool)
            while waiting := [group for group in running if group.done < group.steps]:
                # The one that is furthest behind, so that large and small steps share the device.
                group = min(waiting, key=lambda g: g.done / g.steps)
                with torch.cuda.stream(group.stream):
                    group.advance()
        finally:
            for group in running:
                group.ahead.stop()
    for group in running:
        here.wait_stream(group.stream)
    return [group.replay.vectors.clone() for group in running]


class _Group:
    """Clients that step together."""

    def __init__(self, jobs: Sequence[Job], replay: Replay, threads: int) -> None:
        self.replay, self.done, self.steps = replay, 0, jobs[0].plan.steps
        twins = _twins(jobs)
        # One that only the host may draw for makes the host draw for all of its group.
        alone = None in twins
        self._loud = [] if alone else [(n, t) for n, t in zip(replay.noise.unbind(), twins, strict=True) if t]
        self.ahead = Ahead(jobs, replay.noise.shape[1], replay.noise.dtype, max(1, threads), not self._loud)
        self.stream = torch.cuda.Stream()
        self._jobs, self._active, self._released = jobs, -1, 0
        self._grain = max(4, jobs[0].plan.batch // 8)
        self._copied = [torch.cuda.Event() for _ in range(DEPTH)]
        place(replay, jobs)

    def advance(self) -> None:
        """Launch one step."""
        self._release()
        drawn = self.ahead.take(self.done)
        if drawn.active != self._active:
            self._set(drawn.active)
        self.replay.load(drawn.rows, drawn.noise)
        for (noise, twin), job in zip(self._loud, self._jobs[: drawn.active], strict=False):
            if job.plan.private:
                twin.fill(noise)
        self._copied[self.done % DEPTH].record()
        width = -(-drawn.longest // self._grain) * self._grain
        self.replay.step(drawn.rows, min(width, drawn.rows.shape[1]))
        self.done += 1

    def _release(self) -> None:
        """Give back the places of steps that are copied: all that are, and one at least if there is no other room."""
        while self._released < self.done:
            copied = self._copied[self._released % DEPTH]
            if self._released > self.done - DEPTH and not copied.query():
                break
            copied.synchronize()
            self.ahead.release()
            self._released += 1

    def _set(self, active: int) -> None:
        """Let the first clients move, and no others."""
        self.replay.scales.copy_(scales(self._jobs, active, self.replay.scales.dtype))
        self._active = active


def _replay(
    model: Model, x: Tensor, y: Tensor, number: int, jobs: Sequence[Job], limit: int, precision: Precision
) -> Replay:
    kind: Kind = "still" if jobs[0].still else "corrected" if any(job.corrected for job in jobs) else "plain"
    return kept(model, x, y, number, (len(jobs), places(jobs)), limit, precision, kind)


def _twins(jobs: Sequence[Job]) -> list[Twin | None]:
    return [job.source.twin(job.vector.device) for job in jobs]


def place(replay: Replay, jobs: Sequence[Job]) -> None:
    """Put the clients at their starts."""
    replay.vectors.copy_(torch.stack([job.vector for job in jobs]))
    replay.clips.copy_(torch.tensor([job.plan.clip for job in jobs], dtype=torch.float64))
    if len(replay.start):
        replay.start.copy_(replay.vectors)
        replay.drift.copy_(torch.stack([torch.zeros_like(j.vector) if j.drift is None else j.drift for j in jobs]))


def scales(jobs: Sequence[Job], active: int, dtype: torch.dtype) -> Tensor:
    """What a replay multiplies with, so that the first clients move and no others."""
    values = [
        (
            job.lr * _read(job.plan, 1.0, 0.0, dtype),
            job.lr * _read(job.plan, 0.0, 1.0, dtype),
            job.lr,
            0.0 if job.still else job.lr * job.proximal,
        )
        for job in jobs[:active]
    ]
    return torch.tensor([*values, *[(0.0,) * 4] * (len(jobs) - active)], dtype=dtype).t()[..., None]


def _read(plan: PrivacyPlan, total: float, noise: float, dtype: torch.dtype) -> float:
    """What the plan makes of that sum and that noise."""
    return float(plan.privatise(torch.full((1,), total, dtype=dtype), _Constant(noise)))
