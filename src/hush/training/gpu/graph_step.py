"""A training step for a fixed number of clients, captured as a CUDA graph and replayed.

Everything the step reads and writes lies at fixed addresses, which is what makes a replay possible.

Guarantees:
    - A replay computes what the step computes.
    - The mean and the noise of a step are the plan's: what `privatise` makes of a sum and of its noise is read off the
      plan itself, since it is linear in both.
    - Clients stay where they are while their step is captured.

Edge cases:
    - Clients that have done their steps stay in the group without moving.
    - Graphs share no memory with one another but within a pool, so that those of different pools may run at once.
      PyTorch keeps one workspace for matrix products by the stream on which they are captured, and all graphs are
      captured on the same: two of them, replayed at once, would overwrite each other's sums. It is dropped before and
      after a capture, so that each graph has a workspace of its own in its pool.
    - A step with code that cannot be captured runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from hush.privacy.plan import PrivacyPlan
from hush.training.job import Job
from hush.training.precision import triton_kernels
from hush.training.update_rule import UpdateRule, drifts, pull_of

StepKind = Literal["plain", "corrected", "at start"]


class GraphStep:
    """The buffers of a step, and the step itself but for its clipped sums.

    Attributes:
        vectors: Parameters, clients x p: what a step changes.
        noise: Standard normal numbers, clients x p.
        clips: Norm bound of each client.
        scales: Factors of the sum of clipped gradients and of the noise in the mean gradient, step size, and pull; four
            times clients x 1. If all are zero, a client stays where it is.
        start: Where the clients began, clients x p; empty in a plain step.
        drift: What is added to every step, clients x p; likewise.
    """

    def __init__(self, like: Tensor, clients: int, size: int, kind: StepKind) -> None:
        self.vectors, self.noise = (like.new_zeros(clients, size) for _ in range(2))
        plain = kind == "plain"
        self.start, self.drift = (like.new_zeros(0 if plain else clients, size) for _ in range(2))
        self.scales = like.new_zeros(4, clients, 1, dtype=torch.float64)
        self.clips = like.new_ones(clients, dtype=torch.float64)
        drift, pull = (None, None) if plain else (self.drift, self.scales[3])
        self.rule = UpdateRule(self.start, self.scales[2], drift, pull, kind == "at start")
        self._active, self._moving = 0, self.scales.clone()
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}
        self._capturable = True

    def load_clients(self, jobs: Sequence[Job]) -> None:
        """Put the clients at their starts."""
        number = len(jobs)
        self.vectors[:number].copy_(torch.stack([job.vector for job in jobs]))
        self.clips[:number].copy_(torch.tensor([job.plan.clip for job in jobs], dtype=torch.float64))
        if len(self.start):
            self.start.copy_(self.vectors)
            self.drift[:number].copy_(drifts(jobs))
        self._active, self._moving = -1, step_scales(jobs).to(self.scales.device)

    def move_first(self, active: int) -> None:
        """Let the first clients move and no others."""
        if active != self._active:
            self._active = active
            self.scales.zero_()
            self.scales[:, :active].copy_(self._moving[:, :active])

    def update(self, sums: Tensor) -> None:
        """Apply the update rule to the sums and the noise."""
        kernels = triton_kernels(self.vectors.device)
        if kernels is not None and self.vectors.dtype == torch.float32:
            kernels.update.update(self.vectors, sums, self.noise, self.drift, self.start, self.scales)
            return
        mean, deviation = self.scales[:2]
        # In float64 until the noise is added; what is rounded after that is no longer private.
        self.rule.step(self.vectors, mean * sums + deviation * self.noise)

    def replay(self, size: int, run: Callable[[], None], capturable: bool, pool: Any = None) -> None:
        """Replay the graph of steps of that size, capturing it the first time; run the step if there can be none."""
        if size not in self._graphs:
            # What could not be captured once is not tried for other sizes: an attempt takes the memory of a step.
            tried = capturable and self._capturable
            self._graphs[size] = _captured(run, self._moving_factors(), pool) if tried else None
            self._capturable = self._capturable and (not tried or self._graphs[size] is not None)
        graph = self._graphs[size]
        if graph is None:
            run()
        else:
            graph.replay()

    def _moving_factors(self) -> Sequence[Tensor]:
        """What is set to zero while a step is captured, so that no client moves."""
        return (self.scales,)


def _captured(run: Callable[[], None], zeroed: Sequence[Tensor], pool: Any) -> torch.cuda.CUDAGraph | None:
    """The step as a graph, if it can be one."""
    before = [tensor.clone() for tensor in zeroed]
    for tensor in zeroed:
        tensor.zero_()
    graph = torch.cuda.CUDAGraph()
    # A capture that fails leaves PyTorch's own generator in a state in which it refuses to draw.
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    drawn = generator.clone_state()
    try:
        for _ in range(2):  # the first times, libraries set themselves up
            run()
        torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.graph(graph, pool=pool):
            run()
    except RuntimeError:
        generator.graphsafe_set_state(drawn)
        return None
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        for tensor, value in zip(zeroed, before, strict=True):
            tensor.copy_(value)
    return graph


def kind_of(jobs: Sequence[Job]) -> StepKind:
    """The kind of step that a group of jobs needs; all of them or none take their gradients at the start."""
    if jobs[0].at_start:
        return "at start"
    return "corrected" if any(job.drift is not None or pull_of(job) for job in jobs) else "plain"


def step_scales(jobs: Sequence[Job]) -> Tensor:
    """The `scales` of a step in which all jobs move, four times jobs x 1."""
    read: dict[PrivacyPlan, tuple[float, float]] = {}
    for plan in {job.plan for job in jobs}:
        read[plan] = _privatised(plan, 1.0, 0.0), _privatised(plan, 0.0, 1.0)
    values = [(*read[job.plan], job.lr, pull_of(job)) for job in jobs]
    return torch.tensor(values, dtype=torch.float64).t()[..., None]


def _privatised(plan: PrivacyPlan, total: float, noise: float) -> float:
    """What the plan makes of that sum and that noise."""
    return float(plan.privatise(torch.full((1,), total, dtype=torch.float64), _ConstantSource(noise)))


class _ConstantSource:
    """A source without randomness, to read off a plan what it does."""

    def __init__(self, value: float) -> None:
        self._value = value

    def uniform(self, size: int) -> Tensor:
        return torch.full((size,), self._value, dtype=torch.float64)

    def chosen(self, size: int, rate: float) -> Tensor:
        return torch.arange(size if self._value < rate else 0)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.full((size,), self._value, dtype=dtype)

    def keys(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64)

    def device_rng(self, device: torch.device) -> None:
        return None

    def discrete(self, size: int, sigma: int) -> Tensor:
        return torch.full((size,), int(self._value), dtype=torch.int64)
