"""Per-example gradients of any model by `torch.func.vmap`: the slow path, and the reference for the others.

Guarantees:
    - Those of `hush.training.clipped_sum.ClippedSum`; every gradient is formed before it is clipped.

Edge cases:
    - One call at a time: PyTorch swaps the module's parameters while it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from hush.models import Model
from hush.models.isolation import quiet_vmap
from hush.training.clipping import clip_factors, summed_products
from hush.training.eager import EagerSum, GroupSums, Keys, padded_rows
from hush.training.job import Job
from hush.training.precision import Precision, low_dtype, matmul_precision
from hush.types import HushError

_LOCK = threading.Lock()
_CHECKED: WeakSet[nn.Module] = WeakSet()  # modules whose gradients by vmap were compared with those one by one


class VmapSum(EagerSum):
    """Clipped sums of gradients that are all formed."""

    def sums_of(self, jobs: Sequence[Job]) -> GroupSums:
        """`vmap_sums` over padded batches."""

        def sums(vectors: Tensor, rows: Sequence[Tensor], clips: Tensor, keys: Keys) -> Tensor:
            table, mask = padded_rows(rows, vectors.device)
            drawn = None if keys is None else padded_rows(keys, vectors.device)[0]
            size, precision = self.physical_batch, self.precision
            return vmap_sums(self.model, vectors, self.x, self.y, mask, clips, size, table, precision, drawn)

        return sums


def vmap_sums(
    model: Model,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    physical_batch: int,
    rows: Tensor | None = None,
    precision: Precision = "float32",
    keys: Tensor | None = None,
) -> Tensor:
    """The clipped gradient sum of each client, in float64; arguments as for `hush.training.select.clipped_sums`.

    With `rows` (clients x examples), `x` and `y` are the data of which these are rows, and `keys` are theirs. If an
    example is several rows (clients x examples x rows), its gradient is the mean of theirs.
    """
    width = max(1, physical_batch // len(vectors))
    total = torch.zeros_like(vectors, dtype=torch.float64)
    for start in range(0, mask.shape[1], width):
        part = slice(start, start + width)
        each = gradients(model, vectors, *gathered(model, x, y, rows, keys, part), precision, averaged(rows))
        norms = torch.linalg.vector_norm(each, dim=-1, dtype=torch.float64)
        scale = clip_factors(norms, clips[:, None], mask[:, part], each.dtype)
        if not bool(norms.isfinite().all()):
            each = torch.where(norms.isfinite()[..., None], each, 0.0)
        total += summed_products(scale[:, None], each, mask.shape[1])[:, 0]
    return total


def check_vmap(model: Model, x: Tensor, y: Tensor) -> None:
    """Raise a `HushError` unless the gradients of several examples and parameters are those of each by itself.

    PyTorch's rules for vmap are not all right: one that pairs rows with other clients' weights was seen. The examples
    are the model's probes, all with target 0: whether private rows are refused would be released without noise.
    """
    if model.probes is None or model.module in _CHECKED:
        return
    start = model.start.to(x.device)
    vectors = torch.stack([start, 0.5 * start + 0.01, -start])
    chosen = torch.arange(9) % len(model.probes)
    rows = model.probes[chosen].to(x.device, x.dtype).unflatten(0, (3, 3))
    labels = torch.zeros(3, 3, *y.shape[1:], dtype=y.dtype, device=y.device)
    try:
        together = gradients(model, vectors, rows, labels)
        alone = [
            grad(_loss(model))(vector, one_x, one_y)
            for vector, each, truth in zip(vectors, rows, labels, strict=True)
            for one_x, one_y in zip(each, truth, strict=True)
        ]
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HushError(f"model {model.name}: per-example gradients cannot be computed: {reason}") from None
    expected = torch.stack(alone)
    # Small entries may be differences of large ones: what a gradient may differ by follows from its largest.
    room = 1e-3 * (1.0 + expected.nan_to_num(0.0, posinf=0.0, neginf=0.0).abs().amax(1, keepdim=True))
    near = ((together.flatten(0, 1) - expected).abs() <= room) | ~expected.isfinite()
    if not bool(near.all()):
        raise HushError(f"model {model.name}: its gradients for several clients differ from those of each client alone")
    _CHECKED.add(model.module)


def gathered(
    model: Model, x: Tensor, y: Tensor, rows: Tensor | None, keys: Tensor | None, part: slice
) -> tuple[Tensor, Tensor]:
    """A part of each client's examples, or of the rows that they are, with their keys where the model is keyed."""
    if rows is None:
        return x[:, part], y[:, part]
    inputs = x[rows[:, part]]
    return inputs if keys is None else model.with_keys(inputs, keys[:, part]), y[rows[:, part]]


def averaged(rows: Tensor | None) -> bool:
    """Whether a table of rows has several for each example."""
    return rows is not None and rows.ndim == 3


def gradients(
    model: Model, vectors: Tensor, x: Tensor, y: Tensor, precision: Precision = "float32", several: bool = False
) -> Tensor:
    """The gradient of each example: clients x examples x p; with `several` rows in each, the mean of theirs."""
    per_client = vmap(grad(_mean_loss(model) if several else _loss(model)), in_dims=(None, 0, 0))
    # Attention by its formula: the fused kernels have no rule for vmap.
    quiet_vmap()
    with _LOCK, matmul_precision(precision, x.device), _lowered(precision, x.device), sdpa_kernel(SDPBackend.MATH):
        out: Tensor = vmap(per_client)(vectors, x, y)
    return out


def _loss(model: Model) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def loss(vector: Tensor, one_x: Tensor, one_y: Tensor) -> Tensor:
        return model.objective.loss(model.logits(vector, one_x[None]), one_y[None], reduction="mean")

    return loss


def _mean_loss(model: Model) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def loss(vector: Tensor, own_x: Tensor, own_y: Tensor) -> Tensor:
        # Row by row, so that the model is applied to one example at a time, as it was checked.
        each = vmap(_loss(model), in_dims=(None, 0, 0))(vector, own_x, own_y)
        return each.mean()

    return loss


def _lowered(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Layers multiply in the lower dtype, if there is one; gradients have the dtype of the parameters all the same."""
    low = low_dtype(precision)
    # Without its cache, which would keep what one example's pass converted.
    return nullcontext() if low is None else torch.autocast(device.type, dtype=low, cache_enabled=False)
