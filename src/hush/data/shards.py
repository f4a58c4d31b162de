"""Shards: a partition that gives no client more than a set number of classes, with exact counts.

Each client's rows come as `limit` equal shards whose classes are drawn at random, as in Robust-HDP (appendix B.1).
There classes and shards match in size; here any sizes do, so the last shards may not fit. What is then missing is
found by passing rows along chains of clients (augmenting paths), which never adds a class beyond the limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hush.data.validation import wrong

ATTEMPTS = 20

Table = npt.NDArray[np.int64]


def shard_table(sizes: Table, counts: Sequence[int], gen: np.random.Generator, limit: int, key: str) -> Table:
    """Return how many rows of each class every client gets: (clients, classes), at most `limit` positive per client."""
    for _ in range(ATTEMPTS):
        taken, left = _draw(sizes, counts, gen, limit)
        if all(_complete(taken, left, client, count, limit) for client, count in enumerate(counts)):
            return taken
    raise wrong(
        key,
        f"found {limit}, with which {len(counts)} clients of up to {max(counts)} rows do not fit into classes of"
        f" {int(sizes.min())} to {int(sizes.max())} rows; accepted: more classes, or fewer rows in data.sizes",
    )


def _draw(sizes: Table, counts: Sequence[int], gen: np.random.Generator, limit: int) -> tuple[Table, Table]:
    """Assign shards in random order, larger ones first, each to a class sampled by its remaining rows."""
    left = sizes.copy()
    taken = np.zeros((len(counts), len(sizes)), np.int64)
    owner = np.repeat(np.arange(len(counts)), limit)
    size = np.concatenate([np.diff(np.arange(limit + 1) * count // limit) for count in counts])
    order = gen.permutation(len(size))
    for shard in order[np.argsort(-size[order], kind="stable")]:
        fits = np.where(left >= size[shard], left, 0)
        odds = fits if fits.any() else left
        if size[shard] and odds.any():
            chosen = gen.choice(len(sizes), p=odds / odds.sum())
            amount = min(size[shard], left[chosen])
            taken[owner[shard], chosen] += amount
            left[chosen] -= amount
    return taken, left


def _complete(taken: Table, left: Table, client: int, count: int, limit: int) -> bool:
    while (need := count - int(taken[client].sum())) > 0:
        if not _augment(taken, left, client, need, limit):
            return False
    return True


def _augment(taken: Table, left: Table, client: int, need: int, limit: int) -> bool:
    """Move rows along the shortest path from a class with remaining rows to the client; False if there is no path."""
    taker: dict[int, int] = {}
    given: dict[int, int] = {}
    queue = deque([client])
    while queue:
        at = queue.popleft()
        classes = np.flatnonzero(taken[at])
        for found in classes if len(classes) >= limit else range(len(left)):
            label = int(found)
            if label in taker:
                continue
            taker[label] = at
            if left[label] > 0:
                _shift(taken, left, taker, given, label, need)
                return True
            for other in map(int, np.flatnonzero(taken[:, label])):
                if other != client and other not in given:
                    given[other] = label
                    queue.append(other)
    return False


def _shift(taken: Table, left: Table, taker: dict[int, int], given: dict[int, int], label: int, need: int) -> None:
    chain: list[tuple[int, int]] = []
    at = taker[label]
    while at in given:
        chain.append((at, given[at]))
        at = taker[given[at]]
    amount = min([need, int(left[label]), *(int(taken[link]) for link in chain)])
    left[label] -= amount
    taken[taker[label], label] += amount
    for giver, passed in chain:
        taken[giver, passed] -= amount
        taken[taker[passed], passed] += amount
