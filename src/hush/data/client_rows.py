"""The clients' rows: one array in which each client's training rows are followed by its test rows.

Where the persons that rows are about are known, they are divided and held out as a whole: a client has all rows of a
person that it has at all (of those that the data say it has), and they are all training rows or all test rows. A
client's training rows then lie one person after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from hush.config import DataConfig
from hush.data import partition, transforms
from hush.data.datasets import Dataset
from hush.data.sizes import held_out
from hush.types import HushError

EVERYONE = -1


@dataclass(frozen=True, kw_only=True)
class Clients:
    """A dataset partitioned among clients.

    Attributes:
        dataset: All rows.
        shares: What each client gets, and how its rows are transformed.
        train: The training rows of each client.
        test: The test rows of each client.
        seed: Of the division.
        persons: The number of rows of each training person of each client, in order; empty if persons are not known.
        groups: Where rows have budgets of their own, each budget of a client's training rows (or persons, who have the
            smallest of their rows) with their number. They lie in this order.
    """

    dataset: Dataset
    shares: tuple[partition.Share, ...]
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    seed: int
    persons: tuple[np.ndarray, ...] = ()
    groups: tuple[tuple[tuple[float, int], ...], ...] = ()

    @property
    def train_counts(self) -> list[int]:
        """The number of training rows of each client."""
        return [len(rows) for rows in self.train]

    @property
    def test_counts(self) -> list[int]:
        """The number of test rows of each client."""
        return [len(rows) for rows in self.test]

    def bounds(self) -> list[tuple[int, int, int]]:
        """For each client: first training row, first test row, and end, as indices into the results of `arrays`."""
        ends = np.cumsum([0, *(a + b for a, b in zip(self.train_counts, self.test_counts, strict=True))]).tolist()
        return [(start, start + n, end) for (start, end), n in zip(pairwise(ends), self.train_counts, strict=True)]

    @cached_property
    def static(self) -> bool:
        """Whether no client's data change between rounds; `phase` is then the same in every round."""
        return all(len(share.salt) <= 1 for share in self.shares)

    def phase(self, round_number: int) -> tuple[int, ...]:
        """Return the data version of each client in a round: the arrays change when it changes."""
        return tuple(transforms.phase(share, round_number) for share in self.shares)

    def arrays(self, round_number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and labels of all clients in a round."""
        data, places = self.dataset, self.places
        if places is not None:
            return data.x[places], data.y[places]
        low, high = transforms.limits(data.x)
        parts = [
            transforms.apply(
                data.x[rows], data.y[rows], share, round_number, self.seed, client, data.classes, low=low, high=high
            )
            for client, (share, rows) in enumerate(zip(self.shares, self._rows(), strict=True))
        ]
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])

    @cached_property
    def places(self) -> np.ndarray | None:
        """The rows of the dataset that `arrays` returns, in order; none if clients hold other rows made of them."""
        if any((share.rotate, share.flip, share.salt) != (0, 0, ()) for share in self.shares):
            return None
        return np.concatenate(self._rows())

    def _rows(self) -> list[np.ndarray]:
        return [np.concatenate(pair) for pair in zip(self.train, self.test, strict=True)]


def divide(dataset: Dataset, config: DataConfig, seed: int) -> Clients:
    """Partition a dataset over clients, and hold out each client's test rows."""
    found = _divided(dataset, config, seed) if dataset.person is None else _divided_persons(dataset, config, seed)
    return found if dataset.row_budget is None else _by_budget(found, dataset.row_budget)


def _by_budget(found: Clients, budget: np.ndarray) -> Clients:
    """Each client's training rows, or persons, in the order of their budgets."""
    train, persons, groups = [], [], []
    for client, rows in enumerate(found.train):
        sizes = found.persons[client] if found.persons else np.ones(len(rows), np.int64)
        units = np.split(rows, np.cumsum(sizes)[:-1])
        own = np.array([budget[unit].min() for unit in units])
        order = np.argsort(own, kind="stable")
        train.append(np.concatenate([units[at] for at in order]))
        persons.append(sizes[order])
        values, counts = np.unique(own, return_counts=True)
        groups.append(tuple(zip(values.tolist(), counts.tolist(), strict=True)))
    kept = tuple(persons) if found.persons else ()
    return replace(found, train=tuple(train), persons=kept, groups=tuple(groups))


def _divided_persons(dataset: Dataset, config: DataConfig, seed: int) -> Clients:
    persons = persons_of(dataset)
    first = np.array([rows[0] for rows in persons])
    # One row stands for each person while persons are divided.
    owner = None if dataset.owner is None else dataset.owner[first]
    found = _divided(replace(dataset, x=dataset.x[first], y=dataset.y[first], owner=owner), config, seed)
    return Clients(
        dataset=dataset,
        shares=tuple(replace(share, rows=_rows_of(persons, share.rows)) for share in found.shares),
        train=tuple(_rows_of(persons, own) for own in found.train),
        test=tuple(_rows_of(persons, own) for own in found.test),
        seed=seed,
        persons=tuple(np.array([len(persons[person]) for person in own], np.int64) for own in found.train),
    )


def persons_of(dataset: Dataset) -> list[np.ndarray]:
    """Return the rows of each person, one person after the other; the rows of a person at two clients are two persons.

    Only for a dataset whose persons are known.
    """
    assert dataset.person is not None
    _, codes = np.unique(dataset.person, return_inverse=True)
    if dataset.owner is not None:
        _, codes = np.unique(dataset.owner * (int(codes.max()) + 1) + codes, return_inverse=True)
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])


