"""Sums of clipped per-example gradients, with a leading client axis.

Guarantees:
    - Each example adds a vector of norm at most its client's clip to its client's sum, in the arithmetic used, not just
      in exact arithmetic: the clip factor is rounded down.
    - An example whose gradient is not finite adds nothing: NaN and Inf cannot pass around the clip.
    - A masked example adds nothing, whatever its values.

Edge cases:
    - No example at all: the sum is zero.
    - An infinite clip leaves finite gradients as they are.
    - Norms are accumulated in float64, so a gradient whose square overflows float32 is clipped, not dropped.
    - Work is cut into pieces of at most `physical_batch` examples; the sum does not depend on it beyond rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from hush.models import Model


def clipped_sums(
    model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor, physical_batch: int = 4096
) -> Tensor:
    """The clipped gradient sum of each client at its own parameters.

    Args:
        model: Gives the logits.
        vectors: Parameters, clients x p.
        x: Inputs, clients x examples x shape.
        y: Labels, clients x examples.
        mask: True where there is an example, clients x examples.
        clips: Norm bound of each client.
        physical_batch: Examples whose gradients are held in memory at a time.

    Returns:
        clients x p.
    """
    width = max(1, physical_batch // len(vectors))
    total = torch.zeros_like(vectors)
    for start in range(0, x.shape[1], width):
        part = slice(start, start + width)
        gradients = _gradients(model, vectors, x[:, part], y[:, part])
        total += _clipped(gradients, mask[:, part], clips)
    return total


def _gradients(model: Model, vectors: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradient of each example: clients x examples x p."""

    def loss(vector: Tensor, one_x: Tensor, one_y: Tensor) -> Tensor:
        return functional.cross_entropy(model.logits(vector, one_x[None]), one_y[None])

    per_client = vmap(grad(loss), in_dims=(None, 0, 0))
    gradients: Tensor = vmap(per_client)(vectors, x, y)
    return gradients


def _clipped(gradients: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    """Weighted sum over the examples with weights min(1, clip / norm), zero for masked and non-finite ones."""
    norms = torch.linalg.vector_norm(gradients, dim=-1, dtype=torch.float64)
    keep = mask & norms.isfinite()
    bound = clips[:, None].to(torch.float64) * (1.0 - 4.0 * torch.finfo(gradients.dtype).eps)
    factors = torch.where(keep & (norms > bound), bound / norms, keep.to(torch.float64)).to(gradients.dtype)
    if not bool(keep.all()):
        gradients = torch.where(keep[..., None], gradients, 0.0)
    return torch.bmm(factors[:, None], gradients)[:, 0]
