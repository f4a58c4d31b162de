"""Neighbours in a model that are faster as one: the positive part followed by the largest of a window.

The largest of the positive parts is the positive part of the largest, so the second comes first, on a quarter of the
numbers or fewer; on an accelerator both are one kernel.

Guarantees:
    - Outputs and gradients are those of the two modules, bit by bit, NaN included.

Edge cases:
    - Only in an `nn.Sequential`, only for windows side by side, and only if no one listens in between (hooks).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.local.precision import accelerated


def fused(modules: Mapping[str, nn.Module | None]) -> dict[str, nn.Module | None]:
    """The modules of an `nn.Sequential` with every such pair replaced."""
    out = dict(modules)
    for (first, a), (second, b) in zip(list(out.items())[:-1], list(out.items())[1:], strict=True):
        if type(a) is nn.ReLU and type(b) is nn.MaxPool2d and _simple(b) and not heard(a) and not heard(b):
            out[first], out[second] = nn.Identity(), _RectifiedPool(_pair(b.kernel_size))
    return out


class _RectifiedPool(nn.Module):
    def __init__(self, kernel: tuple[int, int]) -> None:
        super().__init__()
        self._kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """The positive part of the largest of each window."""
        if accelerated(x.device) is not None and x.ndim == 4 and x.dtype == torch.float32:
            return _pooled(x, self._kernel)
        return functional.relu(functional.max_pool2d(x, self._kernel))


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: tuple[int, int]) -> Tensor:
        out, chosen = accelerated(x.device).pool(x, kernel)
        ctx.save_for_backward(chosen)
        ctx.kernel, ctx.shape = kernel, x.shape
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None]:
        (chosen,) = ctx.saved_tensors
        return accelerated(chosen.device).unpool(outputs[0], chosen, ctx.shape, ctx.kernel), None


def _pooled(x: Tensor, kernel: tuple[int, int]) -> Tensor:
    apply: Any = _Pooled.apply
    return cast(Tensor, apply(x, kernel))


def _simple(pool: nn.MaxPool2d) -> bool:
    kernel = _pair(pool.kernel_size)
    side_by_side = _pair(pool.stride) == kernel and _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1)
    return side_by_side and not pool.ceil_mode and not pool.return_indices and kernel[0] * kernel[1] < 255


def heard(part: nn.Module) -> bool:
    """Whether somebody listens to what goes into the module or comes out of it."""
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
