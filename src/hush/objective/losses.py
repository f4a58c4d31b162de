"""Losses of one example: its value, and its gradient with respect to the model's outputs.

Every training path asks here: paths that form no graph of the loss take `gradient`, the others differentiate the value.

Guarantees:
    - The loss of an example, and its gradient, depend on that example's outputs and target alone.
    - `gradient` is the derivative of the value. It may be of any size, or not a number: clipping comes after it.

Edge cases:
    - Targets have no axis of outputs (class numbers, or one real number per example), or have it last.
    - A user's loss is a traced graph of one example (`hush.models.user_loss`), mapped over the examples.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Reduction = Literal["none", "mean", "sum"]
_HUBER = 1.0  # the error from which the loss grows linearly
_PRECISE = (torch.float32, torch.float64)


class Loss(ABC):
    """The loss of one example.

    Attributes:
        name: As in a config.
        softmax: Whether it is the cross-entropy of a softmax, for which kernels of their own exist.
        non_negative: Whether it is known to be nowhere below zero.
    """

    name: str
    softmax: ClassVar[bool] = False
    non_negative: ClassVar[bool] = True

    def to(self, device: torch.device) -> Loss:
        """The loss, ready to run on a device too."""
        return self

    def __call__(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "none") -> Tensor:
        """The loss of each example (examples x outputs), or their mean or sum."""
        each = self._each(outputs, targets)
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()

    @abstractmethod
    def gradient(self, outputs: Tensor, targets: Tensor, dim: int) -> Tensor:
        """The gradient with respect to the outputs, which lie along that axis; the other axes are examples."""

    @abstractmethod
    def _each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example."""


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The cross-entropy of a softmax over the outputs. Targets are class numbers."""

    name: str = "cross-entropy"
    softmax: ClassVar[bool] = True

    def __call__(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "none") -> Tensor:
        """The loss of each example, or their mean or sum."""
        return functional.cross_entropy(outputs, targets, reduction=reduction)

    def gradient(self, outputs: Tensor, targets: Tensor, dim: int) -> Tensor:
        """Softmax minus one-hot label."""
        d = torch.softmax(outputs, dim)
        labels = targets.unsqueeze(dim)
        return d.scatter_add_(dim, labels, d.new_full((), -1.0).expand_as(labels))

    def _each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """The cross-entropy of a sigmoid, averaged over the outputs: one logit, or one for each label."""

    name: str = "cross-entropy"

    def gradient(self, outputs: Tensor, targets: Tensor, dim: int) -> Tensor:
        """Sigmoid minus target, over the number of outputs."""
        return (torch.sigmoid(outputs) - _along(targets, outputs, dim)) / outputs.shape[dim]

    def _each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = _precise(outputs)
        truth = _along(targets, outputs, outputs.ndim - 1)
        return functional.binary_cross_entropy_with_logits(outputs, truth, reduction="none").mean(-1)


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """The squared error, averaged over the outputs."""

    name: str = "mse"

    def gradient(self, outputs: Tensor, targets: Tensor, dim: int) -> Tensor:
        """Twice the error, over the number of outputs."""
        return (outputs - _along(targets, outputs, dim)) * (2.0 / outputs.shape[dim])

    def _each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = _precise(outputs)
        return (outputs - _along(targets, outputs, outputs.ndim - 1)).square().mean(-1)


@dataclass(frozen=True)
class Huber(Loss):
    """Half the squared error up to an error of 1, linear beyond, averaged over the outputs."""

    name: str = "huber"

    def gradient(self, outputs: Tensor, targets: Tensor, dim: int) -> Tensor:
        """The error cut to [-1, 1], over the number of outputs."""
        return (outputs - _along(targets, outputs, dim)).clamp(-_HUBER, _HUBER) / outputs.shape[dim]

    def _each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = _precise(outputs)
        truth = _along(targets, outputs, outputs.ndim - 1)
        return functional.huber_loss(outputs, truth, reduction="none", delta=_HUBER).mean(-1)


@dataclass(frozen=True)
class UserLoss(Loss):
    """A user's loss, as the traced graph of one example: the user's code is not called again.

    Attributes:
        name: What it is called in results.
        module: The graph, from rows of an example's outputs and target side by side to one number.
    """

    name: str
    module: nn.Module
    non_negative: ClassVar[bool] = False
    _cast: dict[tuple[str, torch.dtype], nn.Module] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.to(torch.device("cpu"))

    def to(self, device: torch.device) -> UserLoss:
        """The loss with its constants on a device: beforehand, as none can be moved where gradients are taken."""
        for dtype in _PRECISE:
            if (device.type, dtype) not in self._cast:
                self._cast[device.type, dtype] = copy.deepcopy(self.module).to(device, dtype)
        return self

    def gradient(self, outputs: Tensor, targets: Tensor, dim: int) -> Tensor:
        """The derivative of the graph, example by example."""
        last = _precise(outputs).movedim(dim, -1)
        truth = _along(targets, last, last.ndim - 1)
        module = self._module(outputs)

        def one(output: Tensor, target: Tensor) -> Tensor:
            loss: Tensor = module(torch.cat([output, target])[None])
            return loss[0, 0]

        examples = last.reshape(-1, last.shape[-1])
        if not len(examples):
            return torch.zeros_like(outputs)
        each = torch.func.vmap(torch.func.grad(one))(examples, truth.reshape(len(examples), -1))
        found: Tensor = each.detach().view_as(last)
        return found.movedim(-1, dim)

    def _each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = _precise(outputs)
        truth = _along(targets, outputs, outputs.ndim - 1)
        found: Tensor = self._module(outputs)(torch.cat([outputs, truth], 1))
        return found[:, 0]

    def _module(self, like: Tensor) -> nn.Module:
        """The graph with its constants on the device and of the type of a tensor."""
        return self._cast[like.device.type, like.dtype]


def _along(targets: Tensor, outputs: Tensor, dim: int) -> Tensor:
    """Targets as numbers of the outputs' type, the axis of outputs where the outputs have it."""
    targets = targets.unsqueeze(dim) if targets.ndim < outputs.ndim else targets.movedim(-1, dim)
    return targets.to(outputs.dtype)


def _precise(outputs: Tensor) -> Tensor:
    """Outputs in float32 at least: lower precision is for the products of layers alone."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))
