"""Fusion of neighbouring layers that are faster as one: ReLU followed by max-pooling.

The maximum of ReLUs is the ReLU of the maximum, so pooling comes first, and ReLU sees a quarter of the numbers or
fewer; on a GPU both are one kernel.

Guarantees:
    - Outputs and gradients are those of the two modules, bit by bit, NaN included.

Edge cases:
    - Only in an `nn.Sequential`, only for windows that do not overlap, and only if neither module has hooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.models.validation import has_hooks
from hush.training.precision import triton_kernels


def fused(modules: Mapping[str, nn.Module | None]) -> dict[str, nn.Module | None]:
    """The modules of an `nn.Sequential` with every such pair replaced."""
    out = dict(modules)
    for (first, a), (second, b) in zip(list(out.items())[:-1], list(out.items())[1:], strict=True):
        if type(a) is nn.ReLU and type(b) is nn.MaxPool2d and _simple(b) and not has_hooks(a) and not has_hooks(b):
            out[first], out[second] = nn.Identity(), _ReluPool(_pair(b.kernel_size))
    return out


class _ReluPool(nn.Module):
    def __init__(self, kernel: tuple[int, int]) -> None:
        super().__init__()
        self._kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the maximum of each window."""
        if triton_kernels(x.device) is not None and x.ndim == 4 and x.dtype == torch.float32:
            return _pooled(x, self._kernel)
        return functional.relu(functional.max_pool2d(x, self._kernel))


class _FusedPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: tuple[int, int]) -> Tensor:
        out, chosen = triton_kernels(x.device).convolution.pool(x, kernel)
        ctx.save_for_backward(chosen)
        ctx.kernel, ctx.shape = kernel, x.shape
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None]:
        (chosen,) = ctx.saved_tensors
        return triton_kernels(chosen.device).convolution.unpool(outputs[0], chosen, ctx.shape, ctx.kernel), None


def _pooled(x: Tensor, kernel: tuple[int, int]) -> Tensor:
    apply: Any = _FusedPool.apply
    return cast(Tensor, apply(x, kernel))


def _simple(pool: nn.MaxPool2d) -> bool:
    kernel = _pair(pool.kernel_size)
    tiled = _pair(pool.stride) == kernel and _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1)
    return tiled and not pool.ceil_mode and not pool.return_indices and kernel[0] * kernel[1] < 255


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
