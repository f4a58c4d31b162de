"""Neighbouring batches give neighbouring sums: every kind of layer, every precision, and numbers of every size.

The bound is not "about the clip": a row that is alone keeps it to the last digit, and sums of several rows may differ
by what is rounded on the way, no more. Sums that clip wrongly are shown to the same check, which must refuse them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hush.models import Model
from hush.models.model import wrap
from hush.training.per_example.vmap import gradients
from hush.training.select import clipped_sums
from tests.statistical import planted
from tests.statistical.neighbours import ADDING, CLOSED, NETS, WAYS, Moves, Sums, Way, moves, objectives

QUICK, FULL = 500, 10_000


def check(way: str, pairs: int, seed: int) -> Counter[str]:
    """How many pairs of each kind were seen, at least that many in all, shared among the layers; all keep the bound."""
    nets = list(NETS)
    seen = Counter[str]()
    for net in nets:
        for found in moves(net, WAYS[way], math.ceil(pairs / len(nets)), seed):
            assert found.broken(WAYS[way]) == [], (net, way)
            seen += tally(found)
    assert seen["clipped"] > 0.2 * pairs, "bounds that nothing comes near say little"
    assert seen["dropped"] > 0.05 * pairs, "rows that are not finite, or zero"
    assert seen["neither"] > 0.02 * pairs
    assert seen["several"] > 0.5 * pairs
    return seen


def tally(found: Moves) -> Counter[str]:
    alone = found.alone
    kinds = {
        "pairs": torch.ones_like(alone),
        # Whole numbers leave room for rounding below the clip.
        "clipped": alone > 0.995,
        "dropped": alone == 0,
        "neither": (alone > 0) & (alone < 0.9),
        "several": found.rows > 1,
    }
    return Counter({name: int(which.sum()) for name, which in kinds.items()})


@pytest.mark.parametrize("way", WAYS)
def test_a_row_moves_a_sum_by_at_most_the_clip(way: str) -> None:
    assert check(way, QUICK, 1)["pairs"] >= QUICK


@pytest.mark.parametrize("name", ["labels", "mse", "huber", "own"])
def test_a_row_moves_a_sum_by_at_most_the_clip_for_every_objective(name: str) -> None:
    """Gradients of any size, and losses that are not a number, on every path that can be selected for them."""
    objective, seen = objectives()[name], Counter[str]()
    pairs = [("float32", "two linear"), ("even float32", "conv2d"), ("slow", "bare"), ("integers", "two linear")]
    for way, net in pairs:
        for found in moves(net, WAYS[way], 50, 5, objective):
            assert found.broken(WAYS[way]) == [], (net, way)
            seen += tally(found)
    for found in moves("linear", CLOSED, 200, 5, objective):
        assert found.broken(CLOSED) == [], "closed form"
        seen += tally(found)
    assert seen["clipped"] > 0.2 * seen["pairs"]
    assert seen["dropped"] > 0.05 * seen["pairs"]


def test_a_row_moves_a_sum_in_closed_form_by_at_most_the_clip() -> None:
    for found in moves("linear", CLOSED, QUICK, 6):
        assert found.broken(CLOSED) == []


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_ten_thousand_rows_move_sums_by_at_most_the_clip(way: str) -> None:
    assert check(way, FULL, 2)["pairs"] >= FULL


def twin(wrong: Callable[[Model, Tensor, Tensor, Tensor], Tensor]) -> Sums:
    def sums(model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
        return wrong(model, gradients(model, vectors, x, y), mask, clips[:, None].to(vectors.dtype))

    return sums


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        (planted._unclipped, {"added", "replaced", "alone"}),
        (planted._per_batch, {"added", "replaced"}),
        (planted._not_finite, {"finite", "added", "replaced", "alone"}),
        (planted._per_layer, {"added", "alone"}),
        # Right but for the last digit: clip / norm is rounded to nearest, and what is rounded up exceeds the clip.
        (planted.per_example, {"alone"}),
    ],
    ids=["no clip", "clip per batch", "NaN bypasses", "clip per layer", "factor not rounded down"],
)
@pytest.mark.parametrize("net", ["two linear", "conv2d", "layer norm"])
def test_sums_that_are_clipped_wrongly_are_refused(net: str, wrong: Callable[..., Tensor], broken: set[str]) -> None:
    way = Way(twin(wrong), ADDING)
    found = {name for some in moves(net, way, QUICK, 3) for name in some.broken(way)}
    assert broken <= found
    if wrong is planted.per_example:
        assert found == broken, "nothing else is wrong with the way in which the twins are made"


def test_the_clip_holds_beside_inputs_near_the_largest_number() -> None:
    """Half of the float32 range apart: tiny factors for huge inputs, and a clip far below any that is used."""
    model = wrap("net", nn.Linear(5, 3), None)
    clips = torch.logspace(-7, -5, 200, dtype=torch.float64)
    count = len(clips)
    x, y = torch.full((count, 1, 5), 1e38), torch.zeros(count, 1, dtype=torch.long)
    mask = torch.ones(count, 1, dtype=torch.bool)
    sums = clipped_sums(model, torch.zeros(count, model.layout.size), x, y, mask, clips)
    assert (sums.double().norm(dim=1) <= clips).all()
