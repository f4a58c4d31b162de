"""One step of DP-SGD over a chain for clients with batches of any size, recorded as a graph and replayed.

Everything the step reads and writes lies at fixed places. A record serves every step of up to so many examples:
programs without an example end at once, so that there are few sizes, each twice the one before.

Guarantees:
    - A replay computes what the step computes.

Edge cases:
    - Clients beyond those that train have no examples and stay where they are.
    - A step with more examples than there is room for, or too many for a record to pay, runs as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from hush.local import memory
from hush.local.chain import Chain
from hush.local.graph import recorded
from hush.local.job import Job
from hush.local.precision import Precision, accelerated, how
from hush.local.replay import Kind
from hush.models import Model

_LEAST = 64  # examples of the smallest record
_MOST = 1 << 13  # of the largest


class ChainStep:
    """The step, and what it works on.

    Attributes:
        vectors: Parameters, clients x p: what a step changes.
        noise: Standard normal numbers, clients x p.
        clips: Norm bound of each client.
        scales: As in `hush.local.replay.Replay`.
        start: Where the clients began, clients x p; used only by those that are not plain.
        drift: What is added to every step, clients x p; likewise.
        slots: Examples of a step for which there is room.
        limit: Examples to work on at a time.
        stream: Where its work goes.
    """

    def __init__(
        self, model: Model, chain: Chain, data: tuple[Tensor, Tensor], clients: int, slots: int, limit: int,
        products: str, kind: Kind,
    ) -> None:  # fmt: skip
        self._x, self._y, self._how, self._kind, self.slots, self.limit = *data, products, kind, slots, limit
        launch, like = accelerated(self._x.device), self._x
        self._launch = launch.chain_launch
        self.vectors, self.noise, self._sums = (like.new_zeros(clients, model.layout.size) for _ in range(3))
        corrected = clients if kind != "plain" else 0
        self.start, self.drift = (like.new_zeros(corrected, model.layout.size) for _ in range(2))
        self.scales = like.new_zeros(4, clients, 1)
        self.clips = like.new_ones(clients, dtype=torch.float64)
        self._packed = like.new_zeros(clients + 1 + 2 * slots, dtype=torch.int32)
        self._space = self._launch.Workspace(chain, max(1, min(slots, limit)), like.device)
        # Always the same, because memory is used again only on the stream it was asked for.
        self.stream = torch.cuda.Stream(like.device) if like.is_cuda else None
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}

    @property
    def clients(self) -> int:
        """Those for which there is room."""
        return len(self.vectors)

    def packed(self, drawn: Sequence[np.ndarray]) -> np.ndarray:
        """The rows that the first clients drew, as a step takes them; longer than usual if they find no room."""
        counts = np.array([len(rows) for rows in drawn] + [0] * (self.clients - len(drawn)))
        total = int(counts.sum())
        room = max(total, self.slots)
        out = np.zeros(self.clients + 1 + 2 * room, dtype=np.int32)
        np.cumsum(counts, out=out[1 : self.clients + 1])
        first = self.clients + 1
        if total:
            np.concatenate(drawn, out=out[first : first + total], casting="same_kind")
        out[first + room : first + room + total] = np.repeat(np.arange(self.clients, dtype=np.int32), counts)
        return out

    def step(self, packed: Tensor, noise: Tensor | None, examples: int) -> None:
        """One step over so many examples."""
        if noise is not None:
            self.noise[: len(noise)].copy_(noise, non_blocking=True)
        if len(packed) != len(self._packed):
            self._run(packed.to(self._packed.device), examples)
            return
        self._packed.copy_(packed, non_blocking=True)
        size = min(max(_LEAST, 1 << max(0, examples - 1).bit_length()), self.slots)
        if size > min(_MOST, self._space.examples):
            self._run(self._packed, examples)
            return
        if size not in self._graphs:
            self._graphs[size] = self._recorded(size)
        graph = self._graphs[size]
        if graph is None:
            self._run(self._packed, size)
        else:
            graph.replay()

    def _run(self, packed: Tensor, examples: int) -> None:
        room = (len(packed) - self.clients - 1) // 2
        ends, rows, owner = packed.split([self.clients + 1, room, room])
        batch = self._launch.Batch(rows[:examples], owner[:examples], ends)
        at = self.start if self._kind == "still" else self.vectors
        self._launch.sums(self._space, at, self._x, self._y, batch, self.clips, self._how, self._sums)
        mean, loud, drift, pull = self.scales
        way = self.vectors - self.start if self._kind != "plain" else None
        self.vectors.addcmul_(mean, self._sums, value=-1).addcmul_(loud, self.noise, value=-1)
        if way is not None:
            self.vectors.addcmul_(drift, self.drift, value=-1).addcmul_(pull, way, value=-1)

    def _recorded(self, size: int) -> torch.cuda.CUDAGraph | None:
        return recorded(lambda: self._run(self._packed, size), self.scales) if self.vectors.is_cuda else None


def slots(jobs: Sequence[Job]) -> int:
    """Examples for which practically every step finds room: eight standard deviations above the mean."""
    mean = sum(job.plan.batch for job in jobs)
    return min(sum(job.plan.samples for job in jobs), mean + 8 * math.isqrt(mean) + 8)


_KEPT: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], ChainStep]] = WeakKeyDictionary()


def kept(
    model: Model, chain: Chain, x: Tensor, y: Tensor, key: tuple[Kind, int], room: tuple[int, int],
    limit: int | None, precision: Precision,
) -> ChainStep:  # fmt: skip
    """A step for one of several groups of clients, made anew if the data moved or the room is too small or too large.

    Args:
        model: What is trained.
        chain: What it is.
        x: The data.
        y: Its labels.
        key: What kind of group, and which.
        room: Clients and examples of a step.
        limit: Examples to work on at a time; by the free memory if none, which is asked only if a step is made.
        precision: How convolutions multiply.
    """
    data = (x.data_ptr(), y.data_ptr(), tuple(x.shape), precision)
    found = {name: step for name, step in _KEPT.get(model.module, {}).items() if name[0] == data}
    _KEPT[model.module] = found
    clients, wanted = room
    old = found.get((data, key))
    suits = old is not None and old.clients // 2 <= clients <= old.clients and wanted <= old.slots
    if old is None or not suits or limit not in (None, old.limit):
        found.pop((data, key), None)
        most = memory.physical_batch(model, x.device, clients) if limit is None else limit
        found[data, key] = ChainStep(model, chain, (x, y), clients, wanted, most, how(precision), key[0])
    return found[data, key]
