"""One row moves a sum by at most the clip in floating point: extreme rows, many rows, on every path."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hush.config import ModelConfig
from hush.models import Model, build_model
from hush.models.model import wrap
from hush.privacy.sensitivity import MOST_ROWS, PARTIAL_ROWS, RESERVE, SLACK, partial_positions
from hush.training.clipping import partial_rows, summed_products
from hush.training.closed_form import cached_row_norms, closed_form_sums, closed_form_table_sums, linear_layer_of
from hush.training.per_example.recorder import Recorder
from hush.training.per_example.sums import padded_sums
from hush.training.per_example.vmap import vmap_sums
from hush.training.select import clipped_sums
from tests.support.nets import random

UNIT, UNIT64 = 2.0**-24, 2.0**-53
CLASSES = 3
Path = Callable[[Model, Tensor, Tensor, Tensor, float], Tensor]
EXTREME = {
    "nan": math.nan,
    "infinite": math.inf,
    "1e15": 1e15,
    "1e20": 1e20,
    "1e38": 3e38,
    "subnormal": 1e-42,
    "zero": 0.0,
}


def by_closed_form(model: Model, vector: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    form = linear_layer_of(model, x)
    assert form is not None
    return closed_form_sums(form, vector[None], x, y, [torch.arange(len(x))], _clips(clip), 16384)[0]


def by_tables(model: Model, vector: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """The closed form as an accelerator computes it."""
    form = linear_layer_of(model, x)
    assert form is not None
    known, table = cached_row_norms(x, [None], True), torch.arange(len(x))[None]
    which, centres = torch.zeros(1, dtype=torch.long), torch.zeros(1, form.width)
    return closed_form_table_sums(form, vector[None], x, y, table, _clips(clip), known, which, centres, 16384)[0]


def by_ragged(model: Model, vector: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    mask = torch.ones(1, len(x), dtype=torch.bool)
    return clipped_sums(model, vector[None], x[None], y[None], mask, _clips(clip))[0]


def by_even(model: Model, vector: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    mask = torch.ones(len(x), dtype=torch.bool)
    return padded_sums(Recorder(model), vector[None], x, y, mask, _clips(clip), 4096)[0]


def by_vmap(model: Model, vector: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    mask = torch.ones(1, len(x), dtype=torch.bool)
    return vmap_sums(model, vector[None], x[None], y[None], mask, _clips(clip), 4096)[0]


PATHS: dict[str, Path] = {
    "closed-form": by_closed_form,
    "tables": by_tables,
    "ragged": by_ragged,
    "even": by_even,
    "vmap": by_vmap,
}


def _clips(clip: float) -> Tensor:
    return torch.tensor([clip], dtype=torch.float64)


def alike(rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Rows whose gradients all point one way, so that their sum, and its rounding, is as large as it can be."""
    return 3 * random(1, width).float().repeat(rows, 1), torch.ones(rows, dtype=torch.long)


def moved(path: Path, model: Model, x: Tensor, y: Tensor, at: int, clip: float = 1.0) -> float:
    """By how many clips a row moves the sum of the others."""
    rest = torch.arange(len(x)) != at
    vector = model.start
    return float((path(model, vector, x, y, clip) - path(model, vector, x[rest], y[rest], clip)).norm()) / clip


@pytest.mark.parametrize("value", EXTREME)
@pytest.mark.parametrize("name", PATHS)
def test_an_extreme_row_moves_a_sum_by_at_most_the_clip(name: str, value: str) -> None:
    """The bound of 64 rows, with the row first and last, and clips for which clip / norm has no digits in float32."""
    model = build_model(ModelConfig(name="logreg"), (8,), CLASSES, seed=1)
    for clip in (1.0, 1e-6):
        for at in (0, 63):
            x, y = alike(64, 8)
            x[at] = EXTREME[value]
            assert moved(PATHS[name], model, x, y, at, clip) <= 1.0000001


@pytest.mark.parametrize("value", ["nan", "1e15", "1e38", "subnormal"])
@pytest.mark.parametrize(("name", "rows"), [("closed-form", 30_000), ("tables", 30_000), ("ragged", 30_000)])
def test_sums_of_many_rows_beside_extreme_ones(name: str, rows: int, value: str) -> None:
    """A tenth of the rows is extreme; one more of them, or an ordinary one, moves the sum by at most the clip."""
    model = build_model(ModelConfig(name="logreg"), (16,), CLASSES, seed=1)
    x, y = alike(rows, 16)
    x[::10] = EXTREME[value]
    for at in (0, rows - 1):
        assert moved(PATHS[name], model, x, y, at) <= 1.000001


