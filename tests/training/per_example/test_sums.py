"""Clipped sums against Opacus, against PyTorch's vectorised gradients, and against the promise that one example moves a
sum by at most its clip. The layers one by one are in test_layers.py."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hush.config import ModelConfig
from hush.models import Model, build_model, from_module
from hush.training.clipping import RANGE, clip_factors, squared_norms, upper_norms
from hush.training.per_example.recorder import Recorder
from hush.training.per_example.sums import micro_batches, padded_sums
from hush.training.per_example.vmap import gradients
from hush.training.precision import Precision
from hush.training.select import clipped_sums
from hush.types import HushError
from tests.support.nets import applied, batch, double, random, reference

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
        return from_module(module, shape)
    return build_model(ModelConfig(name=name, hidden=7), shape, CLASSES, seed=3)


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
    vectors, x, y, mask = batch(model, (1, 8, 8), CLASSES)
    clips = torch.tensor([clip, 2 * clip, 0.5 * clip], dtype=torch.float64)
    ours = clipped_sums(model, vectors, x, y, mask, clips, physical_batch=6)
    for i in range(len(vectors)):
        gradients = opacus_gradients(model, vectors[i], x[i], y[i])
        scale = (applied(clips[i]) / gradients.norm(dim=1)).clamp(max=1.0) * mask[i]
        torch.testing.assert_close(ours[i], scale @ gradients, rtol=1e-9, atol=1e-9)


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
    model = build_model(ModelConfig(name="logreg"), (6,), CLASSES, seed=1)
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


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("even", [False, True])
def test_the_clip_holds_in_every_precision(name: str, precision: str, even: bool) -> None:
    """Many examples, each a client of its own: what it adds is what its sum is."""
    model = build_model(ModelConfig(name=name, hidden=40), (1, 8, 8), CLASSES, seed=1)
    clients = 300
    vectors = model.start + 0.2 * random(clients, model.layout.size).float()
    x, y = random(clients, 1, 1, 8, 8, seed=1).float(), torch.zeros(clients, 1, dtype=torch.long)
    clips = torch.from_numpy(np.random.default_rng(2).uniform(1e-3, 1.0, clients))
    mask = torch.ones(clients, 1, dtype=torch.bool)
    if even:
        sums = padded_sums(Recorder(model), vectors, x[:, 0], y[:, 0], mask[:, 0], clips, 4096, precision)  # type: ignore[arg-type]
    else:
        sums = clipped_sums(model, vectors, x, y, mask, clips, precision=precision)  # type: ignore[arg-type]
    norms = sums.double().norm(dim=1)
    assert (norms <= clips).all()
    assert (norms > 0.9999 * applied(clips)).double().mean() > 0.9, (
        "most of these are clipped, and not by more than they must be"
    )


def test_a_clip_rounded_to_nearest_would_break_the_bound() -> None:
    """The planted twin: plain clip / norm in float32 overshoots for some examples."""
    model = build_model(ModelConfig(name="mlp", hidden=40), (64,), CLASSES, seed=1)
    each = gradients(model, model.start[None], random(1, 300, 64).float(), torch.zeros(1, 300).long())[0]
    careless = (1.0 / each.norm(dim=1, keepdim=True)) * each
    assert (careless.double().norm(dim=1) > 1.0).any()


@pytest.mark.parametrize(("precision", "cost"), [("float32", 1e-5), ("tf32", 1e-5), ("bf16", 0.1)])
def test_what_each_precision_costs(precision: str, cost: float) -> None:
    model = build_model(ModelConfig(name="cnn"), (1, 12, 12), CLASSES, seed=1)
    vectors, x, y, mask = batch(model, (1, 12, 12), CLASSES, examples=8)
    clips = torch.full((3,), 0.5, dtype=torch.float64)
    exact = reference(
        double(build_model(ModelConfig(name="cnn"), (1, 12, 12), CLASSES, seed=1)), vectors, x, y, mask, clips
    )
    sums = clipped_sums(model, vectors.float(), x.float(), y, mask, clips, precision=precision)  # type: ignore[arg-type]
    error = float((sums - exact).norm() / exact.norm())
    assert error < cost
    assert precision != "bf16" or error > 1e-5, "bf16 is not float32 by another name"


def test_an_unknown_precision_is_refused() -> None:
    model = build_model(ModelConfig(name="logreg"), (6,), CLASSES, seed=1)
    vectors, x, y, mask = batch(model, (6,), CLASSES)
    with pytest.raises(HushError, match="unknown precision 'fp8'"):
        clipped_sums(model, vectors, x, y, mask, torch.ones(3).double(), precision="fp8")  # type: ignore[arg-type]


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("name", ["logreg", "cnn"])
def test_not_finite_examples_add_nothing(name: str, even: bool, blind: bool) -> None:
    model = build_model(ModelConfig(name=name), (1, 4, 4), CLASSES, seed=1)
    x = random(1, 4, 1, 4, 4).float()
    x[0, 1, 0, 2, 2], x[0, 3, 0, 0, 0] = float("nan"), float("inf")
    y = torch.zeros(1, 4, dtype=torch.long)
    clips = torch.ones(1, dtype=torch.float64)

    def sums(mask: Tensor) -> Tensor:
        if even:
            return padded_sums(Recorder(model), model.start[None], x[0], y[0], mask[0], clips, 9, capturable=blind)
        return clipped_sums(model, model.start[None], x, y, mask, clips)

    everything, finite = sums(torch.ones(1, 4, dtype=torch.bool)), sums(torch.tensor([[True, False, True, False]]))
    torch.testing.assert_close(everything, finite, rtol=1e-6, atol=1e-7)
    assert everything.isfinite().all()
    assert everything.norm() > 0


def test_gradient_whose_square_overflows_is_clipped_not_dropped() -> None:
    model = build_model(ModelConfig(name="logreg"), (6,), CLASSES, seed=1)
    x = torch.full((1, 1, 6), 1e25)
    y = torch.zeros(1, 1, dtype=torch.long)
    mask = torch.ones(1, 1, dtype=torch.bool)
    total = clipped_sums(model, torch.zeros(1, model.layout.size), x, y, mask, torch.ones(1, dtype=torch.float64))
    assert 0.99 < total.norm() <= 1.0


def test_a_sum_without_clip_breaks_the_bound() -> None:
    """The planted twin: the bound test above must be able to fail."""
    model = build_model(ModelConfig(name="logreg"), (6,), CLASSES, seed=1)
    x = 100 * random(1, 1, 6).float()
    infinite = torch.full((1,), float("inf"), dtype=torch.float64)
    mask = torch.ones(1, 1, dtype=torch.bool)
    total = clipped_sums(model, model.start[None], x, torch.ones(1, 1, dtype=torch.long), mask, infinite)
    assert total.norm() > 1.0


def test_physical_batch_changes_nothing_but_rounding() -> None:
    model = build_model(ModelConfig(name="cnn"), (1, 8, 8), CLASSES, seed=1)
    x, y = random(2, 11, 1, 8, 8).float(), torch.zeros(2, 11, dtype=torch.long)
    mask, clips = torch.ones(2, 11, dtype=torch.bool), torch.full((2,), 0.3, dtype=torch.float64)
    sums = [clipped_sums(model, model.start.repeat(2, 1), x, y, mask, clips, size) for size in (1, 7, 4096)]
    torch.testing.assert_close(sums[0], sums[2], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums[1], sums[2], rtol=1e-5, atol=1e-6)


@given(counts=st.lists(st.integers(0, 50), max_size=8), limit=st.integers(1, 40))
def test_pieces_hold_every_example_once_and_never_too_many(counts: list[int], limit: int) -> None:
    rows, seen = 0, dict.fromkeys(range(len(counts)), 0)
    for clients, sizes, part in micro_batches(counts, limit):
        assert part.start == rows
        assert part.stop - part.start == sum(sizes) <= limit
        rows = part.stop
        for client, size in zip(clients, sizes, strict=True):
            seen[client] += size
    assert list(seen.values()) == counts


@pytest.mark.parametrize("scale", [1e-25, 1e-19, 1e-3, 1.0, 1e17, 1e19, 1e30])
@pytest.mark.parametrize("width", [1, 128, 300])
def test_quick_norms_are_never_too_small_and_hardly_too_large(scale: float, width: int) -> None:
    rows = (scale * random(200, width)).float()
    exact = rows.double().norm(dim=1)
    found = upper_norms(lambda precisely: squared_norms(rows, precisely), rows)
    assert (found >= exact).all()
    assert (found <= exact * (1 + 1e-5) + math.sqrt(width) * 1.1e-19).all()


def test_factors_are_rounded_toward_zero() -> None:
    norms = torch.from_numpy(np.geomspace(1.0, 1e44, 3001))
    found = clip_factors(norms, torch.ones(()), None, torch.float32).double()
    assert (found * norms <= 1.0).all()
    assert (found[norms < RANGE] * norms[norms < RANGE] > (1 - 1e-6) * applied(1.0)).all()
    assert not found[norms > RANGE].any()
    nearest = (1.0 / norms).float().double()
    assert (nearest * norms > 1.0).any(), "rounding to nearest is what this guards against"


class Positions(nn.Module):
    """A layer over many positions whose gradient is never formed, then a mean: no logit is ever large."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(30, 25), nn.Linear(25, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.normalize(self.inner(x), dim=-1).mean(1))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("even", [False, True])