def _rows_of(persons: Sequence[np.ndarray], chosen: np.ndarray) -> np.ndarray:
    return np.concatenate([persons[person] for person in chosen]) if len(chosen) else np.empty(0, np.int64)


def _divided(dataset: Dataset, config: DataConfig, seed: int) -> Clients:
    natural = "iid" if dataset.owner is None else "owner"
    spec = natural if config.partition == "auto" else config.partition
    overlap = partition.overlaps(spec)
    sizes = partition.counts(config.sizes, config.clients, len(dataset.y), seed, overlap)
    if overlap:
        return _overlapping(dataset, config, spec, sizes, seed)
    shares = partition.split(spec, dataset.y, sizes, seed, dataset.classes, dataset.owner)
    if len(shares) != config.clients:
        raise HushError(
            f"data.partition: gives {len(shares)} clients, data.clients is {config.clients}", "data.clients"
        )
    pairs = [partition.holdout(share.rows, config.test_fraction, seed, c) for c, share in enumerate(shares)]
    train, test = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    return Clients(dataset=dataset, shares=tuple(shares), train=train, test=test, seed=seed)


def _overlapping(
    dataset: Dataset, config: DataConfig, spec: partition.Spec, sizes: Sequence[int], seed: int
) -> Clients:
    """The same for clients with rows in common: no row is a training row of one client and a test row of another."""
    pools = partition.holdout(np.arange(len(dataset.y)), config.test_fraction, seed, EVERYONE)
    tests = [held_out(size, config.test_fraction) for size in sizes]
    wanted = ([size - test for size, test in zip(sizes, tests, strict=True)], tests)
    train, test = (
        [
            replace(share, rows=pool[share.rows])
            for share in partition.split(spec, dataset.y[pool], counts, seed, dataset.classes)
        ]
        for pool, counts in zip(pools, wanted, strict=True)
    )
    shares = [replace(a, rows=np.concatenate([a.rows, b.rows])) for a, b in zip(train, test, strict=True)]
    return Clients(
        dataset=dataset,
        shares=tuple(shares),
        train=tuple(a.rows for a in train),
        test=tuple(b.rows for b in test),
        seed=seed,
    )