@pytest.mark.parametrize("name", ["closed-form", "ragged"])
def test_sums_of_very_many_rows(name: str) -> None:
    model = build_model(ModelConfig(name="logreg"), (4,), 2, seed=1)
    x, y = alike(200_000, 4)
    assert moved(PATHS[name], model, x, y, 100_000) <= 1.000001


@pytest.mark.parametrize("value", ["nan", "1e15"])
def test_a_row_does_not_change_how_others_are_clipped(value: str) -> None:
    model = build_model(ModelConfig(name="logreg"), (16,), CLASSES, seed=1)
    x, y = alike(100, 16)
    form = linear_layer_of(model, x)
    assert form is not None
    z = x.clone()
    z[0] = EXTREME[value]
    # Each row a client of its own, all in one block.
    rows, clips = list(torch.arange(100)[:, None].unbind()), torch.ones(100, dtype=torch.float64)
    before, after = (closed_form_sums(form, model.start.repeat(100, 1), t, y, rows, clips, 4096) for t in (x, z))
    assert torch.equal(before[1:], after[1:])


class Attention(nn.Module):
    """Gradients that are sums over positions: products that are never formed, and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.out = nn.Embedding(20, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(self.table(x))).mean(1))


@pytest.mark.parametrize("rows", [64, 500])
@pytest.mark.parametrize("kind", ["cnn", "mlp", "positions"])
@pytest.mark.parametrize("name", ["ragged", "even", "vmap"])
def test_sums_of_other_models(name: str, kind: str, rows: int) -> None:
    torch.manual_seed(0)
    if kind == "positions":
        module = Attention()
        model = wrap("net", module, None)
        x, y = (random(rows, 5).abs() * 10).long() % 20, torch.arange(rows) % CLASSES
    else:
        shape = (1, 8, 8) if kind == "cnn" else (64,)
        model = build_model(ModelConfig(name=kind, hidden=20), shape, CLASSES, seed=1)
        x, y = 3 * random(1, *shape).float().repeat(rows, *[1] * len(shape)), torch.ones(rows, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert moved(PATHS[name], model, x, y, 0, 1e-3) <= 1.0000001


def float_sensitivity(rows: int) -> float:
    """By how many clips one row can move a sum of so many rows, if it adds at most one clip itself."""
    partial = PARTIAL_ROWS[min(rows, len(PARTIAL_ROWS) - 1)]
    single = UNIT * rows * (partial + 1) if partial else 0.0
    # A factor times a length over positions is at most 2^23 clips, because of how the norm counts that length.
    several = 2**23 * UNIT64 * rows * (partial_positions(rows) + 1) if partial_positions(rows) > 1 else 0.0
    double = UNIT64 * rows * (rows + 2)
    return 1.0 + single + several + double


def test_the_stated_bound_is_within_the_slack_for_every_number_of_rows() -> None:
    assert PARTIAL_ROWS[-1] == 0 < PARTIAL_ROWS[-2], "the table holds every sum that has a part in float32"
    powers = [2**k + more for k in range(12, 21) for more in (-1, 0, 1)]
    for rows in [*range(1, 5000), *powers, MOST_ROWS]:
        assert float_sensitivity(rows) <= 1 + SLACK - RESERVE
        assert 0 <= partial_rows(rows) <= rows
        assert 1 <= partial_positions(rows) <= rows


@pytest.mark.parametrize("rows", [100, 181, 1000, 3000])
def test_the_stated_bound_holds_for_the_worst_rows(rows: int) -> None:
    """Without the slack, sums in float32 of rows that all point one way are off by more than one rounding."""
    each = torch.full((1, rows, 50), 1 / math.sqrt(50)) + 1e-3 * random(1, rows, 50).float()
    each = each / each.norm(dim=2, keepdim=True)
    scale = torch.full((1, 1, rows), 0.99)
    exact = (scale.double() @ each.double())[0, 0]
    error = float((summed_products(scale, each, rows)[0, 0] - exact).norm())
    assert error <= 0.5 * (float_sensitivity(rows) - 1)
