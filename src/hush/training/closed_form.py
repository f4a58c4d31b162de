"""The closed form of linear models: clipped sums of a model that is one linear layer, such as softmax regression.

An example's gradient is the outer product of the loss's gradient for the outputs (softmax - label, or twice the error)
and its input, so its norm is a product of two norms, of which that of the input never changes. Nothing is recorded and
no gradient is formed.

Guarantees:
    - Those of `hush.training.clipped_sum.ClippedSum`.
    - A client's sums do not depend on the other clients in the batch.

Edge cases:
    - `linear_layer_of` is none for every model that is not exactly that, and for one with hooks.
    - Inputs that are not finite have a norm that is not finite, and add nothing; nor does a row of which the norm, or
      the gradient's, is beyond the range of `hush.training.clipping`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from hush.models import Model
from hush.models.validation import has_hooks
from hush.objective import CLASSIFICATION, Loss
from hush.training.clipping import (
    RANGE,
    clip_factors,
    clip_margin,
    partial_rows,
    squared_norms,
    summed_blocks,
    summed_products,
    upper_norms,
)
from hush.training.eager import EagerSum, GroupSums, Keys
from hush.training.job import Job
from hush.training.precision import matmul_precision

_BLOCK = 1 << 20  # numbers of which the norms are taken at a time
_CACHED = 1 << 21  # numbers of rows that are worked on at a time: as many as stay in a CPU's cache
_SIMILAR = 0.7  # a batch smaller than this fraction of the largest is not padded to it
_FEW_CLASSES = 64  # classes over which squares are summed in float32
_LARGE = 1e15  # norms beyond, or clips below its inverse, are left to float64
_PAYOFF_ROUNDS = 8  # row norms are cached only if they pay off within this many rounds
_LOSS = CLASSIFICATION.loss  # of a layer whose model is not known

_LAYERS: MutableMapping[nn.Module, LinearLayer | None] = WeakKeyDictionary()
_NORM_CACHE: MutableMapping[Tensor, dict[tuple[int, bool], tuple[Tensor | None, Tensor]]] = WeakTensorKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """Where the weights and biases of a linear model lie in its parameter vector.

    Attributes:
        classes: Outputs.
        width: Inputs.
        weight: Where the weights begin.
        bias: Where the biases begin, if there are any.
        flattens: Whether the model accepts inputs of any shape of that width.
        loss: Of one example.
    """

    classes: int
    width: int
    weight: int
    bias: int | None
    flattens: bool
    loss: Loss

    def parts(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Views of the weights, clients x classes x width, and of the biases, clients x classes."""
        weight = vectors[:, self.weight : self.weight + self.classes * self.width]
        shift = None if self.bias is None else vectors[:, self.bias : self.bias + self.classes]
        return weight.unflatten(1, (self.classes, self.width)), shift


def linear_layer_of(model: Model, x: Tensor) -> LinearLayer | None:
    """The layer of a model that is one linear layer, after flattening or nothing; none for any other model."""
    if model.module not in _LAYERS:
        # A model's module is its own copy, to which nothing is added later; it may be trained for several objectives.
        _LAYERS[model.module] = _recognised(model)
    layer = _LAYERS[model.module]
    if layer is None or not (layer.flattens or x.ndim == 2) or x[0].numel() != layer.width:
        return None
    return replace(layer, loss=model.objective.loss)


def first_linear_layer(model: Model) -> LinearLayer | None:
    """The linear layer that a model's inputs enter, after flattening or nothing; none for any other model.

    What comes after it does not matter, as long as it uses neither the layer nor the inputs again.
    """
    before, rest = [], list(_flattened(model.module))
    while rest and type(rest[0]) in (nn.Flatten, nn.Identity):
        before.append(rest.pop(0))
    if any(has_hooks(part) for part in model.module.modules()):
        return None
    layer, after = (rest[0], rest[1:]) if rest else (None, [])
    if not isinstance(layer, nn.Linear) or type(layer) is not nn.Linear:
        return None
    own = {id(parameter) for parameter in layer.parameters()}
    if any(id(parameter) in own for part in after for parameter in part.parameters()):
        return None
    flattens = any(type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1) for part in before)
    offsets = dict(zip(model.layout.names, accumulate(model.layout.sizes, initial=0), strict=False))
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    weight, bias = (None if p is None else offsets.get(names[id(p)]) for p in (layer.weight, layer.bias))
    if weight is None:
        return None
    return LinearLayer(
        classes=layer.out_features, width=layer.in_features, weight=weight, bias=bias, flattens=flattens, loss=_LOSS
    )  # fmt: skip


