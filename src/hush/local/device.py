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
from typing import Protocol

import torch
from torch import Tensor

from hush.local.ahead import DEPTH, Ahead, Drawn, places
from hush.local.job import Job
from hush.local.linear import Closed
from hush.local.precision import Precision
from hush.local.replay import Kind, Replay, kept
from hush.models import Model
from hush.privacy.noise import Twin
from hush.privacy.plan import PrivacyPlan

_MOST = 2**26  # numbers of noise that may wait on the host
THREADS = 4  # more of them only wait for the interpreter
_TOGETHER = 2**19  # numbers of noise that are drawn on the device at a time for a client


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
    return DEPTH * len(jobs) * jobs[0].vector.numel() <= _MOST or None not in twins(jobs)


def train_groups(
    model: Model, x: Tensor, y: Tensor, groups: Sequence[Sequence[Job]], limit: int, precision: Precision,
    form: Closed | None = None,
) -> list[Tensor]:  # fmt: skip
    """The vectors of each group at its end, clients x p. Jobs with more steps come first in a group.

    Jobs whose rows are counted from a centre need the closed form of their model.
    """
    here = torch.cuda.current_stream(x.device)
    draws = [sum(job.plan.steps for job in jobs) for jobs in groups]
    most = min(THREADS, os.cpu_count() or 1)
    running = [
        _Group(jobs, _replay(model, x, y, number, jobs, limit, precision, form), round(most * n / sum(draws)))
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
        self.stream = torch.cuda.Stream()
        self._jobs, self._active, self._grain = jobs, -1, max(4, jobs[0].plan.batch // 8)
        found = twins(jobs)
        # One that only the host may draw for makes the host draw for all of its group.
        self._bank = None if None in found else Bank(jobs, [twin for twin in found if twin], replay.noise)
        self.ahead = Ahead(jobs, replay.noise.shape[1], replay.noise.dtype, max(1, threads), self._bank is None)
        self._copied = [torch.cuda.Event() for _ in range(DEPTH)]
        self._taken = self._released = 0
        self._now: Drawn | None = None
        self._tables = replay.table
        self._moving = scales(jobs, replay.scales.dtype).to(replay.scales.device)
        place(replay, jobs)

    def advance(self) -> None:
        """Launch one step."""
        k = self.done % self.ahead.steps
        if k == 0 or self._now is None:
            self._take()
        drawn = self._now
        assert drawn is not None
        if drawn.active[k] != self._active:
            self._active = drawn.active[k]
            self.replay.scales.zero_()
            self.replay.scales[:, : self._active].copy_(self._moving[:, : self._active])
        noise = self._bank.step(self.done, self._active) if self._bank is not None else None
        if drawn.noise is not None:
            noise = drawn.noise[k]
        self.replay.load(self._tables[k], noise)
        if drawn.noise is not None:
            self._copied[(self._taken - 1) % DEPTH].record()
        if k in drawn.wide:
            self.replay.step(drawn.wide[k], drawn.longest[k])
        else:
            width = -(-drawn.longest[k] // self._grain) * self._grain
            self.replay.step(self.replay.table, min(width, self.replay.table.shape[1]))
        self.done += 1

    def _take(self) -> None:
        """Have the next hand-over, its tables on the device."""
        self._release()
        self._now = self.ahead.take(self._taken)
        self._tables = self._now.rows.to(self.replay.table.device, non_blocking=True)
        self._copied[self._taken % DEPTH].record()
        self._taken += 1

    def _release(self) -> None:
        """Give back the places of what is copied: all that are, and one at least if there is no other room."""
        while self._released < self._taken:
            copied = self._copied[self._released % DEPTH]
            if self._released > self._taken - DEPTH and not copied.query():
                break
            copied.synchronize()
            self.ahead.release()
            self._released += 1


class Bank:
    """Noise of several steps, drawn on the device at a time: a launch for each client and step would cost more."""

    def __init__(self, jobs: Sequence[Job], twins: Sequence[Twin], like: Tensor) -> None:
        self._jobs, self._twins = jobs, twins
        # A number that does not depend on who else is in the group, since what a client draws must not either.
        self._steps = max(1, _TOGETHER // like.shape[1])
        self._like, self._noise = like, like[:, None]

    def step(self, number: int, active: int) -> Tensor:
        """The noise of that step, clients x p; steps are asked for in order."""
        if number == 0:
            self._noise = self._like.new_zeros(len(self._jobs), self._steps, self._like.shape[1])
        at = number % self._steps
        if at == 0:
            for job, twin, own in zip(self._jobs[:active], self._twins, self._noise.unbind(), strict=False):
                if job.plan.private:
                    twin.fill(own)
        return self._noise[:, at]


def _replay(
    model: Model, x: Tensor, y: Tensor, number: int, jobs: Sequence[Job], limit: int, precision: Precision,
    form: Closed | None,
) -> Replay:  # fmt: skip
    kind: Kind = "still" if jobs[0].still else "corrected" if any(job.corrected for job in jobs) else "plain"
    replay = kept(model, x, y, number, (len(jobs), places(jobs)), limit, precision, kind, form)
    if form is not None:
        replay.centre([job.centre for job in jobs])
    return replay


def twins(jobs: Sequence[Job]) -> list[Twin | None]:
    """What draws noise on the device for each client, where anything may."""
    return [job.source.twin(job.vector.device) for job in jobs]


class Places(Protocol):
    """Where a recorded step finds its clients: those of `hush.local.replay` and `hush.local.chain_step`."""

    vectors: Tensor
    clips: Tensor
    start: Tensor
    drift: Tensor


def place(step: Places, jobs: Sequence[Job]) -> None:
    """Put the clients at their starts."""
    number = len(jobs)
    step.vectors[:number].copy_(torch.stack([job.vector for job in jobs]))
    step.clips[:number].copy_(torch.tensor([job.plan.clip for job in jobs], dtype=torch.float64))
    if len(step.start):
        step.start.copy_(step.vectors)
        drifts = [torch.zeros_like(job.vector) if job.drift is None else job.drift for job in jobs]
        step.drift[:number].copy_(torch.stack(drifts))


def scales(jobs: Sequence[Job], dtype: torch.dtype) -> Tensor:
    """What a replay multiplies with, four times clients x 1; with zeros instead, a client stays where it is."""
    seen: dict[PrivacyPlan, tuple[float, float]] = {}
    for plan in {job.plan for job in jobs}:
        seen[plan] = _read(plan, 1.0, 0.0, dtype), _read(plan, 0.0, 1.0, dtype)
    values = [
        (job.lr * seen[job.plan][0], job.lr * seen[job.plan][1], job.lr, 0.0 if job.still else job.lr * job.proximal)
        for job in jobs
    ]
    return torch.tensor(values, dtype=dtype).t()[..., None]


def _read(plan: PrivacyPlan, total: float, noise: float, dtype: torch.dtype) -> float:
    """What the plan makes of that sum and that noise."""
    return float(plan.privatise(torch.full((1,), total, dtype=dtype), _Constant(noise)))
