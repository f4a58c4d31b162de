"""Row squares: the squared norm of each row in float64, from one pass over float32 numbers.

Edge cases:
    - This module can be imported only where Triton is installed.
    - Values that are not finite, and rows whose squares overflow float32, are summed in float64 as all others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hush.training.gpu.triton_language import at, constexpr, tl, triton

_BLOCK = 1024


def _row_squares(rows: at, out: at, width: at, stride: at, B: constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((B,), dtype=tl.float64)
    for start in range(0, width, B):
        i = start + tl.arange(0, B)
        value = tl.load(rows + row * stride + i, mask=i < width, other=0.0).to(tl.float64)
        total += value * value
    tl.store(out + row, tl.sum(total, axis=0))


ROW_SQUARES = triton.jit(_row_squares)


def usable(rows: Tensor) -> bool:
    """Whether the kernel can read these rows."""
    return rows.ndim == 2 and rows.dtype == torch.float32 and rows.stride(1) == 1 and len(rows) > 0


def row_squares(rows: Tensor) -> Tensor:
    """The squared norm of each row."""
    out = rows.new_empty(len(rows), dtype=torch.float64)
    block = min(_BLOCK, max(32, triton.next_power_of_2(rows.shape[1])))
    ROW_SQUARES[(len(rows),)](rows, out, rows.shape[1], rows.stride(0), B=block, num_warps=4)
    return out
