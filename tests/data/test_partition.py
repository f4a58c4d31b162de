"""Partitions: exact counts, no row twice, the promised kind of difference, and errors that name the key."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.config import DataConfig
from hush.data import Share, counts, from_arrays, holdout, split, transforms
from hush.data.client_rows import Clients, divide
from hush.seeds import rng
from hush.types import HushError

MNIST_CLASSES = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
SPECS = (
    "iid",
    {"name": "dirichlet", "alpha": 0.3},
    {"name": "shards", "classes": 4},
    {"name": "similarity", "gamma": 0.1},
    {"name": "rotation", "clusters": [2, 3, 5]},
    {"name": "label-flip", "clusters": [4, 6], "base": {"name": "dirichlet", "alpha": 1}},
    {"name": "quality", "groups": [5, 5], "density": [0.0, 0.4], "base": {"name": "shards", "classes": 3}},
)


def labels_of(sizes: tuple[int, ...]) -> np.ndarray:
    return rng(0, "labels").permutation(np.repeat(np.arange(len(sizes)), sizes))


def exact(shares: list[Share], sizes: list[int], total: int) -> bool:
    """Whether the shares have these sizes and no row twice."""
    rows = np.concatenate([share.rows for share in shares])
    once = len(np.unique(rows)) == len(rows) and rows.min() >= 0 and rows.max() < total
    return bool(once) and [len(share.rows) for share in shares] == sizes


def class_counts(shares: list[Share], labels: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(labels[share.rows], minlength=10) for share in shares])


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("part", [1.0, 0.6])
def test_every_partition_is_exact_and_replayable(spec: Any, part: float) -> None:
    labels = labels_of((97, 103, 110, 88, 100, 95, 105, 99, 101, 102))
    sizes = counts({"name": "lognormal", "sigma": 0.5}, 10, int(part * len(labels)), seed=1)
    shares = split(spec, labels, sizes, 3, 10)
    assert exact(shares, sizes, len(labels))
    again, other = split(spec, labels, sizes, 3, 10), split(spec, labels, sizes, 4, 10)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(shares, again, strict=True))
    assert any(not np.array_equal(a.rows, b.rows) for a, b in zip(shares, other, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    spec=st.sampled_from(["iid", {"name": "dirichlet", "alpha": 1e-3}, {"name": "similarity", "gamma": 0.5}]),
    classes=st.lists(st.integers(0, 30), min_size=2, max_size=6),
)
def test_exact_for_any_sizes(data: st.DataObject, spec: Any, classes: list[int]) -> None:
    labels = labels_of(tuple(classes))
    if not len(labels):
        return
    cuts = sorted(data.draw(st.sets(st.integers(1, len(labels)), min_size=1, max_size=8)))
    sizes = np.diff([0, *cuts]).tolist()
    assert exact(split(spec, labels, sizes, 0, len(classes)), sizes, len(labels))


def test_dirichlet_alpha_sets_the_skew() -> None:
    labels = labels_of(MNIST_CLASSES)
    top = {}
    for alpha in (0.1, 1.0, 1000.0):
        table = class_counts(split({"name": "dirichlet", "alpha": alpha}, labels, [2000] * 20, 0, 10), labels)
        top[alpha] = (table.max(axis=1) / 2000).mean()
    # The largest of ten Dir(alpha) shares is 0.66 at 0.1, 0.29 at 1 and 0.1 in the limit.
    assert top[0.1] > 0.5 and 0.22 < top[1.0] < 0.36 and top[1000.0] < 0.13


@pytest.mark.parametrize(("clients", "limit"), [(20, 8), (60, 8), (20, 2), (100, 2), (20, 5), (10, 9), (20, 10)])
def test_shards_keep_within_the_classes_with_all_rows_used(clients: int, limit: int) -> None:
    labels = labels_of(MNIST_CLASSES)
    sizes = counts("equal", clients, len(labels), 0)
    for seed in range(3):
        shares = split({"name": "shards", "classes": limit}, labels, sizes, seed, 10)
        assert exact(shares, sizes, len(labels))
        assert (class_counts(shares, labels) > 0).sum(axis=1).max() <= limit


def test_shards_are_as_mixed_as_in_the_paper() -> None:
    labels = labels_of(MNIST_CLASSES)
    distinct = []
    for seed in range(5):
        table = class_counts(split({"name": "shards", "classes": 8}, labels, [3000] * 20, seed, 10), labels)
        distinct.append((table > 0).sum(axis=1).mean())
    # Eight of 160 shards at random fall into 5.8 classes on average.
    assert 5.3 < np.mean(distinct) < 6.6


def test_shards_with_unequal_counts_and_one_class() -> None:
    labels = labels_of(MNIST_CLASSES)
    sizes = counts({"name": "zipf", "exponent": 1.0}, 30, 40_000, 0)
    shares = split({"name": "shards", "classes": 3}, labels, sizes, 0, 10)
    assert exact(shares, sizes, len(labels))
    assert (class_counts(shares, labels) > 0).sum(axis=1).max() <= 3
    alone = split({"name": "shards", "classes": 1}, labels, [2700] * 20, 0, 10)
    assert ((class_counts(alone, labels) > 0).sum(axis=1) == 1).all()


def test_shards_that_cannot_fit() -> None:
    labels = labels_of(MNIST_CLASSES)
    with pytest.raises(HushError, match=r"data\.partition\.classes: found 1, .*6000 rows") as error:
        split({"name": "shards", "classes": 1}, labels, [6000] * 10, 0, 10)
    assert error.value.key == "data.partition.classes"


def test_similarity_goes_from_sorted_to_mixed() -> None:
    labels = labels_of((600,) * 10)
    tables = {
        gamma: class_counts(split({"name": "similarity", "gamma": gamma}, labels, [300] * 20, 0, 10), labels)
        for gamma in (0.0, 0.1, 1.0)
    }
    assert (tables[0.0].max(axis=1) == 300).all()
    # 270 sorted rows lie in one or two classes; 30 more are spread over all of them.
    assert (np.sort(tables[0.1], axis=1)[:, -2:].sum(axis=1) >= 270).all()
    assert ((tables[0.1] > 0).sum(axis=1) > 5).all()
    assert tables[1.0].max() < 60
    # Client numbers say nothing about labels: they are not in sorted order.
    order = tables[0.0].argmax(axis=1)
    assert not (np.diff(order) >= 0).all()


def test_clusters_and_groups() -> None:
    labels = labels_of((50,) * 10)
    turned = split({"name": "rotation", "clusters": [3, 6, 6, 6]}, labels, [20] * 21, 0, 10)
    assert [share.rotate for share in turned] == [0] * 3 + [1] * 6 + [2] * 6 + [3] * 6
    assert [share.group for share in turned] == [share.rotate for share in turned]
    assert all(share.flip == 0 and share.salt == () for share in turned)
    flipped = split({"name": "label-flip", "clusters": [1, 2]}, labels, [20] * 3, 0, 10)
    assert [(share.group, share.flip, share.rotate) for share in flipped] == [(0, 0, 0), (1, 1, 0), (1, 1, 0)]
    spec = {"name": "quality", "groups": [1, 2], "density": [0, 0.2], "change_at": 10, "density_after": [0.4, 0.0]}
    salted = split(spec, labels, [20] * 3, 0, 10)
    assert [share.salt for share in salted] == [((0, 0.0), (10, 0.4))] + [((0, 0.2), (10, 0.0))] * 2
    # The rows are those of the base alone.
    plain = split("iid", labels, [20] * 3, 0, 10)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(plain, salted, strict=True))


def test_owner() -> None:
    owner = np.array([1, 0, 1, 2, 0, 1, 2])
    labels = np.zeros(7, np.int64)
    shares = split("owner", labels, [2, 3, 1], 0, 10, owner)
    assert sorted(shares[0].rows) == [1, 4] and sorted(shares[1].rows) == [0, 2, 5] and shares[2].rows[0] in (3, 6)
    with pytest.raises(HushError, match=r"data\.sizes: 3 rows for client 2, which owns 2"):
        split("owner", labels, [2, 2, 3], 0, 10, owner)
    with pytest.raises(HushError, match=r"data\.partition: .*natural clients"):
        split("owner", labels, [2, 2], 0, 10)
    assert exact(split("iid", labels, [2, 3, 2], 0, 10, owner), [2, 3, 2], 7)


@pytest.mark.parametrize(
    ("spec", "key", "words"),
    [
        ("dirichelt", "data.partition", "did you mean dirichlet"),
        ("dirichlet", "data.partition.alpha", "missing"),
        ({"name": "dirichlet", "alpha": 0}, "data.partition.alpha", "above 0"),
        ({"name": "dirichlet", "alpha": "1"}, "data.partition.alpha", "found '1'"),
        ({"name": "dirichlet", "alpha": float("inf")}, "data.partition.alpha", "found inf"),
        ({"name": "dirichlet", "alpha": True}, "data.partition.alpha", "found True"),
        ({"name": "dirichlet", "alpha": 1, "gamma": 2}, "data.partition.gamma", "unknown"),
        ({"name": "iid", "alpha": 1}, "data.partition.alpha", "accepted: overlap"),
        ({"name": "shards", "classes": 0}, "data.partition.classes", "at least 1"),
        ({"name": "shards", "classes": 2.0}, "data.partition.classes", "integer"),
        ({"name": "similarity", "gamma": 1.1}, "data.partition.gamma", "at most 1"),
        ({"name": "rotation", "clusters": [1, 1]}, "data.partition.clusters", "a sum of 4"),
        ({"name": "rotation", "clusters": 4}, "data.partition.clusters", "a list"),
        ({"name": "rotation", "clusters": [2, 0, 2]}, "data.partition.clusters", r"clusters\[1\]: found 0"),
        ({"name": "rotation", "clusters": [4], "base": "rotation"}, "data.partition.base", "accepted: iid"),
        ({"name": "rotation", "clusters": [4], "base": "shards"}, "data.partition.base.classes", "missing"),
        ({"name": "label-flip", "clusters": [1, 1, 1, 1]}, "data.partition.clusters", "at most 3"),
        ({"name": "quality", "groups": [4], "density": [0.1, 0.2]}, "data.partition.density", "2 numbers for 1 groups"),
        ({"name": "quality", "groups": [4], "density": [1.5]}, "data.partition.density", "at most 1"),
        ({"name": "quality", "groups": [4], "density": 0.5}, "data.partition.density", "a list"),
        ({"name": "quality", "groups": [4]}, "data.partition.density", "missing"),
        (
            {"name": "quality", "groups": [4], "density": [0.1], "change_at": 3},
            "data.partition.density_after",
            "together",
        ),
        (
            {"name": "quality", "groups": [4], "density": [0.1], "density_after": [0]},
            "data.partition.change_at",
            "together",
        ),
        ({"alpha": 1}, "data.partition.name", "found None"),
        (3, "data.partition", "a name or a table"),
    ],
)
def test_wrong_specs_name_the_key(spec: Any, key: str, words: str) -> None:
    with pytest.raises(HushError, match=words) as error:
        split(spec, np.arange(40) % 3, [10] * 4, 0, 3)
    assert error.value.key == key and str(error.value).startswith(key) and "\n" not in str(error.value)


def test_rotation_has_at_most_four_clusters() -> None:
    with pytest.raises(HushError, match=r"data\.partition\.clusters: 5 clusters.*at most 4"):
        split({"name": "rotation", "clusters": [1] * 5}, np.arange(40) % 10, [2] * 5, 0, 10)


def test_split_refuses_more_rows_than_there_are() -> None:
    with pytest.raises(HushError, match=r"data\.sizes: 50 rows"):
        split("iid", np.zeros(40, int), [25, 25], 0, 10)
    with pytest.raises(HushError, match=r"data\.sizes\[1\]: found 0"):
        split("iid", np.zeros(40, int), [25, 0], 0, 10)


# --- sizes


def test_counts() -> None:
    assert counts("equal", 3, 10, 0) == [3, 3, 3]
    assert counts(2, 3, 10, 0) == [2, 2, 2]
    assert counts([1, 2, 7], 3, 10, 0) == [1, 2, 7]
    for spec in ({"name": "lognormal", "sigma": 0.5}, {"name": "zipf", "exponent": 1.0}):
        sizes = counts(spec, 50, 6000, 1)
        assert len(sizes) == 50 and 6000 - 50 <= sum(sizes) <= 6000 and min(sizes) >= 2
        assert max(sizes) > 1.5 * np.median(sizes)
        assert sizes == counts(spec, 50, 6000, 1) != counts(spec, 50, 6000, 2)
        assert counts(spec, 5, 10, 0) == [2] * 5


@pytest.mark.parametrize(
    ("spec", "clients", "key", "words"),
    [
        ("equal", 11, "data.clients", "11 clients for 10 rows"),
        ("equal", 0, "data.clients", "found 0"),
        ("eqaul", 2, "data.sizes", "did you mean equal"),
        (4, 3, "data.sizes", "12 rows in all, but there are 10"),
        (0, 3, "data.sizes", "found 0"),
        (True, 3, "data.sizes", "found True"),
        (2.5, 3, "data.sizes", "accepted"),
        ([5, 5], 3, "data.sizes", "2 numbers for 3 clients"),
        ([5, 5, 5], 3, "data.sizes", "15 rows"),
        ([5, -1, 5], 3, "data.sizes", r"data\.sizes\[1\]"),
        ({"name": "lognormal"}, 3, "data.sizes.sigma", "missing"),
        ({"name": "lognormal", "sigma": -1}, 3, "data.sizes.sigma", "above 0"),
        ({"name": "zipf", "sigma": 1}, 3, "data.sizes.sigma", "exponent"),
        ({"name": "zipf", "exponent": 1}, 6, "data.clients", "needs 2 rows per client"),
        ({"name": "equal", "sigma": 1}, 3, "data.sizes.sigma", "unknown"),
    ],
)
def test_wrong_counts_name_the_key(spec: Any, clients: int, key: str, words: str) -> None:
    with pytest.raises(HushError, match=words) as error:
        counts(spec, clients, 10, 0)
    assert error.value.key == key


def test_holdout() -> None:
    rows = np.arange(100, 3100)
    train, test = holdout(rows, 0.2, 0, 5)
    assert len(train) == 2400 and len(test) == 600
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), rows)
    assert not (np.diff(test) > 0).all()
    assert np.array_equal(test, holdout(rows, 0.2, 0, 5)[1])
    assert not np.array_equal(test, holdout(rows, 0.2, 0, 6)[1])
    for fraction, sizes in ((0.01, (2, 1)), (0.99, (1, 2)), (0.0, (3, 0))):
        assert tuple(map(len, holdout(rows[:3], fraction, 0, 0))) == sizes
    with pytest.raises(HushError, match=r"data\.test_fraction: client 7 has 1 rows"):
        holdout(rows[:1], 0.2, 0, 7)
    for fraction in (1.0, -0.1, float("nan")):
        with pytest.raises(HushError, match=r"data\.test_fraction"):
            holdout(rows, fraction, 0, 0)


# --- transforms

ROWS = np.arange(3)


def test_turns_and_flips_leave_their_arguments_alone() -> None:
    x = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    y = np.array([0, 9])
    for turns in range(4):
        turned, same = transforms.apply(x, y, Share(ROWS, rotate=turns), 0, 0, 0, 10)
        np.testing.assert_array_equal(turned[1, 2], np.rot90(x[1, 2], turns))
        np.testing.assert_array_equal(same, y)
        assert turned.flags.c_contiguous
    _, moved = transforms.apply(x, y, Share(ROWS, flip=3), 0, 0, 0, 10)
    np.testing.assert_array_equal(moved, [3, 2])
    np.testing.assert_array_equal(y, [0, 9])
    assert x[0, 0, 0, 1] == 1.0


@pytest.mark.parametrize("shape", [(2, 5), (2, 1, 4, 5)])
def test_rotation_needs_square_images(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    with pytest.raises(HushError, match=r"data\.partition: .*square images"):
        transforms.apply(x, np.zeros(2, np.int64), Share(ROWS, rotate=1), 0, 0, 0, 10)
    assert transforms.apply(x, np.zeros(2, np.int64), Share(ROWS), 0, 0, 0, 10)[0] is x


def salted(density: float, seed: int = 0, client: int = 0, round_number: int = 0) -> np.ndarray:
    share = Share(ROWS, salt=((0, density), (10, density)))
    x = np.full((50, 3, 28, 28), 0.5, np.float32)
    return transforms.apply(x, np.zeros(50, np.int64), share, round_number, seed, client, 10, low=-1.0, high=2.0)[0]


def test_salt_has_its_density_half_of_it_pepper() -> None:
    def fits(found: np.ndarray) -> bool:
        pixels = 50 * 28 * 28
        sigma = np.sqrt(0.1 * 0.9 / pixels)
        return all(abs(np.mean(found[:, 0] == value) - 0.1) < 4 * sigma for value in (-1.0, 2.0))

    assert fits(salted(0.2))
    assert not fits(salted(0.22))
    assert set(np.unique(salted(0.2))) == {-1.0, 0.5, 2.0}
    # A pixel turns as a whole.
    np.testing.assert_array_equal(salted(0.2)[:, 0], salted(0.2)[:, 2])


def test_salt_depends_on_seed_client_and_phase_only() -> None:
    first = salted(0.2)
    np.testing.assert_array_equal(first, salted(0.2, round_number=9))
    for other in (salted(0.2, seed=1), salted(0.2, client=1), salted(0.2, round_number=10)):
        assert not np.array_equal(first, other)


def test_salt_schedule_and_default_limits() -> None:
    share = Share(ROWS, salt=((0, 0.0), (10, 0.5)))
    assert [transforms.phase(share, at) for at in (0, 9, 10, 99)] == [0, 0, 1, 1]
    assert transforms.phase(Share(ROWS), 5) == 0
    assert transforms.phase(Share(ROWS, salt=((5, 0.5),)), 2) == 0
    x = rng(0, "x").random((20, 2, 8, 8)).astype(np.float32)
    x[:, 1] += 5
    y = np.zeros(20, np.int64)
    assert transforms.apply(x, y, share, 9, 0, 0, 10)[0] is x
    late = transforms.apply(x, y, share, 10, 0, 0, 10)[0]
    low, high = transforms.limits(x)
    touched = late != x
    assert 0.4 < touched[:, 0].mean() < 0.6 and late.dtype == np.float32
    for channel in range(2):
        assert set(late[:, channel][touched[:, channel]]) <= {low[0, channel, 0, 0], high[0, channel, 0, 0]}
    assert transforms.apply(x, y, Share(ROWS, salt=((5, 0.5),)), 2, 0, 0, 10)[0] is x
    table = rng(0, "t").random((30, 7)).astype(np.float32)
    assert (transforms.apply(table, y, share, 10, 0, 0, 10)[0] != table).any()


def test_clients_are_static_exactly_if_no_phase_ever_changes() -> None:
    data = from_arrays(np.zeros((3, 2), np.float32), np.array([0, 1, 0]))
    schedules: list[tuple[tuple[int, float], ...]] = [(), ((5, 0.2),), ((0, 0.2), (10, 0.0))]
    for salt, expected in zip(schedules, (True, True, False), strict=True):
        shares = (Share(ROWS), Share(ROWS, salt=salt))
        clients = Clients(dataset=data, shares=shares, train=(ROWS, ROWS), test=(ROWS[:0], ROWS[:0]), seed=0)
        assert clients.static == expected == (len({clients.phase(at) for at in range(20)}) == 1)


def test_rows_at_unit_norm() -> None:
    made = from_arrays(np.array([[3.0, 4.0], [0.0, 0.0], [1e-20, 0.0]], np.float32), np.array([0, 1, 0]), classes=2)
    found = transforms.unit_rows(made)
    np.testing.assert_allclose(found.x, [[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]], rtol=1e-6)


def test_rows_of_the_smallest_numbers_stay_finite_at_unit_norm() -> None:
    tiny = np.array([[1e-45, 0.0], [1e-40, 1e-40], [3e38, 3e38], [2e-38, 0.0]], np.float32)
    found = transforms.unit_rows(from_arrays(tiny, np.array([0, 1, 0, 1]), "rows")).x
    assert np.isfinite(found).all()
    assert np.allclose(np.linalg.norm(found[2:].astype(np.float64), axis=1), 1.0)


def test_overlapping_clients_share_rows_but_never_train_on_a_test_row() -> None:
    labels = labels_of((100,) * 10)
    data = from_arrays(np.arange(1000.0)[:, None], labels)
    config = DataConfig(
        clients=21,
        sizes=600,
        partition={"name": "rotation", "clusters": [3, 6, 6, 6], "base": {"name": "iid", "overlap": True}},
    )
    clients = divide(data, config, 5)
    assert clients.train_counts == [480] * 21 and clients.test_counts == [120] * 21
    assert [share.group for share in clients.shares] == [0] * 3 + [1] * 6 + [2] * 6 + [3] * 6
    assert not set(np.concatenate(clients.train)) & set(np.concatenate(clients.test))
    assert all(len(set(rows)) == 480 for rows in clients.train)
    # Two clients have 480 of 800 rows each, so about 288 in common.
    common = [len(set(a) & set(b)) for a, b in pairwise(clients.train)]
    assert min(common) > 250 and max(common) < 330


def test_overlap_must_be_asked_for_and_has_its_limits() -> None:
    labels = labels_of((10,) * 10)
    with pytest.raises(HushError, match=r"data\.sizes: 120 rows in all"):
        counts(60, 2, 100, 0)
    with pytest.raises(HushError, match=r"data\.sizes: 101 rows for a client"):
        counts(101, 2, 100, 0, overlap=True)
    with pytest.raises(HushError, match=r"data\.sizes: 120 rows for 2 clients"):
        split("iid", labels, [60, 60], 0, 10)
    with pytest.raises(HushError, match=r"data\.partition\.overlap: found 1; accepted: true or false"):
        split({"name": "iid", "overlap": 1}, labels, [50, 50], 0, 10)
    with pytest.raises(HushError, match=r'data\.partition\.overlap: unknown option of "shards"'):
        split({"name": "shards", "classes": 2, "overlap": True}, labels, [50, 50], 0, 10)
