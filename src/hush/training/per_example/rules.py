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
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from hush.models.isolation.traced_module import quiet_vmap
from hush.models.isolation.uses import Known, Place, along_batch, called, multiplied, of_parameters
from hush.training.per_example import convolution
from hush.training.per_example.computed import computed
from hush.training.per_example.layers import Convolution, Copies, Linear, Parameter, Scale, Table, TransposedConvolution
from hush.training.per_example.proxies import Layer, ParameterProxy, Rule, Tape, UnsupportedError

_aten = torch.ops.aten
_CONVOLUTIONS: Sequence[Any] = (torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSED: Sequence[Any] = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


def _linear(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not isinstance(weight, ParameterProxy):
        return _shifted(tape, functional.linear(x, weight), bias, x.ndim - 1)
    if _constant(bias):
        return _linear(tape, x, weight) + bias
    return _run(tape, Linear(tape.clients, _parameter(tape, weight), _optional(tape, bias)), x, weight, bias)


def _multiplied(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not isinstance(weight, ParameterProxy):
        return _shifted(tape, x @ weight, bias, x.ndim - 1)
    return _linear(tape, x, computed(tape, _aten.t.default, weight), bias)


def _along_batch(
    tape: Tape, operation: Any, known: Sequence[Known], out: Sequence[Place], *args: Any, **kwargs: Any
) -> Any:
    """The operation on one example at a time, each with its own copies of the parameters, mapped over the batch."""
    quiet_vmap()
    size = len(tape.clients.owner)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    own: dict[int, Tensor] = {}
    for number, (leaf, place) in enumerate(zip(leaves, known, strict=True)):
        if isinstance(leaf, ParameterProxy):
            own[number] = _copies(tape, leaf)
        elif place is not None and len(place) == 1:
            (leaves[number],) = place
        elif place is not None:
            dim, outer, inner = place
            own[number] = leaf.unflatten(dim, (outer, size, inner)).movedim(dim + 1, 0).flatten(dim + 1, dim + 2)

    def of_one(*values: Tensor) -> Any:
        filled = list(leaves)
        for number, value in zip(own, values, strict=True):
            filled[number] = value
        given, named = pytree.tree_unflatten(filled, spec)
        return called(operation)(*given, **named)

    found = torch.func.vmap(of_one)(*own.values())
    results = [
        t.unflatten(dim + 1, (outer, inner)).movedim(0, dim + 1).flatten(dim, dim + 2)
        for t, (dim, outer, inner) in zip(found if isinstance(found, list | tuple) else (found,), out, strict=True)
    ]
    return results if isinstance(found, list | tuple) else results[0]


def _copies(tape: Tape, value: ParameterProxy) -> Tensor:
    layer = Copies(tape.clients, _parameter(tape, value))
    if not layer.parameter.values.is_floating_point():
        tape.used.add(value.path)
        return layer.forward(layer.parameter.values)
    return tape.run(layer, layer.parameter.values.new_zeros(0), value.path)


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
    if not isinstance(weight, ParameterProxy):
        return _shifted(tape, _CONVOLUTIONS[x.ndim - 3](x, weight, None, stride, padding, dilation, groups), bias, 1)
    if _constant(bias):
        bare = _convolution(tape, x, weight, None, stride, padding, dilation, groups)
        return bare + bias.view(-1, *[1] * (x.ndim - 2))
    padded, geometry = convolution.prepared(x, tuple(weight.shape[2:]), stride, padding, dilation, groups)
    layer = Convolution(tape.clients, _parameter(tape, weight), _optional(tape, bias), geometry)
    return _run(tape, layer, padded, weight, bias)


def _transposed(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    if x.ndim != weight.ndim:
        raise UnsupportedError(f"a convolution takes inputs of shape {tuple(x.shape)}, without a batch axis")
    axes, rest = x.ndim - 2, (stride, padding, output_padding, groups, dilation)
    if not isinstance(weight, ParameterProxy):
        return _shifted(tape, _TRANSPOSED[axes - 1](x, weight, None, *rest), bias, 1)
    if _constant(bias):
        return _transposed(tape, x, weight, None, *rest) + bias.view(-1, *[1] * axes)
    kernel = tuple(weight.shape[2:])
    geometry, more = convolution.transposed(axes, kernel, stride, padding, dilation, groups, output_padding)
    parameters = _parameter(tape, weight), _optional(tape, bias)
    return _run(tape, TransposedConvolution(tape.clients, *parameters, geometry, more), x, weight, bias)


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
    if _constant(weight):
        return _shifted(tape, x * weight.view(*weight.shape, *[1] * (x.ndim - first - weight.ndim)), bias, first)
    if _constant(bias):
        bare = _scaled(tape, x, weight, None, first)
        return bare + bias.view(*bias.shape, *[1] * (x.ndim - first - bias.ndim))
    layer = Scale(tape.clients, _optional(tape, weight), _optional(tape, bias), first)
    return _run(tape, layer, x, weight, bias)


def _shifted(tape: Tape, x: Tensor, bias: Tensor | None, first: int) -> Tensor:
    """What a frozen weight computes, and a bias that may be trained."""
    return x if bias is None else _scaled(tape, x, None, bias, first)


def _run(tape: Tape, layer: Layer, x: Tensor, *parameters: Tensor | None) -> Tensor:
    if isinstance(x, ParameterProxy):
        raise UnsupportedError(f"{x.path} is the input of a layer")
    return tape.run(layer, x, *(p.path for p in parameters if isinstance(p, ParameterProxy)))


def _parameter(tape: Tape, value: Tensor) -> Parameter:
    assert isinstance(value, ParameterProxy)
    return Parameter(value.path, tape.values[value.path])


def _optional(tape: Tape, value: Tensor | None) -> Parameter | None:
    return None if value is None else _parameter(tape, value)


def _constant(value: Tensor | None) -> TypeGuard[Tensor]:
    """Whether there is such a tensor, and it is not trained."""
    return value is not None and not isinstance(value, ParameterProxy)


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


# Functions as modules call them, and operations as traced graphs do (`hush.models.isolation`).
RULES: Mapping[Any, Rule] = {
    of_parameters: computed,
    along_batch: _along_batch,
    multiplied: _multiplied,
    functional.linear: _linear,
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    functional.conv1d: _convolution,
    functional.conv2d: _convolution,
    functional.conv3d: _convolution,
    torch.conv_transpose1d: _transposed,
    torch.conv_transpose2d: _transposed,
    torch.conv_transpose3d: _transposed,
    functional.conv_transpose1d: _transposed,
    functional.conv_transpose2d: _transposed,
    functional.conv_transpose3d: _transposed,
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
    _aten.conv3d.default: _convolution,
    _aten.conv3d.padding: _convolution,
    _aten.conv_transpose1d.default: _transposed,
    _aten.conv_transpose2d.input: _transposed,
    _aten.conv_transpose3d.input: _transposed,
    _aten.embedding.default: _aten_embedding,
    _aten.group_norm.default: _aten_group_norm,
    _aten.layer_norm.default: _aten_layer_norm,
    _aten.rms_norm.default: _rms_norm,
    _aten.instance_norm.default: _aten_instance_norm,
}
