"""Losses of one example, by name or a user's own.

PyTorch differentiates them, or a training path takes the gradient with respect to the model's outputs from
`hush.training.closed_form.output_gradients`.

Guarantees:
    - The loss of an example, and its gradient, depend on that example's outputs and target alone.

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
HUBER = 1.0  # the error from which the loss grows linearly
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
        """Return the loss, ready to run on a device too."""
        return self

    @abstractmethod
    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: Reduction) -> Tensor:
        """Return the loss of each example (examples x outputs), or their mean or sum."""


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The cross-entropy of a softmax over the outputs. Targets are class numbers."""

    name: str = "cross-entropy"
    softmax: ClassVar[bool] = True

    __call__ = staticmethod(functional.cross_entropy)


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """The cross-entropy of a sigmoid, averaged over the outputs: one logit, or one for each label."""

    name: str = "cross-entropy"

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: Reduction) -> Tensor:
        """Return the loss of each example, or their mean or sum."""
        outputs = _precise(outputs)
        truth = along(targets, outputs, outputs.ndim - 1)
        each = functional.binary_cross_entropy_with_logits(outputs, truth, reduction="none").mean(-1)
        return _reduced(each, reduction)


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """The squared error, averaged over the outputs."""

    name: str = "mse"

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: Reduction) -> Tensor:
        """Return the loss of each example, or their mean or sum."""
        outputs = _precise(outputs)
        return _reduced((outputs - along(targets, outputs, outputs.ndim - 1)).square().mean(-1), reduction)


@dataclass(frozen=True)
class Huber(Loss):
    """Half the squared error up to an error of 1, linear beyond, averaged over the outputs."""

    name: str = "huber"

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: Reduction) -> Tensor:
        """Return the loss of each example, or their mean or sum."""
        outputs = _precise(outputs)
        truth = along(targets, outputs, outputs.ndim - 1)
        return _reduced(functional.huber_loss(outputs, truth, reduction="none", delta=HUBER).mean(-1), reduction)


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
        """Return the loss with its constants on a device. Call it before training: gradients cannot move constants."""
        for dtype in _PRECISE:
            if (device.type, dtype) not in self._cast:
                self._cast[device.type, dtype] = copy.deepcopy(self.module).to(device, dtype)
        return self

    def gradient(self, outputs: Tensor, targets: Tensor, dim: int) -> Tensor:
        """Return the derivative of the graph, example by example; outputs lie along axis `dim`."""
        last = _precise(outputs).movedim(dim, -1)
        truth = along(targets, last, last.ndim - 1)
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

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: Reduction) -> Tensor:
        """Return the loss of each example, or their mean or sum."""
        outputs = _precise(outputs)
        truth = along(targets, outputs, outputs.ndim - 1)
        found: Tensor = self._module(outputs)(torch.cat([outputs, truth], 1))
        return _reduced(found[:, 0], reduction)

    def _module(self, like: Tensor) -> nn.Module:
        """Return the graph with its constants on the device and of the type of a tensor."""
        return self._cast[like.device.type, like.dtype]


def _reduced(each: Tensor, reduction: Reduction) -> Tensor:
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def along(targets: Tensor, outputs: Tensor, dim: int) -> Tensor:
    """Return targets as numbers of the outputs' type, the axis of outputs where the outputs have it."""
    targets = targets.unsqueeze(dim) if targets.ndim < outputs.ndim else targets.movedim(-1, dim)
    return targets.to(outputs.dtype)


def _precise(outputs: Tensor) -> Tensor:
    """Return outputs in float32 at least: lower precision is for the products of layers alone."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))
