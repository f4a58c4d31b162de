"""Clipped sums against Opacus, and against the promise that one example moves a sum by at most its clip."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hush.config import ModelConfig
from hush.local.per_example import clipped_sums
from hush.models import Model, adopt, build

CLASSES = 5


def group_norm_net(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 6, 3, stride=2, bias=False),
        nn.GroupNorm(2, 6),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )


def make(name: str, shape: tuple[int, ...]) -> Model:
    if name == "group-norm":
        module = group_norm_net(shape[0])
        module(torch.zeros(1, *shape))
        return adopt(module, shape)
    return build(ModelConfig(name=name, hidden=7), shape, CLASSES, seed=3)


def double(model: Model) -> Model:
    return Model(model.name, model.module.double(), model.layout, model.start.double())


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def opacus_gradients(model: Model, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Per-example gradients, examples x p, by Opacus's hooks."""
    import copy

    from opacus.grad_sample import GradSampleModule

    module = copy.deepcopy(model.module)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), vector.split(model.layout.sizes), strict=True):
            parameter.copy_(value.view_as(parameter))
    module.requires_grad_(True)
    wrapped = GradSampleModule(module, loss_reduction="sum")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
    return torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], dim=1)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("name", ["logreg", "mlp", "cnn", "group-norm"])
@pytest.mark.parametrize("clip", [0.05, 1.0, 1e6])
def test_sums_equal_opacus(name: str, clip: float) -> None:
    model = double(make(name, (1, 8, 8)))
    clients, examples = 3, 6
    vectors = model.start + 0.1 * random(clients, model.layout.size, seed=1)
    x = random(clients, examples, 1, 8, 8, seed=2)
    y = torch.from_numpy(np.random.default_rng(3).integers(0, CLASSES, (clients, examples)))
    mask = torch.from_numpy(np.random.default_rng(4).random((clients, examples)) < 0.7)
    clips = torch.tensor([clip, 2 * clip, 0.5 * clip], dtype=torch.float64)
    ours = clipped_sums(model, vectors, x, y, mask, clips, physical_batch=6)
    for i in range(clients):
        gradients = opacus_gradients(model, vectors[i], x[i], y[i])
        factors = (clips[i] / gradients.norm(dim=1)).clamp(max=1.0) * mask[i]
        torch.testing.assert_close(ours[i], factors @ gradients, rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    scale=st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e4, 1e18]),
    clip=st.floats(1e-3, 1e3),
    examples=st.integers(0, 5),
    physical=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_no_example_moves_a_sum_by_more_than_the_clip(
    scale: float, clip: float, examples: int, physical: int, seed: int
) -> None:
    model = build(ModelConfig(name="logreg"), (6,), CLASSES, seed=1)
    vectors = model.start.repeat(2, 1)
    x = (scale * random(2, examples + 1, 6, seed=seed)).float()
    y = torch.from_numpy(np.random.default_rng(seed).integers(0, CLASSES, (2, examples + 1)))
    clips = torch.full((2,), clip, dtype=torch.float64)
    with_it = torch.ones(2, examples + 1, dtype=torch.bool)
    without = with_it.clone()
    without[:, -1] = False
    alone = with_it & ~without
    whole = clipped_sums(model, vectors, x, y, with_it, clips, physical)
    rest = clipped_sums(model, vectors, x, y, without, clips, physical)
    lone = clipped_sums(model, vectors, x, y, alone, clips, physical)
    assert whole.isfinite().all()
    assert (lone.double().norm(dim=1) <= clip).all()
    slack = 1e-5 * (1 + examples) * clip
    torch.testing.assert_close(whole, rest + lone, rtol=1e-4, atol=slack)


def test_not_finite_examples_add_nothing() -> None:
    model = build(ModelConfig(name="logreg"), (6,), CLASSES, seed=1)
    x = random(1, 4, 6).float()
    x[0, 1, 2], x[0, 3, 0] = float("nan"), float("inf")
    y = torch.zeros(1, 4, dtype=torch.long)
    clips = torch.ones(1, dtype=torch.float64)
    everything = clipped_sums(model, model.start[None], x, y, torch.ones(1, 4, dtype=torch.bool), clips)
    finite = clipped_sums(model, model.start[None], x, y, torch.tensor([[True, False, True, False]]), clips)
    assert torch.equal(everything, finite)
    assert everything.norm() > 0


def test_gradient_whose_square_overflows_is_clipped_not_dropped() -> None:
    model = build(ModelConfig(name="logreg"), (6,), CLASSES, seed=1)
    x = torch.full((1, 1, 6), 1e25)
    y = torch.zeros(1, 1, dtype=torch.long)
    mask = torch.ones(1, 1, dtype=torch.bool)
    total = clipped_sums(model, torch.zeros(1, model.layout.size), x, y, mask, torch.ones(1, dtype=torch.float64))
    assert 0.99 < total.norm() <= 1.0


def test_a_sum_without_clip_breaks_the_bound() -> None:
    """The planted twin: the bound test above must be able to fail."""
    model = build(ModelConfig(name="logreg"), (6,), CLASSES, seed=1)
    x = 100 * random(1, 1, 6).float()
    infinite = torch.full((1,), float("inf"), dtype=torch.float64)
    mask = torch.ones(1, 1, dtype=torch.bool)
    total = clipped_sums(model, model.start[None], x, torch.ones(1, 1, dtype=torch.long), mask, infinite)
    assert total.norm() > 1.0


def test_physical_batch_changes_nothing_but_rounding() -> None:
    model = build(ModelConfig(name="cnn"), (1, 8, 8), CLASSES, seed=1)
    x, y = random(2, 11, 1, 8, 8).float(), torch.zeros(2, 11, dtype=torch.long)
    mask, clips = torch.ones(2, 11, dtype=torch.bool), torch.full((2,), 0.3, dtype=torch.float64)
    sums = [clipped_sums(model, model.start.repeat(2, 1), x, y, mask, clips, size) for size in (1, 7, 4096)]
    torch.testing.assert_close(sums[0], sums[2], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums[1], sums[2], rtol=1e-5, atol=1e-6)
