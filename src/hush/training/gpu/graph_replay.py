"""CUDA graph replay: groups of clients of similar batch size step side by side, while the host prefetches.

A step over padded batches is captured once for each width of batch. Graphs are cached with the model for as long as the
data stays where it is.

Guarantees:
    - Those of `hush.training.clipped_sum.ClippedSum`.
    - Noise is drawn on the device, from the device generator of each client's own source if it has one, and outside of
      the captured step: no replay repeats it.

Edge cases:
    - A step too large to profit, or with an input mean, is not captured.
    - Input means need a model that is one linear layer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hush.models import Model
from hush.training.clipped_sum import ClientGroup, ClippedSum
from hush.training.closed_form import LinearLayer, cached_row_norms, closed_form_table_sums
from hush.training.gpu.graph_step import GraphStep, StepKind, kind_of
from hush.training.gpu.noise_bank import device_rngs, noise_bank
from hush.training.gpu.prefetch import DEPTH, Chunk, Prefetcher, table_width
from hush.training.grouping import similar_batches
from hush.training.job import Job
from hush.training.per_example.recorder import Recorder
from hush.training.per_example.sums import micro_batch_size, padded_sums
from hush.training.precision import Precision

THREADS = 4  # that prefetch; more of them only wait for the interpreter
_SMALL = 4096  # examples in a step up to which a replay is always faster than its launches
_LARGE = 1 << 14  # up to which it is if memory is ample, since a graph keeps its working memory


class GraphReplaySum(ClippedSum):
    """Clipped sums inside captured steps."""

    def __init__(
        self, model: Model, x: Tensor, y: Tensor, jobs: Sequence[Job], physical_batch: int, precision: Precision,
        linear: LinearLayer | None = None,
    ) -> None:  # fmt: skip
        self.physical_batch, self.subtracts_input_mean = physical_batch, linear is not None
        self._model, self._x, self._y, self._precision, self._linear = model, x, y, precision, linear
        self._limit = micro_batch_size(model, jobs[0].vector, physical_batch)
        self._draws = sum(job.plan.steps for job in jobs)

    def groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Jobs of similar batch size."""
        return similar_batches(jobs)

    def start(self, jobs: Sequence[Job], number: int, resources: ExitStack) -> ClientGroup:
        """A group with its share of the prefetching threads, and a stream of its own."""
        shape = (len(jobs), table_width(jobs))
        step = cached_step(
            self._model, self._x, self._y, number, shape, self._limit, self._precision, kind_of(jobs), self._linear
        )
        if self._linear is not None:
            step.load_input_means([job.input_mean for job in jobs])
        most = min(THREADS, os.cpu_count() or 1)
        threads = max(1, round(most * sum(job.plan.steps for job in jobs) / self._draws))
        return _GraphGroup(jobs, step, threads, resources)


