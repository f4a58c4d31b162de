"""Rows in one tensor and rows in blocks elsewhere: the same norms, columns and sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor

from hush.engines.row_stores import FileRows
from hush.recipes.context import DenseRows, Listed, Rows, Spaced, Strided
from hush.recipes.estimators import noise_energy
from hush.recipes.stored_rows import ProjectedRows, StoredRows
from hush.types import Layout

LAYOUT = Layout(("a", "b"), ((40, 10), (100,)))
N, P = 11, LAYOUT.size


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def both() -> Iterator[tuple[Rows, Rows]]:
    values = numbers(N, P)
    with ExitStack() as resources:
        store = FileRows(P, resources)
        for block in values.split([3, 1, 5, 2]):
            store.add(block)
        yield DenseRows(values), StoredRows.of(store)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, check_dtype=False)


def check(dense: Rows, stored: Rows) -> None:
    weights = numbers(len(dense)).double()
    assert dense.shape == stored.shape
    close(dense.norms(), stored.norms())
    close(dense.squared_norms(), stored.squared_norms())
    for which in (Spaced(P), Spaced(200, 16), Strided(7), Listed(torch.tensor([4, 2, 450]))):
        close(dense.columns(which), stored.columns(which))
    close(dense.combined(weights), stored.combined(weights))
    close(dense.combined(torch.stack([weights, -2 * weights])), stored.combined(torch.stack([weights, -2 * weights])))
    parts = numbers(2, 3, len(dense)).double()
    close(dense.combined_parts(parts, LAYOUT), stored.combined_parts(parts, LAYOUT))
    close(dense.whole(), stored.whole())
    close(dense.sample(), stored.sample())


def test_blocks_hold_the_same_rows(both: tuple[Rows, Rows]) -> None:
    check(*both)


def test_few_rows_of_many_are_the_same_numbers_and_no_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    values, read = numbers(64, P), [0]
    method = Spaced.of

    def counted(self: Spaced, block: Tensor) -> Tensor:
        read[0] += len(block)
        return method(self, block)

    with ExitStack() as resources:
        store = FileRows(P, resources)
        for block in values.split(16):
            store.add(block)
        rows = StoredRows.of(store)
        for which in (Spaced(200, 16), Strided(7), Listed(torch.tensor([4, 2, 450]))):
            for chosen in (torch.arange(3, 64, 16), torch.tensor([63, 0, 17]), torch.arange(64)):
                assert torch.equal(rows.take(chosen).columns(which), which.of(values)[chosen])
        # Groups of clients are every so many-th of all: together they read every row once, and not once for each group.
        monkeypatch.setattr(noise_energy, "_TOGETHER", 4)
        monkeypatch.setattr(Spaced, "of", counted)
        noise_energy.estimated(rows, lambda sample, _: sample.double().square().sum(1), Spaced(200, 16))
    assert read[0] <= 64


def test_some_rows_scaled_and_moved_between_models(both: tuple[Rows, Rows]) -> None:
    factors, models = torch.linspace(0.1, 1.0, N).double(), numbers(3, P)
    worked, to = [i % 3 for i in range(N)], [i % 2 for i in range(N)]
    changed = [rows.scaled(factors).rebased(models, worked, to) for rows in both]
    check(changed[0], changed[1])
    some = torch.tensor([0, 3, 4, 9])
    check(changed[0].take(some), changed[1].take(some))
    mask = torch.arange(N) % 2 == 0
    check(both[0].take(mask), both[1].take(mask))


def test_the_sum_of_projections_is_the_projection_of_the_sum(both: tuple[Rows, Rows]) -> None:
    dense, stored = both
    kept = torch.arange(N) < 4
    basis = torch.cat([torch.linalg.qr(part.T)[0].T for part in numbers(2, P).double().split(LAYOUT.sizes, 1)], 1)
    middle, weights = numbers(P).double(), torch.rand(N, generator=torch.Generator().manual_seed(1)).double()
    pieces = []
    for part, center, own in zip(
        dense.whole().double().split(LAYOUT.sizes, 1),
        middle.split(LAYOUT.sizes),
        basis.split(LAYOUT.sizes, 1),
        strict=True,
    ):
        inside = center + (part - center) @ own.T @ own
        pieces.append(torch.where(kept[:, None], part, inside))
    expected = weights @ torch.cat(pieces, 1)
    for rows in (dense, stored):
        projected = ProjectedRows(rows=rows, kept=kept, middle=middle, basis=basis, layout=LAYOUT)
        close(projected.combined(weights), expected)
