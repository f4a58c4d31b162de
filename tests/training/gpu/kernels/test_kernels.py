"""Kernels for any network against PyTorch in float64: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hush.training.per_example import convolution as reference
from hush.training.per_example.convolution import Geometry, prepared
from hush.training.update_rule import UpdateRule
from tests.support.interpreter import DEVICE, check_interpreted, on_either, runs_itself


@pytest.mark.interpreter
@runs_itself()
def test_the_interpreter_agrees() -> None:
    check_interpreted(__file__)


# Inputs, outputs, size, kernel, stride, padding, dilation: of ResNets, and of sizes that fill no block.
Shape = tuple[int, int, tuple[int, ...], tuple[int, ...], int, int, int]
SHAPES: tuple[Shape, ...] = (
    (16, 24, (5, 4), (3, 3), 1, 1, 1),
    (33, 17, (4, 4), (3, 3), 2, 1, 1),
    (16, 40, (1, 1), (3, 3), 1, 1, 1),
    (20, 16, (2, 2), (3, 3), 2, 1, 1),
    (16, 16, (6, 6), (1, 1), 2, 0, 1),
    (18, 20, (7, 6), (3, 2), 1, 2, 2),
    (16, 16, (9, 8), (3, 3), 1, 1, 1),
    (32, 32, (1, 1), (1, 1), 1, 0, 1),
    (3, 8, (8, 8), (7, 7), 2, 3, 1),
    (17, 16, (9,), (3,), 1, 1, 1),
)
CLIENTS, EXAMPLES = 3, 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE)


def problem(shape: Shape) -> tuple[Tensor, Tensor, Tensor, Geometry]:
    """Inputs (example b of client c is number b * clients + c), weights that lie in longer vectors, and biases."""
    inputs, outputs, size, kernel, stride, padding, dilation = shape
    x = drawn(EXAMPLES * CLIENTS, inputs, *size)
    numbers = outputs * inputs * math.prod(kernel)
    vectors = drawn(CLIENTS, numbers + outputs + 5, seed=1)
    weight = vectors[:, 3 : 3 + numbers].view(CLIENTS, outputs, inputs, *kernel)
    x, g = prepared(x, kernel, stride, padding, dilation, 1)
    return x, weight, vectors[:, numbers + 5 :], g


def by_client(x: Tensor) -> list[Tensor]:
    return [x[c::CLIENTS].double() for c in range(CLIENTS)]


def interleaved(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts, 1).flatten(0, 1)


@on_either
@pytest.mark.parametrize("how", ["ieee", "tf32x3"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolutions_are_those_of_each_client(shape: Shape, how: str) -> None:
    from hush.training.gpu.kernels import convolution

    x, weight, bias, g = problem(shape)
    weights = convolution.weights_of(weight, x, g)
    ours = convolution.forward(x, weights, bias, CLIENTS, g, how)
    parts = zip(by_client(x), weight.double(), bias.double(), strict=True)
    theirs = interleaved([reference.forward(own, w, b, g) for own, w, b in parts])
    assert torch.allclose(ours.double(), theirs, rtol=1e-4, atol=1e-4)

    d = drawn(*ours.shape, seed=2)
    back = convolution.input_gradient(d, x, weights, CLIENTS, g, how)
    pairs = zip(by_client(d), by_client(x), weight.double(), strict=True)
    assert torch.allclose(
        back.double(), interleaved([reference.input_gradient(*own, g) for own in pairs]), rtol=1e-4, atol=1e-4
    )

    each, sums, squares = convolution.each(x, d, g, how)
    exact = reference.each_by_columns(x.double(), d.double(), g)
    assert torch.allclose(each.double(), exact, rtol=1e-4, atol=1e-3)
    assert torch.allclose(sums.double(), d.double().flatten(2).sum(2), rtol=1e-4, atol=1e-4)
    assert torch.allclose(squares, exact.square().flatten(1).sum(1), rtol=1e-3)


@on_either
def test_what_a_tap_does_not_meet_is_not_read() -> None:
    """Of a padded 3 x 3 kernel on inputs of 1 x 1 only the middle counts: NaN elsewhere changes nothing."""
    from hush.training.gpu.kernels import convolution

    x, weight, _, g = problem((16, 40, (1, 1), (3, 3), 1, 1, 1))
    holed = torch.full_like(weight, math.nan)
    holed[..., 1, 1] = weight[..., 1, 1]
    both = [convolution.weights_of(values, x, g) for values in (weight, holed)]
    assert torch.equal(*(convolution.forward(x, weights, None, CLIENTS, g, "ieee") for weights in both))


@on_either
@pytest.mark.parametrize("corrected", [False, True])
def test_the_update_is_the_rule(corrected: bool) -> None:
    from hush.training.gpu.kernels import update

    clients, size = 3, 1500
    vectors, noise, start, drift = (drawn(clients, size, seed=seed) for seed in range(4))
    sums = drawn(clients, size, seed=5).double()
    scales = torch.rand(4, clients, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(6)).to(DEVICE)
    scales[:, 2] = 0.0  # a client that has done its steps
    moved = vectors.clone()
    none = vectors.new_zeros(0, size)
    rule = UpdateRule(start, scales[2], drift if corrected else None, scales[3] if corrected else None, False)
    rule.step(moved, scales[0] * sums + scales[1] * noise)
    ours = vectors.clone()
    update.update(ours, sums, noise, drift if corrected else none, start if corrected else none, scales)
    assert torch.allclose(ours, moved, rtol=1e-6, atol=1e-6)
    assert torch.equal(ours[2], vectors[2])
    assert not torch.allclose(ours[:2], vectors[:2])


@on_either
@pytest.mark.parametrize("width", [1, 31, 1024, 3000])
def test_squares_of_rows_are_those_of_float64(width: int) -> None:
    from hush.training.gpu.kernels import row_squares

    rows = drawn(7, width + 3)[:, 3:]
    rows[2] *= 1e30  # whose square no float32 holds
    rows[4, 0] = math.inf
    rows[5, 0] = math.nan
    assert row_squares.usable(rows)
    found, exact = row_squares.row_squares(rows), rows.double().square().sum(1)
    assert torch.allclose(found, exact, rtol=1e-12, equal_nan=True)
    assert math.isnan(float(found[5])) and math.isinf(float(found[4]))
