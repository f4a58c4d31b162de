"""Losses of one example: their gradients against autograd, along any axis."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hush.models.user_loss import user_loss
from hush.objective import BinaryCrossEntropy, CrossEntropy, Huber, Loss, MeanSquaredError
from hush.training.closed_form import output_gradients

OUTPUTS = 4


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float64).uniform_(-3, 3, generator=torch.Generator().manual_seed(seed))


def pinball(output: Tensor, target: Tensor) -> Tensor:
    return torch.maximum(0.9 * (target - output), 0.1 * (output - target)).mean()


LOSSES: dict[str, tuple[Loss, Tensor]] = {
    "cross-entropy": (CrossEntropy(), torch.arange(6) % OUTPUTS),
    "labels": (BinaryCrossEntropy(), (drawn(1, 6, OUTPUTS) > 0).double()),
    "mse": (MeanSquaredError(), drawn(2, 6, OUTPUTS)),
    "huber": (Huber(), drawn(3, 6, OUTPUTS)),
    "own": (user_loss(pinball, "pinball", "regression", OUTPUTS, 0), drawn(4, 6, OUTPUTS)),
    "own of classes": (
        user_loss(torch.nn.CrossEntropyLoss(label_smoothing=0.1), "smooth", "multiclass", OUTPUTS, OUTPUTS),
        torch.arange(6) % OUTPUTS,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_the_derivative_of_the_value_along_any_axis(name: str) -> None:
    loss, targets = LOSSES[name]
    outputs = drawn(5, 6, OUTPUTS).requires_grad_()
    (expected,) = torch.autograd.grad(loss(outputs, targets, reduction="sum"), outputs)
    torch.testing.assert_close(output_gradients(loss, outputs.detach(), targets, 1), expected)
    torch.testing.assert_close(output_gradients(loss, outputs.detach().t().contiguous(), targets, 0), expected.t())
    # Clients x outputs x examples, as the closed form has them.
    stacked, truth = outputs.detach().view(2, 3, OUTPUTS).transpose(1, 2), targets.view(2, 3, *targets.shape[1:])
    torch.testing.assert_close(output_gradients(loss, stacked, truth, 1), expected.view(2, 3, OUTPUTS).transpose(1, 2))


@pytest.mark.parametrize("name", LOSSES)
def test_reductions_are_of_the_loss_of_each_example(name: str) -> None:
    loss, targets = LOSSES[name]
    outputs = drawn(6, 6, OUTPUTS)
    each = loss(outputs, targets, reduction="none")
    assert each.shape == (6,)
    alone = [loss(o[None], t[None], reduction="none").item() for o, t in zip(outputs, targets, strict=True)]
    assert each.tolist() == pytest.approx(alone)
    assert loss(outputs, targets, reduction="mean").item() == pytest.approx(each.mean().item())
    assert loss(outputs, targets, reduction="sum").item() == pytest.approx(each.sum().item())


def test_losses_are_those_of_pytorch() -> None:
    outputs, (_, truth) = drawn(7, 6, OUTPUTS), LOSSES["mse"]
    labels = LOSSES["labels"][1]
    assert MeanSquaredError()(outputs, truth, reduction="mean") == pytest.approx(
        functional.mse_loss(outputs, truth).item()
    )
    assert Huber()(outputs, truth, reduction="mean").item() == pytest.approx(
        functional.huber_loss(outputs, truth).item()
    )
    expected = functional.binary_cross_entropy_with_logits(outputs, labels).item()
    assert BinaryCrossEntropy()(outputs, labels, reduction="mean").item() == pytest.approx(expected)


def test_one_logit_and_one_target_need_no_axis_of_outputs() -> None:
    outputs, classes = drawn(8, 5, 1), torch.tensor([0, 1, 1, 0, 1])
    loss = BinaryCrossEntropy()
    one = loss(outputs, classes, reduction="none")
    torch.testing.assert_close(one, loss(outputs, classes[:, None].double(), reduction="none"))
    real = drawn(9, 5)
    squared = MeanSquaredError()(outputs, real, reduction="none")
    torch.testing.assert_close(squared, (outputs[:, 0] - real).square())
    gradients = output_gradients(MeanSquaredError(), outputs.t(), real, 0)
    torch.testing.assert_close(gradients, 2 * (outputs[:, 0] - real)[None])


@pytest.mark.parametrize("name", ["labels", "mse", "huber", "own"])
def test_a_row_that_is_not_a_number_stays_its_own(name: str) -> None:
    loss, targets = LOSSES[name]
    outputs = drawn(10, 6, OUTPUTS)
    clean = output_gradients(loss, outputs, targets, 1)
    spoilt, wrong = outputs.clone(), targets.clone()
    spoilt[2], wrong[4] = float("nan"), float("inf")
    found = output_gradients(loss, spoilt, wrong, 1)
    others = [0, 1, 3, 5]
    assert torch.equal(found[others], clean[others])
