"""Dropout in a traced graph: random numbers computed from a key of each example, in place of a random generator.

A graph that draws (dropout, Bernoulli and uniform numbers, RReLU, dropout inside attention and between recurrent
layers) is rewritten to functions of this file. Each takes the keys of the batch, the number of its site in the graph,
and the batch axis of its tensor as it was proved. The number of an element is a hash of (key of its example, site,
place within the example): no state, no order, the same on every device, and the same however a batch is cut.

Guarantees:
    - What example i gets depends on key i alone, and on no other example.
    - Without keys every random number is its mean: the deterministic graph that is compared with the module.

Edge cases:
    - Keys arrive as three columns of whole numbers below 2^24 behind the numbers of a row, exact in float32
      (`with_keys`); anything else in these columns is clamped to that range.
    - Uniform numbers have 24 bits in every dtype, so float32 and float64 drop the same elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from hush.models.recurrent import parameters_per_direction, recurrent

Axis = tuple[int, int, int] | None  # dim, outer, inner of `BatchAxis`; none in the graph of one row
KEY_COLUMNS = 3
_COLUMN_BITS = 24
_COLUMN = (1 << _COLUMN_BITS) - 1
_WORD = (1 << 32) - 1
# Odd multipliers below 2^31: a product with a 32-bit number does not overflow int64.
_FIRST, _SECOND, _STEP = 0x7FEB352D, 0x68BC21EB, 0x1E3779B1
_aten = torch.ops.aten


def with_keys(x: Tensor, keys: Tensor) -> Tensor:
    """Return rows as a keyed graph takes them: the numbers of each, then its 64-bit key as three columns.

    Args:
        x: Rows, axes of `keys` x shape of one.
        keys: An int64 for each row.
    """
    columns = [keys & _COLUMN, (keys >> _COLUMN_BITS) & _COLUMN, (keys >> 2 * _COLUMN_BITS) & 0xFFFF]
    return torch.cat([x.flatten(keys.ndim), torch.stack(columns, -1).to(x)], -1)


def rows_of(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the rows without their keys."""
    rows: Tensor = packed[:, :-KEY_COLUMNS].reshape(len(packed), *shape)
    return rows


def keys_of(packed: Tensor) -> Tensor:
    """Return the keys as two 32-bit words each, examples x 2."""
    a, b, c = packed[:, -KEY_COLUMNS:].clamp(0, _COLUMN).to(torch.int64).unbind(1)
    return torch.stack([a | ((b & 0xFF) << 24), (b >> 8) | ((c & 0xFFFF) << 16)], 1)


def uniform(keys: Tensor, site: int, axis: Axis, like: Tensor) -> Tensor:
    """Return numbers in [0, 1) in the shape and dtype of a tensor."""
    shape = tuple(like.shape)
    dim, outer, inner = (0, 1, 1) if axis is None else axis
    # The shape of one example; the graph of one row is that of one example in all of its axes.
    own = shape if axis is None else (*shape[:dim], outer, inner, *shape[dim + 1 :])
    label = _mixed(site, _STEP)
    low, high = (_mixed(keys[:, word, None] ^ label, label + word) for word in (0, 1))
    counter = torch.arange(prod(own), device=keys.device)[None] * _STEP
    found: Tensor = (_mixed(counter + low, high) >> 8).to(like.dtype) * 2.0**-24
    if axis is None:
        return found.reshape(shape)
    return found.reshape(-1, *own).movedim(0, dim + 1).flatten(dim, dim + 2)


def _mixed(word: Any, other: Any) -> Any:
    """Return a 32-bit hash of a whole number, keyed by another in the middle; both are numbers, or tensors of int64."""
    word = word & _WORD
    word = ((word ^ (word >> 16)) * _FIRST) & _WORD
    word = word ^ other
    word = ((word ^ (word >> 15)) * _SECOND) & _WORD
    return word ^ (word >> 16)


def bernoulli(keys: Tensor | None, site: int, axis: Axis, like: Tensor, share: float) -> Tensor:
    """Return ones with that probability and zeros otherwise; the probability itself without keys."""
    return torch.full_like(like, share) if keys is None else (uniform(keys, site, axis, like) < share).to(like.dtype)


def keyed_dropout(keys: Tensor | None, site: int, axis: Axis, x: Tensor, p: float) -> Tensor:
    """Apply dropout: zero with probability p, else scaled by 1 / (1 - p)."""
    if p == 1.0:
        return torch.zeros_like(x)
    if keys is None or p == 0.0:
        return x
    return torch.where(uniform(keys, site, axis, x) < 1.0 - p, x / (1.0 - p), 0.0)


