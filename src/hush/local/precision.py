"""How layers multiply: in float32, or with operands cut to fewer digits on request.

Guarantees:
    - float32 means float32: an accelerator's shorter formats are off, whatever PyTorch's switches say.
    - Norms, clip factors and clipped sums are always computed in full, so that the clip holds in every precision.

Edge cases:
    - A processor has no tf32: there it is float32.
    - PyTorch's switches are global to the process; they are put back when the work is done.
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


def low_type(precision: Precision) -> torch.dtype | None:
    """The type to which operands are cut beforehand, if any."""
    if precision not in get_args(Precision):
        raise unknown("precision", "precision", precision, get_args(Precision))
    return torch.bfloat16 if precision == "bf16" else None


def how(precision: Precision) -> str:
    """How kernels multiply: three short products are as exact as one in float32, and faster."""
    low_type(precision)
    return "tf32x3" if precision == "float32" else precision


def accelerated(device: torch.device) -> Any:
    """The kernels of `hush.local.launch` if they can run on that device, else none."""
    return _launch() if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else None


@cache
def _launch() -> Any:
    try:
        return importlib.import_module("hush.local.launch")
    except ImportError:
        return None


@contextmanager
def multiplying(precision: Precision, device: torch.device) -> Iterator[None]:
    """PyTorch's switches for that precision."""
    if device.type != "cuda":
        yield
        return
    convolutions: Any = torch.backends.cudnn
    switches = (torch.backends.cuda.matmul, convolutions.conv)
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value
