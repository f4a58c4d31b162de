"""Softmax regression in closed form: the clipped sums of a model that is one linear layer.

An example's gradient is the outer product of (softmax - label) and its input, so its norm is a product of two norms, of
which that of the input never changes. Nothing is recorded and no gradient is formed.

Guarantees:
    - Those of `hush.local.per_example`.
    - A client's numbers do not depend on the other clients in the batch.

Edge cases:
    - `closed` is none for every model that is not exactly that, and for one that somebody listens to (hooks).
    - Inputs that are not finite have a norm that is not finite, and add nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from hush.local.clip import factors
from hush.local.fuse import heard
from hush.local.norms import bounded, squares
from hush.local.precision import multiplying
from hush.models import Model

_BLOCK = 1 << 20  # numbers of which the norms are taken at a time
_NEAR = 1 << 21  # numbers of rows that are worked on at a time: as many as stay in a processor's cache
_ALIKE = 0.7  # a batch this much smaller than the largest is not padded to it
_FEW = 64  # classes over which squares are summed in float32
_LARGE = 1e15  # norms beyond, or clips below its inverse, are left to float64


_KEPT: MutableMapping[Tensor, dict[tuple[int, bool], tuple[Tensor | None, Tensor]]] = WeakTensorKeyDictionary()


@dataclass(frozen=True)
class Closed:
    """Where the weights and biases of a linear model lie in its vector.

    Attributes:
        classes: Outputs.
        width: Inputs.
        weight: Where the weights begin.
        bias: Where the biases begin, if there are any.
    """

    classes: int
    width: int
    weight: int
    bias: int | None

    def parts(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Views of the weights, clients x classes x width, and of the biases, clients x classes."""
        weight = vectors[:, self.weight : self.weight + self.classes * self.width]
        shift = None if self.bias is None else vectors[:, self.bias : self.bias + self.classes]
        return weight.unflatten(1, (self.classes, self.width)), shift


def closed(model: Model, x: Tensor) -> Closed | None:
    """The closed form of a model that is one linear layer, after flattening or nothing."""
    layers = list(_chain(model.module))
    *before, last = layers
    if type(last) is not nn.Linear or any(heard(part) for part in model.module.modules()):
        return None
    flat = any(type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1) for part in before)
    if not all(type(part) in (nn.Flatten, nn.Identity) for part in before) or not (flat or x.ndim == 2):
        return None
    offsets = dict(zip(model.layout.names, accumulate(model.layout.sizes, initial=0), strict=False))
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    weight, bias = (None if p is None else offsets.get(names[id(p)]) for p in (last.weight, last.bias))
    if weight is None or len(offsets) != 1 + (last.bias is not None) or x[0].numel() != last.in_features:
        return None
    return Closed(last.out_features, last.in_features, weight, bias)


