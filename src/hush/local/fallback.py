"""Per-example gradients of any model by PyTorch's own vectorisation: the slow path, and the reference for the fast.

Guarantees:
    - Those of `hush.local.per_example`; every gradient is formed before it is clipped.

Edge cases:
    - One call at a time: PyTorch swaps the module's parameters while it runs.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from hush.local.clip import factors
from hush.local.precision import Precision, low_type, multiplying
from hush.models import Model

_ALONE = threading.Lock()


def sums(
    model: Model,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    physical_batch: int,
    rows: Tensor | None = None,
    precision: Precision = "float32",
) -> Tensor:
    """The clipped gradient sum of each client; arguments as for `hush.local.per_example.clipped_sums`.

    With `rows` (clients x examples), `x` and `y` are the data of which these are rows.
    """
    width = max(1, physical_batch // len(vectors))
    total = torch.zeros_like(vectors)
    for start in range(0, mask.shape[1], width):
        part = slice(start, start + width)
        each = gradients(model, vectors, *taken(x, y, rows, part), precision)
        norms = torch.linalg.vector_norm(each, dim=-1, dtype=torch.float64)
        scale = factors(norms, clips[:, None], mask[:, part], each.dtype)
        if not bool(norms.isfinite().all()):
            each = torch.where(norms.isfinite()[..., None], each, 0.0)
        total += torch.bmm(scale[:, None], each)[:, 0]
    return total


def taken(x: Tensor, y: Tensor, rows: Tensor | None, part: slice) -> tuple[Tensor, Tensor]:
    """A part of each client's examples, or of the rows that they are."""
    return (x[:, part], y[:, part]) if rows is None else (x[rows[:, part]], y[rows[:, part]])


def gradients(model: Model, vectors: Tensor, x: Tensor, y: Tensor, precision: Precision = "float32") -> Tensor:
    """The gradient of each example: clients x examples x p."""

    def loss(vector: Tensor, one_x: Tensor, one_y: Tensor) -> Tensor:
        return functional.cross_entropy(model.logits(vector, one_x[None]), one_y[None])

    per_client = vmap(grad(loss), in_dims=(None, 0, 0))
    with _ALONE, multiplying(precision, x.device), _lowered(precision, x.device):
        out: Tensor = vmap(per_client)(vectors, x, y)
    return out


def _lowered(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Layers multiply in the lower type, if there is one; gradients are of the type of the parameters all the same."""
    low = low_type(precision)
    # Without its cache, which would keep what one example's pass converted.
    return nullcontext() if low is None else torch.autocast(device.type, dtype=low, cache_enabled=False)
