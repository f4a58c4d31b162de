"""The subspace in which some updates lie, tensor by tensor, and the projection of other updates onto it (PFA).

A basis has a row for each direction and a column for each parameter: direction j of every tensor stands in row j, so
that one matrix holds the bases of all tensors. A tensor with fewer directions has rows of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hush.types import Layout

_NUMBERS = 1 << 24  # of the updates that directions are looked for in, where these are stored elsewhere
_FEWEST = 256  # columns of a tensor, if it has them


def directions(updates: Tensor, k: int, layout: Layout) -> Tensor:
    """The k leading right singular vectors of the updates in each tensor, k x p; zeros where there are fewer."""
    parts = updates.double().split(layout.sizes, dim=1)
    return torch.cat([_leading(part, k) for part in parts], dim=1)


def random_directions(normals: Tensor, layout: Layout) -> Tensor:
    """Orthonormal directions of each tensor from k x p normal numbers."""
    found = []
    for part in normals.split(layout.sizes, dim=1):
        basis, _ = torch.linalg.qr(part.T)
        short = torch.zeros(len(part), part.shape[1], dtype=part.dtype)
        short[: basis.shape[1]] = basis.T
        found.append(short)
    return torch.cat(found, dim=1)


def coefficients(updates: Tensor, basis: Tensor, layout: Layout) -> Tensor:
    """The coordinates of updates in the directions of each tensor: updates x tensors x k."""
    parts = zip(updates.double().split(layout.sizes, dim=1), basis.split(layout.sizes, dim=1), strict=True)
    return torch.stack([part @ rows.T for part, rows in parts], dim=1)


def combined(far: Tensor, basis: Tensor, layout: Layout) -> Tensor:
    """The updates with these coordinates: the part of the original ones that lies in the subspace."""
    parts = zip(far.unbind(1), basis.split(layout.sizes, dim=1), strict=True)
    return torch.cat([each @ rows for each, rows in parts], dim=1)


def _leading(part: Tensor, k: int) -> Tensor:
    # The Gram matrix of the updates is small; its eigenvectors give the right singular vectors.
    values, vectors = torch.linalg.eigh(part @ part.T)
    found = torch.zeros(k, part.shape[1], dtype=part.dtype)
    rank = min(k, *part.shape)
    real = values.flip(0)[:rank] > 1e-24 * values[-1].clamp_min(1e-300)
    top = vectors.flip(1)[:, :rank].T @ part
    norms = top.norm(dim=1, keepdim=True)
    found[:rank] = torch.where(real[:, None], top / norms.clamp_min(1e-300), 0.0)
    return found


def sampled_columns(layout: Layout, clients: int) -> list[Tensor]:
    """Return evenly spaced columns of each tensor, by their numbers in the whole update: all, if there are few."""
    share = min(1.0, _NUMBERS / (clients * layout.size))
    found, first = [], 0
    for size in layout.sizes:
        number = min(size, max(_FEWEST, int(share * size)))
        found.append(first + torch.arange(number) * size // number)
        first += size
    return found


def leading_sums(sample: Tensor, k: int, sizes: Sequence[int]) -> Tensor:
    """Return which sums of the updates are the leading directions of each tensor: tensors x k x updates.

    `sample` has some columns of each tensor, `sizes` how many. Tensors with fewer directions have sums of nothing.
    """
    found = torch.zeros(len(sizes), k, len(sample), dtype=torch.float64)
    for part, out in zip(sample.split(list(sizes), dim=1), found, strict=True):
        values, vectors = torch.linalg.eigh(part @ part.T)
        rank = min(k, *part.shape)
        real = values.flip(0)[:rank] > 1e-24 * values[-1].clamp_min(1e-300)
        out[:rank] = torch.where(real[:, None], vectors.flip(1)[:, :rank].T, 0.0)
    return found


def by_tensor(numbers: Tensor, layout: Layout) -> Tensor:
    """Return numbers of each tensor, tensors x k, repeated for each of its parameters: k x p."""
    return numbers.T.repeat_interleave(torch.tensor(layout.sizes), dim=1)


def orthonormal(found: Tensor, layout: Layout) -> Tensor:
    """Return directions of each tensor, k x p, made orthonormal in their order; what is nothing stays so."""
    parts = []
    for part in found.split(layout.sizes, dim=1):
        rows: list[Tensor] = []
        for row in part:
            rest = row - sum((row @ other * other for other in rows), torch.zeros_like(row))
            norm = rest.norm()
            rows.append(rest / norm if bool(norm > 1e-9 * row.norm()) and bool(norm > 0) else torch.zeros_like(row))
        parts.append(torch.stack(rows))
    return torch.cat(parts, dim=1)
