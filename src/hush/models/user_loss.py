"""A user's own loss: traced for one example, so that it can neither mix examples nor keep state, or refused.

The function is called with the output and the target of one example as a batch of one, which is what the losses of
PyTorch take as well, and must return one number. Its graph is what runs, mapped over the examples: the function itself
is not called again (`hush.models.isolation`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hush.models.validation import copied
from hush.objective import TaskName, UserLoss
from hush.seeds import rng
from hush.types import HushError

KEY = "objective.loss"
_EXAMPLES = 7
_ACCEPTED = (
    "a function of the output and the target of an example (PyTorch's own losses, too) that returns one number, by "
    "operations of PyTorch alone"
)


def user_loss(function: Callable[..., Any], name: str, task: TaskName, outputs: int, classes: int) -> UserLoss:
    """Return the loss that a user's function computes for one example.

    Args:
        function: Takes an output (1, outputs) and a target: a class number (1,), or for one logit, several labels and
            regression numbers of the output's shape.
        name: What to call it in results.
        task: What the model is trained for.
        outputs: How many numbers the model returns for an example.
        classes: The classes, for class numbers to try it with.

    Raises:
        HushError: It fails, returns anything but one number, keeps state, draws random numbers, depends on the values
            it is given for what it does, or has no gradient.
    """
    from hush.models.isolation.isolate import NotIsolatedError, isolate_rows

    numbered = task in ("binary", "multiclass") and outputs > 1
    rows = _examples(task, outputs, classes, numbered)
    try:
        # A module is copied, so that the user's own is not changed.
        own = copied(function, name) if isinstance(function, nn.Module) else function
        module = _OneExample(own, outputs, numbered)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not module(rows).requires_grad:
                raise HushError("has no gradient with respect to the output")
        traced = isolate_rows(module, rows)
    except NotIsolatedError as reason:
        raise _refused(name, str(reason)) from None
    except HushError as error:
        raise _refused(name, str(error)) from None
    except Exception as error:  # a user's function may fail in any way
        raise _refused(name, (str(error).strip() or type(error).__name__).splitlines()[0]) from None
    loss = UserLoss(name, traced.requires_grad_(False).eval())
    slopes = loss.gradient(rows[:, :outputs], rows[:, outputs:], 1).nan_to_num(0.0, 0.0, 0.0)
    if not bool((slopes != 0).any()):
        raise _refused(name, "has no gradient with respect to the output")
    return loss


class _OneExample(nn.Module):
    """A loss as a module of rows of output and target: its only own parameter is an offset of the outputs.

    By that offset the checks of `isolate_rows` see the gradient with respect to the outputs.
    """

    def __init__(self, function: Callable[..., Any], outputs: int, numbered: bool) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(outputs))
        self.function = function
        self.outputs, self.numbered = outputs, numbered
        if isinstance(function, nn.Module):
            for value in (*function.parameters(), *function.buffers()):
                value.requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the loss of each row, by itself."""
        return torch.cat([self._one(row[None]) for row in rows])

    def _one(self, row: Tensor) -> Tensor:
        output, target = row[:, : self.outputs] + self.offset, row[:, self.outputs :]
        found = self.function(output, target[:, 0].long() if self.numbered else target)
        if not isinstance(found, Tensor):
            raise HushError(f"returns {type(found).__name__} for one example, expected a tensor of one number")
        if found.numel() != 1:
            raise HushError(f"returns shape {tuple(found.shape)} for one example, expected one number")
        return found.reshape(1, 1).to(row.dtype)


def _examples(task: TaskName, outputs: int, classes: int, numbered: bool) -> Tensor:
    """Return rows to try a loss with, none of them from the data."""
    generator = rng(0, "loss probe")
    raw_outputs = generator.normal(size=(_EXAMPLES, outputs))
    if numbered:
        target = (torch.arange(_EXAMPLES) % classes)[:, None].double()
    elif task == "regression":
        target = torch.from_numpy(generator.normal(size=(_EXAMPLES, outputs)))
    else:
        target = torch.from_numpy(generator.integers(0, 2, (_EXAMPLES, outputs))).double()
    return torch.cat([torch.from_numpy(raw_outputs), target], 1).to(torch.float32)


def _refused(name: str, reason: str) -> HushError:
    return HushError(f"{KEY}: {name}: {reason}; accepted: {_ACCEPTED}", KEY)
