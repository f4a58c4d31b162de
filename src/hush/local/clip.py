"""From norms to clip factors.

Guarantees:
    - factor * norm <= clip with room for the roundings of a product: each number of a gradient may be rounded eight
      times on its way into a sum.
    - Factors are rounded toward zero, also where float32 has few digits left.

Edge cases:
    - The factor of a norm that is not finite is zero, and so is that of a masked example.
    - An infinite clip has factor one for every finite norm.
"""

from __future__ import annotations

import torch
from torch import Tensor


def factors(
    norms: Tensor, clips: Tensor, mask: Tensor | None, dtype: torch.dtype, finite: Tensor | None = None
) -> Tensor:
    """min(1, clip / norm) in that type, zero for what must add nothing. Norms are float64; `finite` says which are."""
    keep = norms.isfinite() if finite is None else finite
    if mask is not None:
        keep = keep & mask
    bound = clips * (1.0 - 4.0 * torch.finfo(dtype).eps)
    exact = torch.where(keep, torch.where(norms > bound, bound / norms, 1.0), 0.0)
    near = exact.to(dtype)
    return torch.where(near > exact, torch.nextafter(near, torch.zeros_like(near)), near)
