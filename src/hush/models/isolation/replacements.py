"""Replacements of operations that have no derivative, no rule for vmap, a wrong one, or no choice of precision."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Return the source in the type and shape of the target."""
    return source.to(target.dtype).expand_as(target).clone()


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """PyTorch's own, vmapped over clients, multiplies the rows of one client by the weights of others."""
    shape = [1] * x.ndim
    if x.ndim > 1:
        shape[1] = weight.numel()
    return torch.where(x > 0, x, weight.reshape(shape) * x)


def frozen_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """PyTorch's own, by fixed statistics, has no rule for vmap."""
    shape = (1, x.shape[1], *[1] * (x.ndim - 2))
    out = (x - mean.reshape(shape)) * (variance.reshape(shape) + eps).rsqrt()
    out = out if weight is None else out * weight.reshape(shape)
    out = out if bias is None else out + bias.reshape(shape)
    return out, mean.new_zeros(0), mean.new_zeros(0)


def one_hot(index: Tensor, num_classes: int) -> Tensor:
    """PyTorch's own looks at the values first, which vmap does not allow."""
    return (index[..., None] == torch.arange(num_classes, device=index.device)).long()


_aten = torch.ops.aten
_LOW: ContextVar[torch.dtype | None] = ContextVar("attention", default=None)


@contextmanager
def attention_in(low: torch.dtype | None) -> Iterator[None]:
    """Let attention multiply in that type inside, if one is given."""
    token = _LOW.set(low)
    try:
        yield
    finally:
        _LOW.reset(token)


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **kwargs: Any
) -> Tensor:
    """PyTorch's own does not know in which precision layers multiply."""
    low = _LOW.get()
    if low is not None:
        query, key, like = query.to(low), key.to(low), value
        value = value.to(low)
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(low)
    out: Tensor = _aten.scaled_dot_product_attention.default(query, key, value, attn_mask, *rest, **kwargs)
    return out if low is None else out.to(like.dtype)


REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    _aten.copy.default: copied,
    _aten.scaled_dot_product_attention.default: attention,
    _aten.prelu.default: prelu,
    _aten.one_hot.default: one_hot,
    _aten._native_batch_norm_legit_no_training.default: frozen_batch_norm,
}
_BAG = functional.embedding_bag
_BAG_ARGUMENTS = inspect.signature(_BAG)


def embedding_bag(*args: Any, **kwargs: Any) -> Tensor:
    """PyTorch's own numbers the tokens of a whole batch; here rows of a table are summed for each bag by itself."""
    given = _BAG_ARGUMENTS.bind(*args, **kwargs)
    given.apply_defaults()
    of = given.arguments
    tokens, weights, skipped = of["input"], of["per_sample_weights"], of["padding_idx"]
    if tokens.ndim != 2 or of["offsets"] is not None or of["max_norm"] is not None or of["scale_grad_by_freq"]:
        out: Tensor = _BAG(*args, **kwargs)
        return out
    rows = functional.embedding(tokens, of["weight"])
    real = torch.ones_like(tokens) if skipped is None else tokens != skipped % len(of["weight"])
    empty = real.sum(1, keepdim=True) == 0
    if of["mode"] == "max":
        rows = rows.masked_fill(~real.bool()[..., None], -torch.inf)
        return torch.where(empty, 0.0, rows.max(1).values)
    share = real.to(rows.dtype) if weights is None else real * weights
    if of["mode"] == "mean":
        share = share / torch.where(empty, 1, real.sum(1, keepdim=True))
    return (rows * share[..., None]).sum(1)


@contextmanager
def bags_by_rows() -> Iterator[None]:
    """Let PyTorch's function be `embedding_bag` of this file."""
    functional.embedding_bag = embedding_bag
    try:
        yield
    finally:
        functional.embedding_bag = _BAG
