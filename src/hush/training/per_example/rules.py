"""Rules for PyTorch's functions: which may use a per-client parameter, and the layer that each becomes.

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

from hush.training.per_example import convolution
from hush.training.per_example.layers import Convolution, Linear, Parameter, Scale, Table
from hush.training.per_example.proxies import Layer, ParameterProxy, Rule, Tape, UnsupportedError


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
        raise UnsupportedError(f"a convolution takes inputs of shape {tuple(x.shape)}, without a batch axis")
    padded, geometry = convolution.prepared(x, tuple(weight.shape[2:]), stride, padding, dilation, groups)
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
    if isinstance(x, ParameterProxy):
        raise UnsupportedError(f"{x.path} is the input of a layer")
    return tape.run(layer, x, *(p.path for p in parameters if isinstance(p, ParameterProxy)))


def _parameter(tape: Tape, value: Tensor) -> Parameter:
    if not isinstance(value, ParameterProxy):
        raise UnsupportedError("a layer is only partly trainable")
    return Parameter(value.path, tape.values[value.path])


def _optional(tape: Tape, value: Tensor | None) -> Parameter | None:
    return None if value is None else _parameter(tape, value)


def _aten_embedding(
    tape: Tape, weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, *_: Any
) -> Tensor:
    skipped = None if padding_idx < 0 else padding_idx
    return _embedding(tape, indices, weight, skipped, scale_grad_by_freq=scale_grad_by_freq)


def _aten_group_norm(tape: Tape, x: Tensor, num_groups: int, *rest: Any) -> Tensor:
    return _group_norm(tape, x, num_groups, *rest[:3])


def _aten_layer_norm(tape: Tape, x: Tensor, normalized_shape: Sequence[int], *rest: Any) -> Tensor:
    return _layer_norm(tape, x, normalized_shape, *rest[:3])


def _aten_instance_norm(
    tape: Tape,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *rest: Any,
) -> Tensor:
    return _instance_norm(tape, x, running_mean, running_var, weight, bias, *rest[:3])


_aten = torch.ops.aten

# Functions as modules call them, and operations as traced graphs do (`hush.models.isolation`).
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
    _aten.linear.default: _linear,
    _aten.conv1d.default: _convolution,
    _aten.conv1d.padding: _convolution,
    _aten.conv2d.default: _convolution,
    _aten.conv2d.padding: _convolution,
    _aten.embedding.default: _aten_embedding,
    _aten.group_norm.default: _aten_group_norm,
    _aten.layer_norm.default: _aten_layer_norm,
    _aten.rms_norm.default: _rms_norm,
    _aten.instance_norm.default: _aten_instance_norm,
}