def _native_dropout(
    keys: Tensor | None, site: int, axis: Axis, x: Tensor, p: float, train: bool | None = True
) -> tuple[Tensor, Tensor]:
    # What was dropped is for a backward pass of PyTorch's own; autograd goes through the operations here.
    return keyed_dropout(keys, site, axis, x, p), torch.ones_like(x, dtype=torch.bool)


def _dropout(keys: Tensor | None, site: int, axis: Axis, x: Tensor, p: float, train: bool) -> Tensor:
    return keyed_dropout(keys, site, axis, x, p)


def _bernoulli_share(keys: Tensor | None, site: int, axis: Axis, x: Tensor, p: float = 0.5, **_: Any) -> Tensor:
    return bernoulli(keys, site, axis, x, p)


def _bernoulli(keys: Tensor | None, site: int, axis: Axis, x: Tensor, **_: Any) -> Tensor:
    # As PyTorch's own it has no derivative by the probabilities.
    shares = x.detach()
    return shares if keys is None else (uniform(keys, site, axis, shares) < shares).to(x.dtype)


def _rand_like(keys: Tensor | None, site: int, axis: Axis, x: Tensor, **given: Any) -> Tensor:
    like = torch.empty_like(x, dtype=given.get("dtype"))
    return torch.full_like(like, 0.5) if keys is None else uniform(keys, site, axis, like)


def _rand(keys: Tensor | None, site: int, axis: Axis, size: Sequence[int], **given: Any) -> Tensor:
    like = torch.empty(tuple(size), dtype=given.get("dtype"), device=given.get("device"))
    return torch.full_like(like, 0.5) if keys is None else uniform(keys, site, axis, like)


def _rrelu(
    keys: Tensor | None, site: int, axis: Axis, x: Tensor,
    lower: float = 0.125, upper: float = 1.0 / 3.0, training: bool = False, generator: None = None,
) -> Tensor:  # fmt: skip
    slope: Any = 0.5 * (lower + upper)
    if keys is not None:
        slope = lower + (upper - lower) * uniform(keys, site, axis, x)
    return torch.where(x > 0, x, slope * x)


def _attention(
    keys: Tensor | None, site: int, axis: Axis, query: Tensor, key: Tensor, value: Tensor,
    attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Compute attention by its formula, with dropout of its weights. A query that may attend to nothing gets zeros."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        allowed = attn_mask.dtype == torch.bool
        scores = torch.where(attn_mask, scores, -torch.inf) if allowed else scores + attn_mask
        nothing = (scores == -torch.inf).all(-1, keepdim=True)
        weights = torch.where(nothing, 0.0, torch.softmax(torch.where(nothing, 0.0, scores), -1))
    else:
        weights = torch.softmax(scores, -1)
    return keyed_dropout(keys, site, axis, weights, dropout_p) @ value


def _recurrent(
    keys: Tensor | None, site: int, axis: Axis, operation: Any, x: Tensor, hx: Tensor | Sequence[Tensor],
    params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return a recurrent network one layer at a time, with dropout between the layers."""
    states, runs = (hx,) if isinstance(hx, Tensor) else tuple(hx), 1 + bidirectional
    width = runs * parameters_per_direction(has_biases)
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        own = [state[layer * runs : (layer + 1) * runs] for state in states]
        weights = params[layer * width : (layer + 1) * width]
        x, *end = recurrent(
            operation, x, own[0] if isinstance(hx, Tensor) else own, weights, has_biases, 1, 0.0, train, bidirectional,
            batch_first,
        )  # fmt: skip
        ends.append(tuple(end))
        if layer + 1 < num_layers:
            # A site for each layer, far from those of other nodes.
            x = keyed_dropout(keys, site + (layer << 16), axis, x, dropout)
    return x, *(torch.cat(parts) for parts in zip(*ends, strict=True))


# The operations that may draw, and what stands for them. Their first arguments are keys, site and axis.
FUNCTIONS: Mapping[Any, Any] = {
    _aten.native_dropout.default: _native_dropout,
    _aten.dropout.default: _dropout,
    _aten.bernoulli.default: _bernoulli,
    _aten.bernoulli.p: _bernoulli_share,
    _aten.rand.default: _rand,
    _aten.rand_like.default: _rand_like,
    _aten.rrelu.default: _rrelu,
    _aten.scaled_dot_product_attention.default: _attention,
    _aten.lstm.input: _recurrent,
    _aten.gru.input: _recurrent,
    _aten.rnn_tanh.input: _recurrent,
    _aten.rnn_relu.input: _recurrent,
}
STAND_INS = frozenset(FUNCTIONS.values())
RECURRENT = (_recurrent,)
