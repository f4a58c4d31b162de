"""A step over a pooled CNN for clients with batches of any size, captured as a CUDA graph and replayed.

A graph serves every step of up to so many examples: programs without an example end at once. So there are few sizes,
each twice the one before.

Guarantees:
    - Those of `hush.training.gpu.graph_step`.

Edge cases:
    - Clients beyond those that train have no examples and stay where they are.
    - A step with more examples than there is room for, or too many for a graph to pay off, runs eagerly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from hush.models import Model
from hush.training import memory
from hush.training.gpu.graph_step import GraphStep, StepKind
from hush.training.gpu.pooled_cnn.network import PooledCnn
from hush.training.job import Job
from hush.training.precision import Precision, triton_kernels, triton_precision

_LEAST = 64  # examples of the smallest graph
_MOST = 1 << 13  # of the largest


class PooledCnnStep(GraphStep):
    """A step over packed batches.

    Attributes:
        slots: Examples of a step for which there is room.
        limit: Examples to work on at a time.
        stream: Where its work goes.
    """

    def __init__(
        self, model: Model, network: PooledCnn, data: tuple[Tensor, Tensor], clients: int, slots: int, limit: int,
        products: str, kind: StepKind,
    ) -> None:  # fmt: skip
        self._x, self._y, self._products, self.slots, self.limit = *data, products, slots, limit
        like = self._x
        super().__init__(like, clients, model.layout.size, kind)
        self._launch, self._plain = triton_kernels(like.device).pooled_cnn, kind == "plain"
        self._sums = torch.zeros_like(self.vectors, dtype=torch.float64)
        # The factors of sum and noise times the step size, as the fused update takes them.
        self._fused_scales = torch.zeros_like(self.scales[:2])
        place = like.new_zeros(clients + 3 + 2 * slots, dtype=torch.int32)
        self._packed, self._queue = place[:-2], like.new_zeros(4, dtype=torch.int64)
        # Beside the factors: zero while a step is captured, so that the queue stays where it is.
        self._advance = torch.ones_like(self._queue[:1])
        self._queued = self._launch.Queue(self._queue, place, self._advance)
        self._space = self._launch.Workspace(network, max(1, min(slots, limit)), like.device)
        # Always the same, because memory is used again only on the stream it was asked for.
        self.stream = torch.cuda.Stream(like.device) if like.is_cuda else None

    @property
    def clients(self) -> int:
        """Clients for which there is room."""
        return len(self.vectors)

    def packed(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """The rows of the first clients, as a step takes them; longer than usual if there is not enough room."""
        counts = np.array([len(own) for own in rows] + [0] * (self.clients - len(rows)))
        total = int(counts.sum())
        room = max(total, self.slots)
        out = np.zeros(self.clients + 1 + 2 * room, dtype=np.int32)
        np.cumsum(counts, out=out[1 : self.clients + 1])
        first = self.clients + 1
        if total:
            np.concatenate(rows, out=out[first : first + total], casting="same_kind")
        out[first + room : first + room + total] = np.repeat(np.arange(self.clients, dtype=np.int32), counts)
        return out

    def move_first(self, active: int) -> None:
        """Let the first clients move and no others."""
        if active != self._active:
            super().move_first(active)
            torch.mul(self.scales[:2], self.scales[2], out=self._fused_scales)

    def step(self, packed: Tensor, noise: Tensor | None, examples: int) -> None:
        """One step over so many examples."""
        if noise is not None:
            self.noise[: len(noise)].copy_(noise, non_blocking=True)
        if len(packed) != len(self._packed):
            self._run(packed.to(self._packed.device), examples)
            return
        self._packed.copy_(packed, non_blocking=True)
        size = min(_size(examples), self.slots)
        if size > min(_MOST, self._space.examples):
            self._run(self._packed, examples)
            return
        self.replay(size, lambda: self._run(self._packed, size), self.vectors.is_cuda)

    def enqueue(self, packed: Tensor, noise: Tensor, most: int) -> bool:
        """Queue packed batches of several steps, of at most so many examples; false if steps must be given one by one.

        Args:
            packed: Steps x numbers.
            noise: Clients x steps x p: noise of the first steps, and over again of those that follow.
            most: Examples of the largest batch.
        """
        able = self._plain and most <= min(_MOST, self._space.examples, self.slots)
        if able:
            state = [packed.data_ptr(), 0, noise.data_ptr(), noise.shape[1]]
            self._queue.copy_(torch.tensor(state), non_blocking=True)
        return able

    def queued_step(self, examples: int) -> None:
        """One step over the next batch of the queue, of that many examples."""
        size = min(_size(examples), self._space.examples, self.slots)
        # Beside the graphs of other steps.
        self.replay(-size, lambda: self._run_queued(size), self.vectors.is_cuda)

    def _run_queued(self, size: int) -> None:
        self._launch.queued_step(
            self._space, self.vectors, self._x, self._y, self._queued, size, self.clips, self._products,
            self._fused_scales,
        )  # fmt: skip

    def _run(self, packed: Tensor, examples: int) -> None:
        room = (len(packed) - self.clients - 1) // 2
        ends, rows, owner = packed.split([self.clients + 1, room, room])
        batch = self._launch.Batch(rows[:examples], owner[:examples], ends)
        at = self.rule.gradient_point(self.vectors)
        given = (self._space, at, self._x, self._y, batch, self.clips, self._products, self._sums)
        if self._plain:
            self._launch.fused_step(*given, self.noise, self._fused_scales)
        else:
            self._launch.sums(*given)
            self.update(self._sums)

    def _moving_factors(self) -> Sequence[Tensor]:
        return self.scales, self._fused_scales, self._advance


def _size(examples: int) -> int:
    """Examples for which a graph is made: a power of two."""
    return max(_LEAST, 1 << max(0, examples - 1).bit_length())


def slots(jobs: Sequence[Job]) -> int:
    """Examples for which practically every step has room: eight standard deviations above the mean."""
    mean = sum(job.plan.batch for job in jobs)
    return min(sum(job.plan.samples for job in jobs), mean + 8 * math.isqrt(mean) + 8)


_CACHE: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], PooledCnnStep]] = WeakKeyDictionary()


def cached_step(
    model: Model, network: PooledCnn, x: Tensor, y: Tensor, key: tuple[StepKind, int], room: tuple[int, int],
    limit: int | None, precision: Precision,
) -> PooledCnnStep:  # fmt: skip
    """A step for one of several groups of clients, made again if the data moved or its room is too small or too large.

    Args:
        model: What is trained.
        network: Its layers.
        x: The data.
        y: Its labels.
        key: What kind of group, and which.
        room: Clients and examples of a step.
        limit: Examples to work on at a time; by the free memory if none, which is asked only if a step is made.
        precision: How convolutions multiply.
    """
    data = (x.data_ptr(), y.data_ptr(), tuple(x.shape), precision)
    found = {name: step for name, step in _CACHE.get(model.module, {}).items() if name[0] == data}
    _CACHE[model.module] = found
    clients, wanted = room
    old = found.get((data, key))
    suits = old is not None and old.clients // 2 <= clients <= old.clients and wanted <= old.slots
    if old is None or not suits or limit not in (None, old.limit):
        found.pop((data, key), None)
        most = memory.physical_batch(model, x.device, clients) if limit is None else limit
        products = triton_precision(precision)
        found[data, key] = PooledCnnStep(model, network, (x, y), clients, wanted, most, products, key[0])
    return found[data, key]
