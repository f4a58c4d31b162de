"""Splitters: the methods of dividing rows among clients.

Each returns one array of row numbers per client, without repeats; only `shared` gives the same row to several clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hush.data.shards import shard_table
from hush.data.validation import wrong

Rows = npt.NDArray[np.int64]


def iid(total: int, counts: Sequence[int], gen: np.random.Generator) -> list[Rows]:
    """Return rows at random."""
    return _cut(gen.permutation(total), counts)


def shared(total: int, counts: Sequence[int], gen: np.random.Generator) -> list[Rows]:
    """Return rows sampled independently for each client; clients can share rows."""
    return [gen.permutation(total)[:count] for count in counts]


def dirichlet(labels: Rows, counts: Sequence[int], gen: np.random.Generator, classes: int, alpha: float) -> list[Rows]:
    """Return rows whose label proportions per client are drawn from Dir(alpha), as far as each class has rows.

    Clients are processed in random order. When a class has no rows left, the client's other classes provide the rest.
    """
    left = np.bincount(labels, minlength=classes)
    taken = np.zeros((len(counts), len(left)), np.int64)
    for client in gen.permutation(len(counts)):
        shares = gen.dirichlet(np.full(len(left), alpha))
        while (need := counts[client] - int(taken[client].sum())) > 0:
            odds = np.where(left > 0, shares, 0.0)
            if odds.sum() < 1e-9:
                odds = left.astype(np.float64)
            drawn = np.minimum(gen.multinomial(need, odds / odds.sum()), left)
            taken[client] += drawn
            left -= drawn
    return _deal(labels, taken, gen)


def shards(
    labels: Rows, counts: Sequence[int], gen: np.random.Generator, classes: int, limit: int, key: str
) -> list[Rows]:
    """Return rows of at most `limit` classes per client."""
    sizes = np.bincount(labels, minlength=classes)
    return _deal(labels, shard_table(sizes, counts, gen, min(limit, len(sizes)), key), gen)


def similarity(labels: Rows, counts: Sequence[int], gen: np.random.Generator, gamma: float) -> list[Rows]:
    """Return a fraction `gamma` of every client's rows at random, and the rest from the rows sorted by label.

    The sorted pieces are assigned to clients in random order, so client numbers say nothing about labels.
    """
    used = gen.permutation(len(labels))[: sum(counts)]
    mixed = [round(gamma * count) for count in counts]
    common = _cut(used, mixed)
    rest = used[sum(mixed) :]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    order = gen.permutation(len(counts))
    pieces = dict(zip(order.tolist(), _cut(rest, [counts[at] - mixed[at] for at in order]), strict=True))
    return [gen.permutation(np.concatenate([common[at], pieces[at]])) for at in range(len(counts))]


def by_owner(owner: Rows | None, counts: Sequence[int], gen: np.random.Generator) -> list[Rows]:
    """Return rows that belong to each client by nature, as many as its count."""
    if owner is None:
        raise wrong(
            "data.partition",
            '"owner" needs a dataset with natural clients (synthetic, dp-scaffold-users); accepted here: "iid"',
        )
    divided: list[Rows] = []
    for client, count in enumerate(counts):
        own = np.flatnonzero(owner == client)
        if len(own) < count:
            raise wrong(
                "data.sizes", f"{count} rows for client {client}, which owns {len(own)}; accepted: at most {len(own)}"
            )
        divided.append(gen.permutation(own)[:count])
    return divided


def _cut(rows: Rows, counts: Sequence[int]) -> list[Rows]:
    return np.split(rows[: sum(counts)], np.cumsum(counts)[:-1])


def _deal(labels: Rows, taken: npt.NDArray[np.int64], gen: np.random.Generator) -> list[Rows]:
    """Return rows according to a table with the number of rows of each class for every client."""
    pieces: list[list[Rows]] = [[] for _ in taken]
    for label in range(taken.shape[1]):
        pool = gen.permutation(np.flatnonzero(labels == label))
        for client, piece in enumerate(_cut(pool, taken[:, label].tolist())):
            pieces[client].append(piece)
    return [gen.permutation(np.concatenate(parts)) for parts in pieces]