def lengths(x: Tensor, ranges: Iterable[tuple[int, int]], biased: bool, centre: Tensor | None = None) -> Tensor:
    """The norm of each row in those ranges (of the row and a one, if biased), never too small."""
    out = torch.empty(len(x), dtype=x.dtype, device=x.device)
    step = max(1, _BLOCK // max(1, x[:1].numel()))
    for first, end in ranges:
        for start in range(first, end, step):
            part = slice(start, min(start + step, end))
            rows = x[part].flatten(1)
            out[part] = _lengths(rows if centre is None else rows - centre.to(x), biased)
    return out


def known_lengths(x: Tensor, centres: Sequence[Tensor | None], biased: bool) -> Tensor:
    """`lengths` of all rows from each of these centres, centres x rows. They are kept for as long as the data are."""
    kept = _KEPT.setdefault(x, {})
    found = []
    for centre in centres:
        key = (id(centre), biased)
        if key not in kept:
            # The centre is kept beside its lengths, so that no other can come to have its identity.
            kept[key] = (centre, lengths(x, [(0, len(x))], biased, centre))
        found.append(kept[key][1])
    return torch.stack(found)


@torch.no_grad()
def linear_sums(
    form: Closed,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    drawn: Sequence[Tensor],
    clips: Tensor,
    limit: int,
    known: Sequence[Tensor] | None = None,
    centres: Tensor | None = None,
) -> Tensor:
    """The sum of each client, clients x p.

    Args:
        form: The model.
        vectors: Parameters, clients x p.
        x: The data.
        y: Its labels.
        drawn: The rows of each client.
        clips: Norm bound of each client.
        limit: Examples at a time.
        known: For each client, the lengths of all rows of the data from its centre.
        centres: What is taken off each client's rows, clients x width.
    """
    total = torch.zeros_like(vectors)
    # NumPy's views: asking a tensor for its length or a part of it takes several times longer.
    arrays = [rows.numpy() for rows in drawn]
    counts = [len(rows) for rows in arrays]
    alike = known is not None and all(each is known[0] for each in known)
    for clients, start, stop in blocks(counts, min(limit, max(1, _NEAR // form.width))):
        table, real = _table([arrays[c][start:stop] for c in clients])
        flat = table.view(-1)
        inputs = x.index_select(0, flat).flatten(1)
        if centres is not None:
            inputs.view(*table.shape, -1).sub_(centres[clients, None])
        if known is None:
            long = _lengths(inputs, form.bias is not None)
        elif alike:
            long = known[0].index_select(0, flat)
        else:
            long = torch.cat([known[c].index_select(0, rows) for c, rows in zip(clients, table, strict=True)])
        labels, places = y.index_select(0, flat).view_as(table), inputs.view(*table.shape, -1)
        everyone = len(clients) == len(counts)
        at = slice(None) if everyone else torch.tensor(clients)
        mine = _sums(form, vectors[at], places, labels, long.view_as(table), clips[at], real)
        if everyone and start == 0 and stop == max(counts):
            return mine
        total[at] += mine
    return total


@torch.no_grad()
def table_sums(
    form: Closed, vectors: Tensor, x: Tensor, y: Tensor, table: Tensor, clips: Tensor, known: Tensor, which: Tensor,
    centres: Tensor, limit: int,
) -> Tensor:  # fmt: skip
    """`linear_sums` for tables on an accelerator, which is never waited for.

    Args:
        form: The model.
        vectors: Parameters, clients x p.
        x: The data.
        y: Its labels.
        table: Rows, clients x places, -1 where there is none.
        clips: Norm bound of each client.
        known: The lengths of all rows from each of some centres, centres x rows.
        which: For each client, which of those centres is its own.
        centres: What is taken off each client's rows, clients x width.
        limit: Examples at a time.
    """
    total = torch.zeros_like(vectors)
    # A piece of every client's places at a time.
    high = max(1, limit // max(1, len(table)))
    for rows in table.split(high, dim=1):
        real, at = rows >= 0, rows.clamp(min=0)
        places = (x.index_select(0, at.flatten()).flatten(1).view(*at.shape, -1)).sub_(centres[:, None])
        long = known[which[:, None], at]
        places.masked_fill_(~long.isfinite()[..., None], 0.0)
        with multiplying("float32", x.device):
            total += _sums(form, vectors, places, y[at], long, clips, real, quick=False)
    return total


def blocks(counts: Sequence[int], limit: int) -> Iterator[tuple[list[int], int, int]]:
    """Clients with batches of about the same size, and which part of their batches: at most `limit` examples, padded.

    Clients come largest first; of a batch larger than the limit there are several parts.
    """
    block: list[int] = []
    for c in sorted((c for c, count in enumerate(counts) if count), key=lambda c: -counts[c]):
        most = counts[block[0]] if block else 0
        if block and (counts[c] < _ALIKE * most or most * (len(block) + 1) > limit):
            yield sorted(block), 0, most
            block = []
        if counts[c] > limit:
            yield from (([c], start, start + limit) for start in range(0, counts[c], limit))
        else:
            block = [*block, c]
    if block:
        yield sorted(block), 0, counts[block[0]]


def _table(drawn: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """Rows, clients x places, a client's first row where there are no more; and which are real, if not all are."""
    sizes = [len(rows) for rows in drawn]
    table = np.empty((len(drawn), max(sizes)), dtype=np.int64)
    for place, rows, size in zip(table, drawn, sizes, strict=True):
        place[:size] = rows
        place[size:] = place[0]
    padded = None if min(sizes) == max(sizes) else np.arange(max(sizes)) < np.array(sizes)[:, None]
    return torch.from_numpy(table), None if padded is None else torch.from_numpy(padded)


def _sums(
    form: Closed, vectors: Tensor, x: Tensor, y: Tensor, long: Tensor, clips: Tensor, real: Tensor | None,
    quick: bool = True,
) -> Tensor:  # fmt: skip
    """The sums of clients with equally many places: x is clients x places x width, `long` the length of each row."""
    total = torch.empty_like(vectors)
    (weight, shift), (weight_total, shift_total) = form.parts(vectors), form.parts(total)
    # Classes before examples, which is several times faster where there are few of them.
    columns = x.transpose(1, 2)
    out = torch.bmm(weight, columns) if shift is None else torch.baddbmm(shift[..., None], weight, columns)
    d = torch.softmax(out, 1)
    d.scatter_add_(1, y[:, None], d.new_full((), -1.0).expand(len(y), 1, y.shape[1]))
    scale = _quick_factors(d, long, clips) if quick else None
    if scale is None:
        norms = _lengths(d.transpose(1, 2).flatten(0, 1), False).view_as(long) * long
        finite = norms.isfinite()
        scale = factors(norms, clips[:, None], None, d.dtype)
        d = d.masked_fill(~finite[:, None], 0.0)
        x = x.masked_fill(~finite[..., None], 0.0) if quick else x
    if real is not None:
        scale.mul_(real)
    d.mul_(scale[:, None])
    weight_total.copy_(torch.bmm(d, x))
    if shift_total is not None:
        torch.sum(d, 2, out=shift_total)
    return total


def _quick_factors(d: Tensor, long: Tensor, clips: Tensor) -> Tensor | None:
    """What `factors` gives, a few roundings smaller, in the type of `d` alone; none where that has too few digits."""
    if d.dtype != torch.float32 or d.shape[1] > _FEW:
        return None
    eps, tiny = torch.finfo(d.dtype).eps, torch.finfo(d.dtype).tiny
    # A square that is too small for the type vanishes: as much is added for each.
    norms = d.square().sum(1).add_(d.shape[1] * tiny).sqrt_().mul_(long)
    # Each of the sum's roundings counts a quarter: half of half, after the root.
    bound = (clips * (1.0 - (d.shape[1] / 4 + 8) * eps)).to(d.dtype)[:, None]
    if not (float(norms.amax()) < _LARGE and float(clips.min()) > 1 / _LARGE):
        return None
    return (bound / norms).clamp_(max=1.0)


def _lengths(rows: Tensor, biased: bool) -> Tensor:
    exact = bounded(lambda precisely: squares(rows, precisely) + (1.0 if biased else 0.0), rows)
    return exact.mul_(1.0 + torch.finfo(rows.dtype).eps).to(rows.dtype)


def _chain(part: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested sequences, in order."""
    if type(part) is nn.Sequential:
        for child in part:
            yield from _chain(child)
    else:
        yield part