def _recognised(model: Model) -> LinearLayer | None:
    layer, parts = first_linear_layer(model), list(_flattened(model.module))
    if layer is None or type(parts[-1]) is not nn.Linear or len(model.layout.names) != 1 + (parts[-1].bias is not None):
        return None
    return layer if sum(type(part) is nn.Linear for part in parts) == 1 else None


def row_norms(x: Tensor, ranges: Iterable[tuple[int, int]], biased: bool, mean: Tensor | None = None) -> Tensor:
    """The norm of each row in those ranges less the mean (and with a one appended, if biased), never too small."""
    out = torch.empty(len(x), dtype=x.dtype, device=x.device)
    step = max(1, _BLOCK // max(1, x[:1].numel()))
    for first, end in ranges:
        for start in range(first, end, step):
            part = slice(start, min(start + step, end))
            rows = x[part].flatten(1)
            out[part] = _norms(rows if mean is None else rows - mean.to(x), biased)
    return out


def cached_row_norms(x: Tensor, means: Sequence[Tensor | None], biased: bool) -> Tensor:
    """`row_norms` of all rows less each of these means, means x rows. They are cached for as long as `x` lives."""
    cache = _NORM_CACHE.setdefault(x, {})
    found = []
    for mean in means:
        key = (id(mean), biased)
        if key not in cache:
            # The mean is stored beside its norms, so that no other tensor can come to have its identity.
            cache[key] = (mean, row_norms(x, [(0, len(x))], biased, mean))
        found.append(cache[key][1])
    return torch.stack(found)


class ClosedFormSum(EagerSum):
    """Clipped sums in closed form, of all clients at once."""

    subtracts_input_mean = True

    def __init__(self, model: Model, layer: LinearLayer, x: Tensor, y: Tensor, physical_batch: int) -> None:
        super().__init__(model, x, y, physical_batch, "float32")
        self._layer = layer

    def groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """One group: a step is a few products for all clients at once, for which PyTorch's own threads serve best."""
        return [sorted(range(len(jobs)), key=lambda i: (-jobs[i].plan.steps, -jobs[i].plan.batch))]

    def sums_of(self, jobs: Sequence[Job]) -> GroupSums:
        """`closed_form_sums`, with the input means and row norms of the group."""
        means, norms = input_means(jobs), self._row_norms(jobs)

        def sums(vectors: Tensor, rows: Sequence[Tensor], clips: Tensor, _: Keys) -> Tensor:
            active, limit = len(vectors), self.physical_batch
            known, shifts = None if norms is None else norms[:active], None if means is None else means[:active]
            return closed_form_sums(self._layer, vectors, self.x, self.y, rows, clips, limit, known, shifts)

        return sums

    def _row_norms(self, jobs: Sequence[Job]) -> list[Tensor] | None:
        """For each job, the norms of all rows less its input mean, if that pays off soon."""
        if _PAYOFF_ROUNDS * sum(job.plan.steps * job.plan.batch for job in jobs) < len(self.x):
            return None
        distinct = {id(job.input_mean): job.input_mean for job in jobs}
        norms = cached_row_norms(self.x, list(distinct.values()), self._layer.bias is not None)
        by_mean = dict(zip(distinct, norms, strict=True))
        return [by_mean[id(job.input_mean)] for job in jobs]


def input_means(jobs: Sequence[Job]) -> Tensor | None:
    """The input mean of each job, zero where there is none, jobs x width; none if no job has one."""
    given = [job.input_mean for job in jobs if job.input_mean is not None]
    if not given:
        return None
    found = [torch.zeros_like(given[0]) if job.input_mean is None else job.input_mean for job in jobs]
    return torch.stack(found).to(jobs[0].vector)


@torch.no_grad()
def closed_form_sums(
    layer: LinearLayer,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    rows: Sequence[Tensor],
    clips: Tensor,
    limit: int,
    norms: Sequence[Tensor] | None = None,
    means: Tensor | None = None,
) -> Tensor:
    """The sum of each client, clients x p, in float64.

    Args:
        layer: The model.
        vectors: Parameters, clients x p.
        x: The data.
        y: Its targets.
        rows: The rows of each client.
        clips: Norm bound of each client.
        limit: Examples at a time.
        norms: For each client, the norms of all rows of the data less its input mean, if known.
        means: Subtracted from each client's rows, clients x width.
    """
    total = torch.zeros_like(vectors, dtype=torch.float64)
    # NumPy's views: asking a tensor for its length or a part of it takes several times longer.
    arrays = [own.numpy() for own in rows]
    counts = [len(own) for own in arrays]
    same_norms = norms is not None and all(each is norms[0] for each in norms)
    for clients, start, stop in padded_blocks(counts, min(limit, max(1, _CACHED // layer.width))):
        most = max(counts[c] for c in clients)
        table, real = _table([arrays[c][start:stop] for c in clients], partial_rows(most))
        flat = table.view(-1)
        inputs = x.index_select(0, flat).flatten(1)
        if means is not None:
            inputs.view(*table.shape, -1).sub_(means[clients, None])
        if norms is None:
            input_norms = _norms(inputs, layer.bias is not None)
        elif same_norms:
            input_norms = norms[0].index_select(0, flat)
        else:
            input_norms = torch.cat([norms[c].index_select(0, own) for c, own in zip(clients, table, strict=True)])
        targets, places = y.index_select(0, flat).view(*table.shape, *y.shape[1:]), inputs.view(*table.shape, -1)
        everyone = len(clients) == len(counts)
        at = slice(None) if everyone else torch.tensor(clients)
        part = _sums(layer, vectors[at], places, targets, input_norms.view_as(table), clips[at], real, most)
        if everyone and start == 0 and stop == max(counts):
            return part
        total[at] += part
    return total


@torch.no_grad()
def closed_form_table_sums(
    layer: LinearLayer, vectors: Tensor, x: Tensor, y: Tensor, table: Tensor, clips: Tensor, norms: Tensor,
    which: Tensor, means: Tensor, limit: int,
) -> Tensor:  # fmt: skip
    """`closed_form_sums` for tables on a GPU, which the host never waits for.

    Args:
        layer: The model.
        vectors: Parameters, clients x p.
        x: The data.
        y: Its targets.
        table: Rows, clients x places, -1 where there is none.
        clips: Norm bound of each client.
        norms: The norms of all rows less each of some means, means x rows.
        which: For each client, which of those means is its own.
        means: Subtracted from each client's rows, clients x width.
        limit: Examples at a time.
    """
    total = torch.zeros_like(vectors, dtype=torch.float64)
    # Some of every client's places at a time.
    high = max(1, limit // max(1, len(table)))
    for rows in table.split(high, dim=1):
        real, at = rows >= 0, rows.clamp(min=0)
        places = (x.index_select(0, at.flatten()).flatten(1).view(*at.shape, -1)).sub_(means[:, None])
        input_norms = norms[which[:, None], at]
        places.masked_fill_(~input_norms.isfinite()[..., None], 0.0)
        most = table.shape[1]
        with matmul_precision("float32", x.device):
            total += _sums(layer, vectors, places, y[at], input_norms, clips, real, most, quick=False)
    return total


def padded_blocks(counts: Sequence[int], limit: int) -> Iterator[tuple[list[int], int, int]]:
    """Clients with batches of about the same size, and which part of their batches: at most `limit` examples, padded.

    Clients come largest first; of a batch larger than the limit there are several parts.
    """
    block: list[int] = []
    for c in sorted((c for c, count in enumerate(counts) if count), key=lambda c: -counts[c]):
        most = counts[block[0]] if block else 0
        if block and (counts[c] < _SIMILAR * most or most * (len(block) + 1) > limit):
            yield sorted(block), 0, most
            block = []
        if counts[c] > limit:
            yield from (([c], start, start + limit) for start in range(0, counts[c], limit))
        else:
            block = [*block, c]
    if block:
        yield sorted(block), 0, counts[block[0]]


def _table(drawn: Sequence[np.ndarray], multiple: int) -> tuple[Tensor, Tensor | None]:
    """Rows, clients x places, a client's first row where there are no more; and which are real, if not all are.

    Places beyond `multiple` are a multiple of it, if it is not 0.
    """
    sizes = [len(rows) for rows in drawn]
    most = max(sizes)
    width = -(-most // multiple) * multiple if 0 < multiple < most else most
    table = np.empty((len(drawn), width), dtype=np.int64)
    for place, rows, size in zip(table, drawn, sizes, strict=True):
        place[:size] = rows
        place[size:] = place[0]
    padded = None if min(sizes) == width else np.arange(width) < np.array(sizes)[:, None]
    return torch.from_numpy(table), None if padded is None else torch.from_numpy(padded)


def _sums(
    layer: LinearLayer, vectors: Tensor, x: Tensor, y: Tensor, input_norms: Tensor, clips: Tensor, real: Tensor | None,
    rows: int,
    quick: bool = True,
) -> Tensor:  # fmt: skip
    """The sums of clients with equally many places: x is clients x places x width, `input_norms` the norm of each row.

    `rows` is how many rows a client's complete sum has at most.
    """
    total = torch.empty_like(vectors, dtype=torch.float64)
    (weight, shift), (weight_total, shift_total) = layer.parts(vectors), layer.parts(total)
    # Outputs before examples, which is several times faster where there are few of them.
    columns = x.transpose(1, 2)
    out = torch.bmm(weight, columns) if shift is None else torch.baddbmm(shift[..., None], weight, columns)
    d = layer.loss.gradient(out, y, 1)
    found = _quick_factors(d, input_norms, clips) if quick else None
    if found is not None and bool(found[1].all()):
        scale = found[0]
    else:
        norms = _norms(d.transpose(1, 2).flatten(0, 1), False).view_as(input_norms) * input_norms
        # An input of such a norm would multiply factors so small that they have lost their digits.
        keep = norms.isfinite() & (input_norms / RANGE <= clips[:, None])
        exact = clip_factors(norms, clips[:, None], None, d.dtype, keep)
        scale = exact if found is None else torch.where(found[1], found[0], exact)
        d = d.masked_fill(~keep[:, None], 0.0)
        x = x.masked_fill(~keep[..., None], 0.0) if quick else x
    if real is not None:
        scale.mul_(real)
    most = partial_rows(rows)
    if quick and 0 < most < d.shape[2]:
        blocks = d.new_empty(len(d), d.shape[2] // most, d.shape[1], most)
        torch.mul(d.unflatten(2, (-1, most)).transpose(1, 2), scale.view(len(d), -1, 1, most), out=blocks)
        weight_total.copy_(summed_blocks(blocks, x))
        shifts = blocks.sum(3)
    else:
        weight_total.copy_(summed_products(d.mul_(scale[:, None]), x, rows))
        shifts = d.sum(2, dtype=d.dtype if d.shape[2] <= most else torch.float64)[:, None]
    if shift_total is not None:
        torch.sum(shifts, 1, out=shift_total, dtype=torch.float64)
    return total


def _quick_factors(d: Tensor, input_norms: Tensor, clips: Tensor) -> tuple[Tensor, Tensor] | None:
    """What `clip_factors` gives, a few roundings smaller, in the dtype of `d` alone, and for which rows that holds."""
    if d.dtype != torch.float32 or d.shape[1] > _FEW_CLASSES or not float(clips.min()) > 1 / _LARGE:
        return None
    eps, tiny = torch.finfo(d.dtype).eps, torch.finfo(d.dtype).tiny
    # A square that is too small for the dtype vanishes: as much is added for each.
    norms = d.square().sum(1).add_(d.shape[1] * tiny).sqrt_().mul_(input_norms)
    # Each of the sum's roundings counts a quarter: half of half, after the root.
    bound = (clips * (clip_margin(d.dtype) - (d.shape[1] / 4 + 4) * eps)).to(d.dtype)[:, None]
    return (bound / norms).clamp_(max=1.0), torch.maximum(norms, input_norms) < _LARGE


def _norms(rows: Tensor, biased: bool) -> Tensor:
    exact = upper_norms(lambda precisely: squared_norms(rows, precisely) + (1.0 if biased else 0.0), rows)
    return exact.mul_(1.0 + torch.finfo(rows.dtype).eps).to(rows.dtype)


def _flattened(part: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested `nn.Sequential`s, in order."""
    if type(part) is nn.Sequential:
        for child in part:
            yield from _flattened(child)
    else:
        yield part
