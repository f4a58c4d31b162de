"""The precision in which layers multiply: float32, or operands rounded to tf32 or bf16 on request.

Guarantees:
    - float32 means float32: a GPU's shorter formats are off, whatever PyTorch's global settings say.
    - Norms, clip factors and clipped sums are always computed in full precision, so the clip holds in every setting.

Edge cases:
    - A CPU has no tf32: there it is float32.
    - PyTorch's settings are global to the process; they are restored afterwards.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, get_args

import torch

from hush.types import unknown

Precision = Literal["float32", "tf32", "bf16"]


def low_dtype(precision: Precision) -> torch.dtype | None:
    """Return the dtype to which operands are rounded beforehand, if any. Fails for an unknown precision."""
    if precision not in get_args(Precision):
        raise unknown("precision", "precision", precision, get_args(Precision))
    return torch.bfloat16 if precision == "bf16" else None


def triton_precision(precision: Precision) -> str:
    """Return the precision argument of Triton kernels: three tf32 products are as exact as one in float32."""
    low_dtype(precision)
    return "tf32x3" if precision == "float32" else precision


def triton_kernels(device: torch.device) -> Any:
    """Return the package `hush.training.gpu.kernels` if its kernels can run on that device, else none."""
    return _kernels() if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else None


@cache
def _kernels() -> Any:
    try:
        return importlib.import_module("hush.training.gpu.kernels")
    except ImportError:
        return None


@contextmanager
def matmul_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """PyTorch's global settings for that precision, restored on exit."""
    if device.type != "cuda":
        yield
        return
    convolutions: Any = torch.backends.cudnn
    settings = (torch.backends.cuda.matmul, convolutions.conv)
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value
