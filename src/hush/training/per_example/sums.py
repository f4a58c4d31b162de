"""Clipped sums from one recorded pass: `PackedSum` on a CPU, `PaddedSum` on a GPU without CUDA graphs.

One forward and one backward pass record the input and the output gradient of every layer. From these follow the norms
of all per-example gradients, most of which are never formed, and then, in one product per layer, their clipped sums.

Guarantees:
    - Those of `hush.training.clipped_sum.ClippedSum`, in every precision.
    - A masked example adds nothing, whatever its values.

Edge cases:
    - No example at all: the sum is zero.
    - An infinite clip leaves finite gradients as they are.
    - Norms are computed in float64, so a gradient whose square overflows float32 is clipped, not dropped.
    - Work is cut into micro-batches of at most `physical_batch` examples, fewer where a CPU's cache asks for it; the
      sum does not depend on it beyond rounding. A client's batch is cut only if it alone is larger.
    - `probe` names a layer for which `hush.training.per_example.rules` has no rule; such a model needs
      `hush.training.per_example.vmap`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hush.models import Model, unflatten
from hush.training.clipping import clip_factors, upper_norms
from hush.training.eager import EagerSum, GroupSums, Keys, padded_rows
from hush.training.grouping import equal_work, expected_examples
from hush.training.job import Job
from hush.training.per_example.batch_layout import BatchLayout
from hush.training.per_example.gradient_terms import DenseTerm, Term
from hush.training.per_example.packed import PackedBatch
from hush.training.per_example.padded import PaddedBatch
from hush.training.per_example.proxies import UnsupportedError
from hush.training.per_example.recorder import Recorder
from hush.training.precision import Precision, low_dtype, matmul_precision
from hush.types import Layout

_CACHED = 32  # examples whose activations stay in a CPU's cache, about
_HELD = 1 << 25  # numbers of gradients that a CPU holds at a time: new memory for more takes as long as computing them
_LEAST = 32  # examples that are worth a pass all the same
_SMALL = 4096  # numbers of a parameter that is joined with others
_WORTH_THREADS = 10_000_000  # examples times parameters from which threads pay off


class PackedSum(EagerSum):
    """Batches without padding, client after client; each thread trains its share of the clients."""

    threaded = True

    def groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Shares of nearly equal work, as many as there are threads if the work is worth them."""
        worth = sum(map(expected_examples, jobs)) * self.model.layout.size >= _WORTH_THREADS
        return equal_work(jobs, torch.get_num_threads() if worth else 1)

    def sums_of(self, jobs: Sequence[Job]) -> GroupSums:
        """`packed_sums`, with a recorder of the group's own."""
        recorder = Recorder(self.model)
        numbers = max(1, probe(self.model, self.x, self.y).numbers)
        most = min(self.physical_batch, max(_LEAST, _HELD // numbers))

        def sums(vectors: Tensor, rows: Sequence[Tensor], clips: Tensor, keys: Keys) -> Tensor:
            limit = micro_batch_size(self.model, vectors, most)
            counts, joined = [len(own) for own in rows], torch.cat(list(rows))
            drawn = None if keys is None else torch.cat(list(keys))
            return packed_sums(recorder, vectors, self.x, self.y, counts, clips, limit, self.precision, joined, drawn)

        return sums


class PaddedSum(EagerSum):
    """Batches padded to the longest of a group, so that one launch serves all of its clients."""

    def sums_of(self, jobs: Sequence[Job]) -> GroupSums:
        """`padded_sums`, with a recorder of the group's own."""
        recorder = Recorder(self.model)

        def sums(vectors: Tensor, rows: Sequence[Tensor], clips: Tensor, keys: Keys) -> Tensor:
            limit = micro_batch_size(self.model, vectors, self.physical_batch)
            table, mask = padded_rows(rows, vectors.device)
            at, real = table.t().flatten(), mask.t().flatten()
            drawn = None if keys is None else padded_rows(keys, vectors.device)[0].t().flatten()
            x, y, precision = self.x, self.y, self.precision
            return padded_sums(recorder, vectors, x, y, real, clips, limit, precision, rows=at, keys=drawn)

        return sums


@dataclass(frozen=True)
class Probe:
    """What one pass over one example shows of a model.

    Attributes:
        unsupported: Why the model cannot be recorded; none if it can.
        numbers: How many numbers an example leaves behind: gradients, or what they are made of.
    """

    unsupported: UnsupportedError | None
    numbers: int


_PROBES: WeakKeyDictionary[nn.Module, dict[object, Probe]] = WeakKeyDictionary()


def probe(model: Model, x: Tensor, y: Tensor) -> Probe:
    """Pass one example through the model, once for each kind of rows."""
    found = _PROBES.setdefault(model.module, {})
    key = (x.shape[1:], x.dtype, x.device, y.shape[1:], y.dtype, model.objective.loss, model.layout)
    if key not in found:
        found[key] = _probe(model, x[:1], y[:1])
    return found[key]


def _probe(model: Model, x: Tensor, y: Tensor) -> Probe:
    try:
        values = unflatten(model.start.to(x.device)[None], model.layout)
        rows = model.with_keys(x, torch.zeros(len(x), dtype=torch.int64, device=x.device))
        layout = PaddedBatch(clients=1, examples=len(x), device=x.device, rows=len(x))
        terms = Recorder(model).terms(values, layout, rows, y)
    except UnsupportedError as reason:
        # Without its traceback, which would keep the tensors of the pass.
        return Probe(reason.with_traceback(None), model.layout.size)
    return Probe(None, sum(term.numbers for term in terms.values()))


def micro_batch_size(model: Model, vectors: Tensor, physical_batch: int) -> int:
    """Examples to work on at a time: on a CPU, the activations of convolutions must fit its cache."""
    cached = not vectors.is_cuda and any(len(shape) > 2 for shape in model.layout.shapes)
    return min(physical_batch, _CACHED) if cached else physical_batch


@torch.no_grad()
def packed_sums(
    recorder: Recorder,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    counts: Sequence[int],
    clips: Tensor,
    limit: int,
    precision: Precision = "float32",
    rows: Tensor | None = None,
    keys: Tensor | None = None,
) -> Tensor:
    """The sum of each client, clients x p, in float64, from examples that lie client by client.

    Args:
        recorder: The model.
        vectors: Parameters, clients x p.
        x: Inputs, examples x shape.
        y: Labels.
        counts: How many examples each client has.
        clips: Norm bound of each client.
        limit: Examples in a micro-batch.
        precision: How layers multiply.
        rows: Which rows of `x` and `y` the examples are, if not all in order; a micro-batch of them is gathered at a
            time.
        keys: The keys of these rows, where the model is keyed.
    """
    total, low = torch.zeros_like(vectors, dtype=torch.float64), low_dtype(precision)
    values = unflatten(vectors, recorder.layout)
    for clients, sizes, part in micro_batches(counts, limit):
        layout = PackedBatch(clients, sizes, [counts[c] for c in clients], low)
        inputs, truth = _gathered(recorder.model, x, y, rows, keys, part)
        _add(recorder.terms(values, layout, inputs, truth), total, recorder.layout, layout, clips, None, vectors)
    return total


@torch.no_grad()
def padded_sums(
    recorder: Recorder,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    limit: int,
    precision: Precision = "float32",
    capturable: bool = False,
    rows: Tensor | None = None,
    keys: Tensor | None = None,
) -> Tensor:
    """The same from padded examples in the order of `hush.training.per_example.padded`; `mask` is true for the real
    ones.

    If `capturable`, the host asks nothing of the device, so that the work can be captured as a CUDA graph: NaN is
    cleared in any case, not only where there is any.
    """
    total = torch.zeros_like(vectors, dtype=torch.float64)
    values = unflatten(vectors, recorder.layout)
    width = max(1, limit // len(vectors)) * len(vectors)
    each = len(mask) // len(vectors)
    for start in range(0, len(mask), width):
        part = slice(start, min(start + width, len(mask)))
        examples, by_client = (part.stop - start) // len(vectors), not recorder.convolutional
        layout = PaddedBatch(
            clients=len(vectors), examples=examples, device=vectors.device, rows=each, precision=precision,
            by_client=by_client,
        )  # fmt: skip
        given = [mask[part], *_gathered(recorder.model, x, y, rows, keys, part)]
        if by_client:
            given = [t.unflatten(0, (examples, -1)).transpose(0, 1).flatten(0, 1) for t in given]
        real, *given = given
        with matmul_precision(precision, vectors.device):
            terms = recorder.terms(values, layout, *given)
        with matmul_precision("float32", vectors.device):
            _add(terms, total, recorder.layout, layout, clips, real, vectors, capturable)
    return total


def micro_batches(counts: Sequence[int], limit: int) -> Iterator[tuple[list[int], list[int], slice]]:
    """Clients, how many examples each has in it, and the rows of each micro-batch."""
    clients: list[int] = []
    sizes: list[int] = []
    start = end = 0
    for client, count in enumerate(counts):
        if end - start + count > limit and clients:
            yield clients, sizes, slice(start, end)
            clients, sizes, start = [], [], end
        parts = math.ceil(count / limit)
        for number in range(parts):
            share = count // parts + (number < count % parts)
            clients, sizes, end = [*clients, client], [*sizes, share], end + share
            if parts > 1:
                yield clients, sizes, slice(start, end)
                clients, sizes, start = [], [], end
    if clients:
        yield clients, sizes, slice(start, end)


def _gathered(
    model: Model, x: Tensor, y: Tensor, rows: Tensor | None, keys: Tensor | None, part: slice
) -> tuple[Tensor, Tensor]:
    """A part of the examples, or of the rows that they are."""
    if rows is None:
        return x[part], y[part]
    inputs = x.index_select(0, rows[part])
    return inputs if keys is None else model.with_keys(inputs, keys[part]), y.index_select(0, rows[part])


def _add(
    terms: Mapping[str, Term],
    sums: Tensor,
    parameters: Layout,
    clients: BatchLayout,
    clips: Tensor,
    mask: Tensor | None,
    like: Tensor,
    capturable: bool = False,
) -> None:
    """Add the clipped gradients, numbers of the dtype of `like`, to the sums, clients x p."""
    if not terms:
        return
    small = tuple(name for name, term in terms.items() if _small(term))
    joined = _joined([terms[name] for name in small])
    views = unflatten(sums, parameters)
    large = [(term, views[name]) for name, term in terms.items() if name not in small]

    def total(exact: bool) -> Tensor:
        return reduce(torch.add, [term.squares(exact) for term in (*joined, *(term for term, _ in large))])

    norms = upper_norms(total, like)
    finite = norms.isfinite()
    clean = not capturable and bool(finite.all())
    scale = clip_factors(norms, clients.expand(clips), mask, like.dtype, finite)
    dropped = ~finite
    for term, own in large:
        (term if clean else term.cleared(dropped)).add(own, scale, clients)
    for term in joined:
        places = _places(parameters, small, sums.device)
        found = sums.new_zeros(len(sums), len(places))
        (term if clean else term.cleared(dropped)).add(found, scale, clients)
        sums.index_add_(1, places, found)


def _small(term: Term) -> bool:
    """Whether a term is better joined with others: most of its time would be that of launching a dozen operations."""
    return isinstance(term, DenseTerm) and term.known is None and math.prod(term.each.shape[1:]) <= _SMALL


def _joined(terms: Sequence[Term]) -> list[DenseTerm]:
    """One term with the gradients of several side by side, none of none."""
    parts = [term.rows for term in terms if isinstance(term, DenseTerm)]
    return [DenseTerm(torch.cat(parts, 1))] if parts else []


@lru_cache(maxsize=256)
def _places(parameters: Layout, names: tuple[str, ...], device: torch.device) -> Tensor:
    """The numbers of these parameters in a flat vector."""
    ends = dict(zip(parameters.names, accumulate(parameters.sizes), strict=True))
    sizes = dict(zip(parameters.names, parameters.sizes, strict=True))
    return torch.cat([torch.arange(ends[name] - sizes[name], ends[name]) for name in names]).to(device)
