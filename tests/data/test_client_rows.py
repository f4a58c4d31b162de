"""The clients' rows: persons are divided and held out as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hush.config import DataConfig
from hush.data import from_arrays
from hush.data.client_data import with_persons
from hush.data.client_rows import Clients, divide
from hush.data.datasets import Dataset


def people(rows_each: int = 7, persons: int = 60, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    keys = rng.permutation(np.repeat(np.arange(persons), rng.integers(1, rows_each, persons)))
    x = np.stack([keys, np.arange(len(keys))], axis=1).astype(np.float32)
    return with_persons(from_arrays(x, (keys % 3).astype(np.int64), classes=3), np.array([f"p{key}" for key in keys]))


def check_whole(found: Clients, *, alone: bool = True) -> None:
    """A person's rows are all at one client and on one side, one person after the other, and none is lost."""
    keys = found.dataset.person
    assert keys is not None
    seen: dict[str, tuple[int, str]] = {}
    for client, sides in enumerate(zip(found.train, found.test, strict=True)):
        for side, rows in zip(("train", "test"), sides, strict=True):
            for key in set(keys[rows].tolist()):
                assert seen.setdefault(key, (client, side)) == (client, side) or not alone
                if alone:
                    assert (keys[rows] == key).sum() == (keys == key).sum()
        ends = np.cumsum(found.persons[client])
        assert ends[-1] == len(found.train[client])
        parts = np.split(keys[found.train[client]], ends[:-1])
        assert all(len(set(part.tolist())) == 1 for part in parts)
        assert len({part[0] for part in parts}) == len(parts)


@pytest.mark.parametrize(
    "partition",
    [
        "iid", {"name": "dirichlet", "alpha": 0.5}, {"name": "shards", "classes": 2},
        {"name": "rotation", "clusters": [2, 2]}, {"name": "similarity", "gamma": 0.3},
    ],
)  # fmt: skip
def test_persons_are_divided_and_held_out_as_a_whole(partition: str | Mapping[str, Any]) -> None:
    found = divide(people(), DataConfig(clients=4, partition=partition, test_fraction=0.3), seed=3)
    check_whole(found)
    assert [len(sizes) for sizes in found.persons] == [15 - round(0.3 * 15)] * 4, "sizes and fractions count persons"


def test_a_person_of_two_clients_is_a_person_at_each() -> None:
    data = people()
    owner = np.arange(len(data.y)) % 2
    found = divide(replace(data, owner=owner), DataConfig(clients=2, sizes=[40, 40]), seed=0)
    check_whole(found, alone=False)
    for client in (0, 1):
        assert (owner[found.train[client]] == client).all()


def test_overlapping_clients_share_persons() -> None:
    overlap = DataConfig(clients=3, partition={"name": "iid", "overlap": True}, sizes=30)
    found = divide(people(), overlap, seed=1)
    keys = found.dataset.person
    assert keys is not None
    trained, tested = (set(keys[np.concatenate(rows)].tolist()) for rows in (found.train, found.test))
    assert not trained & tested, "no person is trained on by one client and tested on by another"


def test_without_persons_rows_are_divided_as_before() -> None:
    data = replace(people(), person=None)
    found = divide(data, DataConfig(clients=4), seed=3)
    assert found.persons == ()
    alone = with_persons(data, np.arange(len(data.y)))
    same = divide(alone, DataConfig(clients=4), seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(found.train + found.test, same.train + same.test, strict=True))
