"""Whole-number sums: exact, bounded, and close to the ones in floating point."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import hush
from hush.config import ModelConfig
from hush.models import build_model
from hush.privacy import noise
from hush.privacy.plan import GRAINS, PrivacyPlan
from hush.privacy.sensitivity import SLACK
from hush.training.per_example.discrete_sums import integer_sums
from hush.training.select import clipped_sums
from hush.types import HushError

MODEL = build_model(ModelConfig(name="logreg"), (6,), 5, seed=1)
SIZE = MODEL.layout.size
CLIP, GRID = 0.5, 1e-4


def batch(examples: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(3)
    x = torch.from_numpy(scale * rng.normal(size=(2, examples, 6))).float()
    return x, torch.from_numpy(rng.integers(0, 5, (2, examples))), torch.ones(2, examples, dtype=torch.bool)


def sums(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, physical: int = 4096) -> torch.Tensor:
    clips, grids = torch.full((2,), CLIP, dtype=torch.float64), torch.full((2,), GRID, dtype=torch.float64)
    return integer_sums(MODEL, MODEL.start.repeat(2, 1), x, y, mask, clips, grids, physical)


def test_sums_are_those_in_floating_point_but_for_rounding() -> None:
    x, y, mask = batch(7)
    mask[0, 3] = False
    # The sums of integers are exact, and leave no room for rounding.
    lower = (1 + SLACK) * torch.full((2,), CLIP - 0.5 * GRID * math.sqrt(SIZE), dtype=torch.float64)
    floating = clipped_sums(MODEL, MODEL.start.repeat(2, 1), x, y, mask, lower)
    assert (sums(x, y, mask) * GRID - floating).abs().max() <= 7 * 0.5 * GRID + 1e-5


def test_one_example_moves_a_sum_by_at_most_the_clip_in_whole_numbers() -> None:
    for scale in (1e-3, 1.0, 1e6):
        x, y, mask = batch(5, scale)
        without = mask.clone()
        without[:, 4] = False
        moved = sums(x, y, mask) - sums(x, y, without)
        assert moved.square().sum(1).max().item() <= math.floor((CLIP / GRID) ** 2)
        assert moved.abs().sum() > 0


@pytest.mark.parametrize("name", ["logreg", "mlp"])
def test_neighbours_differ_by_exactly_the_integers_of_one_example(name: str) -> None:
    """In float32, or in one batch of float64 without a second look at ties, a few of these fail."""
    model = build_model(ModelConfig(name=name, hidden=32), (64,), 10, seed=1)
    clips, grids = (torch.full((1,), value, dtype=torch.float64) for value in (1.0, 1 / 4096))

    def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(1, len(y), dtype=torch.bool)
        return integer_sums(model, model.start[None], x[None], y[None], mask, clips, grids, 4096)

    for seed in range(40):
        draw = np.random.default_rng(seed)
        count = int(draw.integers(1, 70))
        x = torch.from_numpy((30 * draw.normal(size=(count + 1, 64))).astype("float32"))
        y = torch.from_numpy(draw.integers(0, 10, count + 1))
        assert torch.equal(whole(x, y), whole(x[:-1], y[:-1]) + whole(x[-1:], y[-1:]))


def test_order_and_pieces_change_nothing_at_all() -> None:
    x, y, mask = batch(9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sums(x, y, mask), sums(x[:, order], y[:, order], mask))
    assert torch.equal(sums(x, y, mask), sums(x, y, mask, physical=3))


def test_examples_that_are_not_finite_add_nothing() -> None:
    x, y, mask = batch(4)
    x[0, 2, 1] = float("nan")
    mask_without = mask.clone()
    mask_without[0, 2] = False
    assert torch.equal(sums(x, y, mask), sums(x, y, mask_without))


def test_noise_of_a_discrete_plan_has_the_planned_scale() -> None:
    plan = PrivacyPlan(
        samples=50,
        batch=10,
        epochs=1,
        rounds=1,
        clip=2.0,
        noise_multiplier=1.5,
        relation="add-remove",
        accountant="pld",
        discrete=True,
    )
    noised = plan.privatise(torch.zeros(50_000, dtype=torch.int64), noise.Secure())
    assert noised.std().item() == pytest.approx(1.5 * 2.0 / 10, rel=0.02)
    steps = noised.double() / (plan.grid / plan.batch)
    assert (steps - steps.round()).abs().max() < 1e-2, "every number is on the grid"
    assert plan.grid * GRAINS == pytest.approx(plan.noise_multiplier * plan.clip)
    with pytest.raises(TypeError, match="integers"):
        plan.privatise(torch.zeros(3), noise.Secure())


def test_a_model_too_large_for_the_grid_is_refused() -> None:
    raw = {
        "rounds": 20, "data": {"clients": 4}, "model": {"name": "mlp", "hidden": 3000},
        "privacy": {"budgets": 0.02, "discrete": True},
    }  # fmt: skip
    with pytest.raises(HushError, match=r"privacy.discrete: 225,010 parameters are too many"):
        hush.simulate(raw)
