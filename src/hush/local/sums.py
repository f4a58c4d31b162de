"""Clipped sums piece by piece, for batches that are already arranged.

Guarantees:
    - Those of `hush.local.per_example`.

Edge cases:
    - A piece never holds more than `limit` examples, and a client's batch is cut only if it alone is larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from hush.local.arrange import Arrangement
from hush.local.clip import factors
from hush.local.even import Even
from hush.local.norms import bounded
from hush.local.precision import Precision, low_type, multiplying
from hush.local.ragged import Ragged
from hush.local.record import Recorder
from hush.local.terms import Term
from hush.models import unflatten


@torch.no_grad()
def ragged_sums(
    recorder: Recorder,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    counts: Sequence[int],
    clips: Tensor,
    limit: int,
    precision: Precision = "float32",
    rows: Tensor | None = None,
) -> Tensor:
    """The sum of each client, clients x p, from examples that lie client by client.

    Args:
        recorder: The model.
        vectors: Parameters, clients x p.
        x: Inputs, examples x shape.
        y: Labels.
        counts: How many examples each client has.
        clips: Norm bound of each client.
        limit: Examples in a piece.
        precision: How layers multiply.
        rows: Which rows of `x` and `y` the examples are, if not all in order; a piece of them is gathered at a time.
    """
    total, low = torch.zeros_like(vectors), low_type(precision)
    values, views = (unflatten(t, recorder.layout) for t in (vectors, total))
    for clients, sizes, part in pieces(counts, limit):
        arrangement = Ragged(clients, sizes, low)
        _add(recorder.terms(values, arrangement, *taken(x, y, rows, part)), views, arrangement, clips, None)
    return total


@torch.no_grad()
def even_sums(
    recorder: Recorder,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    limit: int,
    precision: Precision = "float32",
    blind: bool = False,
    rows: Tensor | None = None,
) -> Tensor:
    """The same from padded examples in the order of `hush.local.even`; `mask` is true for the real ones.

    If `blind`, nothing is asked of the device, so that the work can be recorded: examples are cleared of NaN in any
    case, not only if there are such.
    """
    total = torch.zeros_like(vectors)
    values, views = (unflatten(t, recorder.layout) for t in (vectors, total))
    width = max(1, limit // len(vectors)) * len(vectors)
    for start in range(0, len(mask), width):
        part = slice(start, min(start + width, len(mask)))
        arrangement = Even(len(vectors), (part.stop - start) // len(vectors), vectors.device, precision)
        with multiplying(precision, vectors.device):
            terms = recorder.terms(values, arrangement, *taken(x, y, rows, part))
        with multiplying("float32", vectors.device):
            _add(terms, views, arrangement, clips, mask[part], blind)
    return total


def taken(x: Tensor, y: Tensor, rows: Tensor | None, part: slice) -> tuple[Tensor, Tensor]:
    """A part of the examples, or of the rows that they are."""
    if rows is None:
        return x[part], y[part]
    return x.index_select(0, rows[part]), y.index_select(0, rows[part])


def pieces(counts: Sequence[int], limit: int) -> Iterator[tuple[list[int], list[int], slice]]:
    """Clients, their shares and the rows of each piece."""
    clients: list[int] = []
    sizes: list[int] = []
    start = end = 0
    for client, count in enumerate(counts):
        if end - start + count > limit and clients:
            yield clients, sizes, slice(start, end)
            clients, sizes, start = [], [], end
        whole = math.ceil(count / limit)
        for number in range(whole):
            share = count // whole + (number < count % whole)
            clients, sizes, end = [*clients, client], [*sizes, share], end + share
            if whole > 1:
                yield clients, sizes, slice(start, end)
                clients, sizes, start = [], [], end
    if clients:
        yield clients, sizes, slice(start, end)


def _add(
    terms: Mapping[str, Term],
    totals: Mapping[str, Tensor],
    clients: Arrangement,
    clips: Tensor,
    mask: Tensor | None,
    blind: bool = False,
) -> None:
    """Add the clipped gradients to the totals."""
    if not terms:
        return
    like = next(iter(totals.values()))

    def total(exact: bool) -> Tensor:
        return reduce(torch.add, [term.squares(exact) for term in terms.values()])

    norms = bounded(total, like)
    finite = norms.isfinite()
    clean = not blind and bool(finite.all())
    scale = factors(norms, clients.spread(clips), mask, like.dtype, finite)
    dropped = ~finite
    for name, term in terms.items():
        (term if clean else term.cleared(dropped)).add(totals[name], scale, clients)