class _GraphGroup(ClientGroup):
    """Clients that step together."""

    def __init__(self, jobs: Sequence[Job], step: PaddedGraphStep, threads: int, resources: ExitStack) -> None:
        self.jobs, self.steps = jobs, jobs[0].plan.steps
        self._step, self.stream = step, torch.cuda.Stream()
        # Widths are rounded up, so that there are few graphs.
        self._grain = max(4, jobs[0].plan.batch // 8)
        self._bank = noise_bank(jobs, device_rngs(jobs), step.noise)
        noise = step.noise
        prefetcher = Prefetcher(jobs, noise.shape[1], noise.dtype, threads, self._bank is None)
        self._copied = [torch.cuda.Event() for _ in range(DEPTH)]
        self._taken = self._released = 0
        self._chunk: Chunk | None = None
        self._tables = step.table
        step.load_clients(jobs)
        self._prefetcher = resources.enter_context(prefetcher)

    @property
    def vectors(self) -> Tensor:
        """Where the clients are now."""
        return self._step.vectors

    def step(self) -> None:
        """Launch one step."""
        k = self.done % self._prefetcher.steps
        if k == 0 or self._chunk is None:
            self._next_chunk()
        chunk = self._chunk
        assert chunk is not None
        active = chunk.active[k]
        self._step.move_first(active)
        noise = self._bank.step(self.done, active) if self._bank is not None else None
        if chunk.noise is not None:
            noise = chunk.noise[k]
        self._step.load(self._tables[k], noise)
        if chunk.noise is not None:
            self._copied[(self._taken - 1) % DEPTH].record()
        if k in chunk.wide:
            self._step.step(chunk.wide[k], chunk.longest[k])
        else:
            width = -(-chunk.longest[k] // self._grain) * self._grain
            self._step.step(self._step.table, min(width, self._step.table.shape[1]))

    def _next_chunk(self) -> None:
        """Take the next chunk, its tables on the device."""
        self._release()
        self._chunk = self._prefetcher.chunk(self._taken)
        self._tables = self._chunk.rows.to(self._step.table.device, non_blocking=True)
        self._copied[self._taken % DEPTH].record()
        self._taken += 1

    def _release(self) -> None:
        """Give back the room of chunks that are copied: all that are, and one at least if there is no other room."""
        while self._released < self._taken:
            copied = self._copied[self._released % DEPTH]
            if self._released > self._taken - DEPTH and not copied.query():
                break
            copied.synchronize()
            self._prefetcher.release()
            self._released += 1


class PaddedGraphStep(GraphStep):
    """A step over padded batches.

    Attributes:
        table: Rows of the data, clients x places, -1 where there is none.
        means: Subtracted from each client's rows, clients x width; empty where the step is not in closed form.
    """

    def __init__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        clients: int,
        places: int,
        limit: int,
        precision: Precision,
        kind: StepKind = "plain",
        linear: LinearLayer | None = None,
    ) -> None:
        super().__init__(x.new_zeros(0, dtype=model.start.dtype), clients, model.layout.size, kind)
        self._linear, self._recorder = linear, Recorder(model)
        self._x, self._y, self._limit, self._precision = x, y, limit, precision
        self.table = self.vectors.new_zeros(clients, places, dtype=torch.int64)
        self.means = self.vectors.new_zeros(clients, 0 if linear is None else linear.width)
        self._norms, self._which = self.vectors.new_zeros(0, 0), self.table.new_zeros(clients)
        self._most = max(_SMALL, min(_LARGE, limit // 4))
        # Graphs of one group are never replayed at once, so that they can share working memory.
        self._pool = torch.cuda.graph_pool_handle() if x.is_cuda else None

    def load_input_means(self, given: Sequence[Tensor | None]) -> None:
        """Subtract each client's input mean, in closed form."""
        assert self._linear is not None
        distinct = {id(mean): mean for mean in given}
        places = {key: number for number, key in enumerate(distinct)}
        self._norms = cached_row_norms(self._x, list(distinct.values()), self._linear.bias is not None)
        self._which.copy_(torch.tensor([places[id(mean)] for mean in given]))
        none = torch.zeros(self._linear.width)
        means = torch.stack([none if mean is None else mean.cpu() for mean in distinct.values()])
        self.means.copy_(means.to(self.means)[self._which])

    def load(self, rows: Tensor, noise: Tensor | None) -> None:
        """Copy the rows and the noise of a step into its buffers."""
        if noise is not None and noise.data_ptr() != self.noise.data_ptr():
            self.noise.copy_(noise, non_blocking=True)
        if rows.shape == self.table.shape:
            self.table.copy_(rows, non_blocking=True)

    def step(self, rows: Tensor, width: int) -> None:
        """One step over the first `width` places of the table that was loaded, or over a table that did not fit."""
        if rows.shape != self.table.shape:
            self._run(rows.to(self.table.device))
            return
        # Row norms may lie elsewhere in the next round, so that with input means nothing is captured.
        small = len(self.table) * width <= self._most
        capturable = small and self.table.is_cuda and self._linear is None
        self.replay(width, lambda: self._run(self.table[:, :width]), capturable, self._pool)

    def _run(self, table: Tensor) -> None:
        self.update(self._sums(table))

    def _sums(self, table: Tensor) -> Tensor:
        vectors = self.rule.gradient_point(self.vectors)
        if self._linear is not None:
            norms, which, means, limit = self._norms, self._which, self.means, self._limit
            return closed_form_table_sums(
                self._linear, vectors, self._x, self._y, table, self.clips, norms, which, means, limit
            )
        rows = table.t().flatten()
        return padded_sums(
            self._recorder,
            vectors,
            self._x,
            self._y,
            rows >= 0,
            self.clips,
            self._limit,
            self._precision,
            capturable=True,
            rows=rows.clamp(min=0),
        )


_CACHE: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], PaddedGraphStep]] = WeakKeyDictionary()


def cached_step(
    model: Model,
    x: Tensor,
    y: Tensor,
    number: int,
    shape: tuple[int, int],
    limit: int,
    precision: Precision,
    kind: StepKind,
    linear: LinearLayer | None,
) -> PaddedGraphStep:
    """The step of the group of that number, for clients x places, made again if the data or the loss are others."""
    data = (x.data_ptr(), y.data_ptr(), tuple(x.shape), x.dtype, limit, precision, model.objective.loss)
    found = {key: step for key, step in _CACHE.get(model.module, {}).items() if key[0] == data}
    _CACHE[model.module] = found
    key = (data, number, shape, kind, linear)
    if key not in found:
        found[key] = PaddedGraphStep(model, x, y, *shape, limit, precision, kind, linear)
    return found[key]
