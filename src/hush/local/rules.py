"""Which of PyTorch's functions may use a per-client parameter, and the layer that each becomes.

Supported are linear layers, convolutions along one or two axes, embeddings, and the scales and shifts of group, layer,
instance and root-mean-square normalisation, by PyTorch's modules or functions, in any model code and as often as it
likes.

Guarantees:
    - What is not supported is refused (`UnsupportedError`), never computed otherwise.

Edge cases:
    - A layer of which only a part is trained, an embedding that renormalises its rows or scales its gradients, and
      running statistics are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hush.local import convolve
from hush.local.held import Held, Layer, Rule, Tape, UnsupportedError
from hush.local.layers import Convolution, Linear, Parameter, Scale, Table


def _linear(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _run(tape, Linear(tape.clients, _parameter(tape, weight), _optional(tape, bias)), x, weight, bias)


def _convolution(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    if x.ndim != weight.ndim:
        raise UnsupportedError(f"a convolution takes inputs of shape {tuple(x.shape)}, without an axis of examples")
    padded, geometry = convolve.prepared(x, tuple(weight.shape[2:]), stride, padding, dilation, groups)
    layer = Convolution(tape.clients, _parameter(tape, weight), _optional(tape, bias), geometry)
    return _run(tape, layer, padded, weight, bias)


def _embedding(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if max_norm is not None or scale_grad_by_freq:
        raise UnsupportedError("an embedding uses max_norm or scale_grad_by_freq")
    skipped = None if padding_idx is None else padding_idx % weight.shape[0]
    return _run(tape, Table(tape.clients, _parameter(tape, weight), x, skipped), x, weight)


def _group_norm(
    tape: Tape,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _scaled(tape, functional.group_norm(x, num_groups, eps=eps), weight, bias, 1)


def _layer_norm(
    tape: Tape,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    normal = functional.layer_norm(x, list(normalized_shape), eps=eps)
    return _scaled(tape, normal, weight, bias, x.ndim - len(normalized_shape))


def _rms_norm(
    tape: Tape, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    normal = functional.rms_norm(x, list(normalized_shape), eps=eps)
    return _scaled(tape, normal, weight, None, x.ndim - len(normalized_shape))


def _instance_norm(
    tape: Tape,
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if running_mean is not None or not use_input_stats:
        raise UnsupportedError("instance normalisation keeps running statistics")
    return _scaled(tape, functional.instance_norm(x, eps=eps), weight, bias, 1)


def _scaled(tape: Tape, x: Tensor, weight: Tensor | None, bias: Tensor | None, first: int) -> Tensor:
    layer = Scale(tape.clients, _optional(tape, weight), _optional(tape, bias), first)
    return _run(tape, layer, x, weight, bias)


def _run(tape: Tape, layer: Layer, x: Tensor, *parameters: Tensor | None) -> Tensor:
    if isinstance(x, Held):
        raise UnsupportedError(f"{x.path} is the input of a layer")
    return tape.run(layer, x, *(p.path for p in parameters if isinstance(p, Held)))


def _parameter(tape: Tape, value: Tensor) -> Parameter:
    if not isinstance(value, Held):
        raise UnsupportedError("a layer is trained in part")
    return Parameter(value.path, tape.values[value.path])


def _optional(tape: Tape, value: Tensor | None) -> Parameter | None:
    return None if value is None else _parameter(tape, value)


RULES: Mapping[Any, Rule] = {
    functional.linear: _linear,
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    functional.conv1d: _convolution,
    functional.conv2d: _convolution,
    functional.embedding: _embedding,
    functional.group_norm: _group_norm,
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.instance_norm: _instance_norm,
}