def test_the_clip_holds_where_gradients_are_never_formed(precision: Precision, scale: float, even: bool) -> None:
    """Sums over three positions of outer products, at any scale of the inputs; logits stay small, so none saturates."""
    model, clients = from_module(Positions(), (3, 30)), 200
    vectors = model.start + 0.1 * random(clients, model.layout.size).float()
    # Inputs with a large common part cancel in the sum over positions, where rounding shows most.
    x = scale * (1.0 + 0.01 * random(clients, 1, 3, 30, seed=1)).float()
    y = torch.arange(clients)[:, None] % CLASSES
    each = gradients(double(model), vectors.double(), x.double(), y)[:, 0].norm(dim=1)
    model.module.float()
    assert (each > 0).all(), "no gradient vanishes: the bound would hold of itself"
    clips = each * torch.from_numpy(np.random.default_rng(2).uniform(0.01, 0.9, clients))
    mask = torch.ones(clients, 1, dtype=torch.bool)
    if even:
        sums = padded_sums(Recorder(model), vectors, x[:, 0], y[:, 0], mask[:, 0], clips, 4096, precision)
    else:
        sums = clipped_sums(model, vectors, x, y, mask, clips, precision=precision)
    norms = sums.double().norm(dim=1)
    assert (norms <= clips).all()
    least = 0.5 if precision == "bf16" else 0.999
    assert (norms > least * applied(clips)).double().mean() > 0.9, "and they are not clipped to nothing"
