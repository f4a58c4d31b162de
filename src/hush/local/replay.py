"""One step of DP-SGD for a fixed number of clients, recorded as a graph and replayed.

Everything the step reads and writes lies at fixed places, which is what makes a replay possible. A step is recorded
once for each width of batch; records are kept with the model for as long as the data stays where it is.

Guarantees:
    - A replay computes what the step computes.

Edge cases:
    - A step too large to profit, or with code that cannot be recorded, runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hush.local.graph import recorded
from hush.local.linear import Closed, known_lengths, table_sums
from hush.local.precision import Precision
from hush.local.record import Recorder
from hush.local.sums import even_sums
from hush.models import Model

Kind = Literal["plain", "corrected", "still"]
_SMALL = 4096  # examples in a step up to which a replay is always faster than its launches
_LARGE = 1 << 14  # up to which it is if memory is ample, since a record keeps what it works on


class Replay:
    """The step, and what it works on.

    Attributes:
        vectors: Parameters, clients x p: what a step changes.
        noise: Standard normal numbers, clients x p.
        clips: Norm bound of each client.
        scales: What is multiplied before it is subtracted: the sum of clipped gradients, the noise, the drift, and the
            way from the start; four times clients x 1. All zero, and a client stays where it is.
        table: Rows of the data, clients x places, -1 where there is none.
        start: Where the clients began, clients x p; used only by those that are not plain.
        drift: What is added to every step, clients x p; likewise.
        centres: What is taken off each client's rows, clients x width; nothing where the step is not in closed form.
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
        kind: Kind = "plain",
        form: Closed | None = None,
    ) -> None:
        self._form = form
        self._recorder, self._x, self._y, self._limit, self._precision = Recorder(model), x, y, limit, precision
        self._kind = kind
        self.vectors, self.noise = (x.new_zeros(clients, model.layout.size, dtype=model.start.dtype) for _ in range(2))
        corrected = clients if kind != "plain" else 0
        self.start, self.drift = (self.vectors.new_zeros(corrected, model.layout.size) for _ in range(2))
        self.scales = self.vectors.new_zeros(4, clients, 1)
        self.clips = self.vectors.new_zeros(clients, dtype=torch.float64)
        self.table = self.vectors.new_zeros(clients, places, dtype=torch.int64)
        self.centres = self.vectors.new_zeros(clients, 0 if form is None else form.width)
        self._known, self._which = self.vectors.new_zeros(0, 0), self.table.new_zeros(clients)
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}
        self._most = max(_SMALL, min(_LARGE, limit // 4))
        # Records of one group are never replayed at once, so that they can work in the same place.
        self._pool = torch.cuda.graph_pool_handle() if x.is_cuda else None

    def centre(self, given: Sequence[Tensor | None]) -> None:
        """Count each client's rows from its centre, in closed form."""
        assert self._form is not None
        distinct = {id(centre): centre for centre in given}
        places = {key: number for number, key in enumerate(distinct)}
        self._known = known_lengths(self._x, list(distinct.values()), self._form.bias is not None)
        self._which.copy_(torch.tensor([places[id(centre)] for centre in given]))
        none = torch.zeros(self._form.width)
        shifts = torch.stack([none if centre is None else centre.cpu() for centre in distinct.values()])
        self.centres.copy_(shifts.to(self.centres)[self._which])

    def load(self, rows: Tensor, noise: Tensor | None) -> None:
        """Bring the rows and the noise of a step to their places."""
        if noise is not None:
            self.noise.copy_(noise, non_blocking=True)
        if rows.shape == self.table.shape:
            self.table.copy_(rows, non_blocking=True)

    def step(self, rows: Tensor, width: int) -> None:
        """One step over the first `width` places of the table that was loaded."""
        if rows.shape != self.table.shape:
            self._run(rows.to(self.table.device))
            return
        if width not in self._graphs:
            self._graphs[width] = self._recorded(width)
        graph = self._graphs[width]
        if graph is None:
            self._run(self.table[:, :width])
        else:
            graph.replay()

    def _sums(self, table: Tensor) -> Tensor:
        vectors = self.start if self._kind == "still" else self.vectors
        if self._form is not None:
            clips, known, which = self.clips, self._known, self._which
            form, centres, limit = self._form, self.centres, self._limit
            return table_sums(form, vectors, self._x, self._y, table, clips, known, which, centres, limit)
        rows = table.t().flatten()
        return even_sums(
            self._recorder,
            vectors,
            self._x,
            self._y,
            rows >= 0,
            self.clips,
            self._limit,
            self._precision,
            blind=True,
            rows=rows.clamp(min=0),
        )

    def _run(self, table: Tensor) -> None:
        sums = self._sums(table)
        mean, loud, drift, pull = self.scales
        step = mean * sums + loud * self.noise
        if self._kind != "plain":
            step.addcmul_(drift, self.drift).addcmul_(pull, self.vectors - self.start)
        self.vectors.sub_(step)

    def _recorded(self, width: int) -> torch.cuda.CUDAGraph | None:
        # What is known of the rows may lie elsewhere in the next round, so that with centres nothing is recorded.
        if len(self.table) * width > self._most or not self.table.is_cuda or self._form is not None:
            return None
        return recorded(lambda: self._run(self.table[:, :width]), self.scales, self._pool)


_KEPT: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Replay]] = WeakKeyDictionary()


def kept(
    model: Model,
    x: Tensor,
    y: Tensor,
    number: int,
    shape: tuple[int, int],
    limit: int,
    precision: Precision,
    kind: Kind = "plain",
    form: Closed | None = None,
) -> Replay:
    """The replay of the group of that number, for clients x places, made anew if the data moved."""
    data = (x.data_ptr(), y.data_ptr(), tuple(x.shape), x.dtype, limit, precision)
    found = {key: replay for key, replay in _KEPT.get(model.module, {}).items() if key[0] == data}
    _KEPT[model.module] = found
    key = (data, number, shape, kind, form)
    if key not in found:
        found[key] = Replay(model, x, y, *shape, limit, precision, kind, form)
    return found[key]
