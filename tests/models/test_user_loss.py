"""A user's own loss is computed for one example at a time, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.models.user_loss import user_loss
from hush.types import HushError

pytestmark = pytest.mark.slow


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return (output - target).square().mean() * self.calls


class RunningMean(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * output.detach().mean())
        return (output - self.mean - target).square().mean()


def by_value(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().mean() if float(output.mean()) > 0 else (output - target).square().mean()


def by_numpy(output: Tensor, target: Tensor) -> Tensor:
    return torch.tensor(np.abs(output.detach().numpy() - target.numpy()).mean()) + 0.0 * output.sum()


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "counts its calls": (Counting(), "keeps state between calls"),
    "running mean": (RunningMean(), "keeps state between calls"),
    "random": (lambda o, t: (o - t).abs().mean() * torch.rand(()), "uses random numbers"),
    "dropout": (lambda o, t: (functional.dropout(o, 0.5) - t).abs().mean(), "uses random numbers"),
    "branch on a value": (by_value, "depends on the values"),
    "leaves PyTorch": (by_numpy, "cannot be traced"),
    "a number for each output": (lambda o, t: (o - t).abs(), r"returns shape \(1, 2\) for one example"),
    "not a tensor": (lambda o, t: 3.0, "returns float for one example"),
    "constant": (lambda o, t: torch.tensor(3.0), "has no gradient"),
    "detached": (lambda o, t: (o.detach() - t).square().mean(), "has no gradient"),
    "not a number": (lambda o, t: o.sum() * float("nan"), "has no gradient"),
    "fails": (lambda o, t: o @ t, "accepted: a function of the output and the target"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_isolated_is_refused_with_the_reason(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(HushError, match=reason) as error:
        user_loss(function, "mine", "regression", 2, 0)
    assert error.value.key == "objective.loss" and "\n" not in str(error.value)


def test_a_loss_that_mixes_a_batch_sees_one_example_alone() -> None:
    def centred(output: Tensor, target: Tensor) -> Tensor:
        return (output - output.mean(0)).square().mean() + (output - target).square().mean()

    loss = user_loss(centred, "centred", "regression", 2, 0)
    outputs, targets = torch.tensor([[1.0, 2.0], [30.0, -4.0]]), torch.zeros(2, 2)
    assert loss(outputs, targets, reduction="none").tolist() == [2.5, 458.0]
    assert torch.equal(loss.gradient(outputs, targets, 1)[:1], loss.gradient(outputs[:1], targets[:1], 1))


def test_what_a_function_remembers_of_later_calls_is_not_seen() -> None:
    factor = [1.0]

    def scaled(output: Tensor, target: Tensor) -> Tensor:
        return factor[0] * (output - target).square().mean()

    loss = user_loss(scaled, "scaled", "regression", 1, 0)
    factor[0] = 100.0
    assert loss(torch.tensor([[3.0]]), torch.tensor([[1.0]]), reduction="sum").item() == 4.0


def test_losses_of_pytorch_are_taken_as_they_are() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), reduction="sum")
    outputs, classes = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.5, 0.0]]), torch.tensor([2, 0])
    loss = user_loss(weighted, "weighted", "multiclass", 3, 3)
    expected = functional.cross_entropy(outputs, classes, weighted.weight, reduction="none")
    torch.testing.assert_close(loss(outputs, classes, reduction="none"), expected)
    assert loss(outputs.double(), classes, reduction="none").dtype == torch.float64
    positive = user_loss(nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])), "weighted", "binary", 1, 2)
    found = positive(torch.tensor([[0.3], [0.3]]), torch.tensor([0, 1]), reduction="none")
    assert found[1] / functional.softplus(torch.tensor(-0.3)) == pytest.approx(3.0)


def test_a_module_of_the_user_is_not_changed() -> None:
    module = nn.CrossEntropyLoss(weight=torch.ones(3, requires_grad=True))
    user_loss(module, "mine", "multiclass", 3, 3)
    assert module.weight is not None and module.weight.requires_grad
