"""The norm of each row's gradient, one by one.

Guarantees:
    - A row's norm depends on that row alone.

Edge cases:
    - A gradient that is not finite has a norm that is not: it is below no clip.
    - No rows: no norms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hush.local import fallback
from hush.models import Model

_NUMBERS = 2**24  # of gradients held at once


def gradient_norms(model: Model, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Float64 norms, a row each."""
    width = max(1, _NUMBERS // vector.numel())
    pieces = [(a, b) for a, b in zip(x.split(width), y.split(width), strict=True) if len(a)]
    each = (fallback.gradients(model, vector[None], a[None], b[None])[0] for a, b in pieces)
    found = [torch.linalg.vector_norm(part, dim=-1, dtype=torch.float64) for part in each]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
