"""Sums of clipped per-example gradients, with a leading client axis: the hot loop.

One forward and one backward pass keep the input and the output gradient of every layer. From these follow the norms of
all per-example gradients, most of which are never formed, and then, in one product a layer, their clipped sums.

Guarantees:
    - Each example adds a vector of norm at most its client's clip to its client's sum, in the arithmetic used, not just
      in exact arithmetic: the clip factor is rounded down, in every precision.
    - An example whose gradient is not finite adds nothing: NaN and Inf cannot pass around the clip.
    - A masked example adds nothing, whatever its values.

Edge cases:
    - No example at all: the sum is zero.
    - An infinite clip leaves finite gradients as they are.
    - Norms are computed in float64, so a gradient whose square overflows float32 is clipped, not dropped.
    - Work is cut into pieces of at most `physical_batch` examples, fewer where a processor's cache asks for it; the sum
      does not depend on it beyond rounding.
    - A model with a layer that `hush.local.rules` does not know takes the slow path of `hush.local.fallback`, with one
      warning that names the layer, or is refused if `strict`.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from hush.local import fallback
from hush.local.chain import Chain, chain_of
from hush.local.even import Even
from hush.local.held import UnsupportedError
from hush.local.precision import Precision, accelerated, how
from hush.local.record import Recorder
from hush.local.sums import even_sums, ragged_sums
from hush.models import Model, unflatten
from hush.types import HushError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_KNOWN = "Linear, Conv1d, Conv2d, Embedding, GroupNorm, LayerNorm, InstanceNorm, RMSNorm, RNN, LSTM, GRU"
_CACHED = 32  # examples whose activations stay in a processor's cache, about


def clipped_sums(
    model: Model,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    physical_batch: int = 4096,
    *,
    precision: Precision = "float32",
    strict: bool = False,
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
        precision: How layers multiply: in float32, or with operands cut to tf32 (on accelerators) or bf16.
        strict: Refuse a model that would need the slow path.

    Returns:
        clients x p.
    """
    chain = chain_of(model, x[0]) if accelerated(x.device) is not None and vectors.dtype == torch.float32 else None
    if chain is not None:
        return chain_sums(chain, vectors, x, y, mask, clips, physical_batch, precision)
    try:
        return _fast(Recorder(model), vectors, x, y, mask, clips, piece(model, vectors, physical_batch), precision)
    except UnsupportedError as reason:
        refuse(model, reason, strict)
        return fallback.sums(model, vectors, x, y, mask, clips, physical_batch, precision=precision)


def recorder_for(model: Model, x: Tensor, y: Tensor, strict: bool = False) -> Recorder | None:
    """A recorder, or none (and a warning) if the model needs the slow path, which one pass over `x` shows."""
    try:
        recorder = Recorder(model)
        recorder.terms(unflatten(model.start.to(x.device)[None], model.layout), Even(1, len(x), x.device), x, y)
    except UnsupportedError as reason:
        refuse(model, reason, strict)
        return None
    return recorder


def piece(model: Model, vectors: Tensor, physical_batch: int) -> int:
    """Examples to work on at a time: on a processor, what convolutions make of them must fit its cache."""
    cached = not vectors.is_cuda and any(isinstance(part, _CONVOLUTIONS) for part in model.module.modules())
    return min(physical_batch, _CACHED) if cached else physical_batch


def refuse(model: Model, reason: UnsupportedError, strict: bool) -> None:
    """Say why the slow path is needed, or raise if it is not wanted."""
    text = f"model {model.name}: {reason}: there is no fast rule for that layer"
    if strict:
        raise HushError(f"{text}; accepted: {_KNOWN}") from None
    warnings.warn(f"{text}, so per-example gradients take the slow path", stacklevel=3)


def _fast(
    recorder: Recorder,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    limit: int,
    precision: Precision,
) -> Tensor:
    if vectors.is_cuda:
        xs, ys, masks = (t.transpose(0, 1).flatten(0, 1) for t in (x, y, mask))
        return even_sums(recorder, vectors, xs, ys, masks, clips, limit, precision)
    return ragged_sums(recorder, vectors, x[mask], y[mask], mask.sum(1).tolist(), clips, limit, precision)


def chain_sums(
    chain: Chain,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    limit: int,
    precision: Precision,
) -> Tensor:
    """The clipped sums of a chain, by its own kernels; arguments as those of `clipped_sums`."""
    launch = accelerated(x.device).chain_launch
    rows = mask.flatten().nonzero()[:, 0]
    ends = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
    batch = launch.Batch(rows.int(), (rows // mask.shape[1]).int(), ends.int())
    space = launch.Workspace(chain, max(1, min(limit, len(rows))), x.device)
    out = torch.empty_like(vectors)
    launch.sums(
        space, vectors.contiguous(), x.flatten(0, 1).contiguous(), y.flatten(), batch, clips, how(precision), out
    )
    return out
