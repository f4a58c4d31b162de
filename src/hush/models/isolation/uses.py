"""Uses of parameters: graphs in which per-example rules can tell where a parameter meets the examples.

The proof knows the batch axis of every value. An operation on trained parameters is rewritten by it:

- a layer whose examples lie elsewhere than along the first axis of its input (time x batch x width, or (batch * time) x
  width) gets them moved there, and back afterwards (`batch_first`);
- a product with a matrix on the right is called in one form, whichever PyTorch has for it (`multiplied`);
- what is computed from parameters alone, such as the transpose of a weight, is marked as such (`of_parameters`);
- any other operation on parameters and examples says where the examples lie in each of its tensors (`along_batch`).

Guarantees:
    - A rewritten graph computes what it computed before: without rules for parameters, these functions call the
      operation as it was.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import _pytree as pytree

from hush.models.isolation import dropout
from hush.models.isolation.axis import BatchAxis, BatchSize
from hush.models.isolation.replacements import REPLACEMENTS
from hush.models.recurrent import recurrent, recurrent_cell

_aten = torch.ops.aten
# Layers with a rule of their own that take any number of leading axes, and the position of their input.
_LEADING: Mapping[Any, int] = {
    _aten.linear.default: 0,
    _aten.layer_norm.default: 0,
    _aten.rms_norm.default: 0,
    _aten.embedding.default: 1,
}
# Layers with a rule of their own whose examples are the first axis of their first argument.
_BATCHED = (
    _aten.conv1d.default, _aten.conv1d.padding, _aten.conv2d.default, _aten.conv2d.padding, _aten.conv3d.default,
    _aten.conv3d.padding, _aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input,
    _aten.group_norm.default, _aten.instance_norm.default,
)  # fmt: skip
_PRODUCTS = (_aten.mm.default, _aten.matmul.default)
# Functions that call layers themselves.
_COMPOSED = (recurrent, recurrent_cell, *dropout.RECURRENT)

# first: everywhere as it was written; moved: in a graph in which axes are moved or named; elsewhere: an operation on
# parameters and examples has a result of which the examples are not known; one row: there is one example only.
BatchOrder = Literal["first", "moved", "elsewhere", "one row"]


# Where the examples lie in a tensor: (dim, outer, inner) of an axis of size outer * B * inner, as in `BatchAxis`.
Place = tuple[int, int, int]
# What is known of an argument: where the examples lie in it, (n,) for a size that is n for one example, or nothing.
Known = tuple[int, ...] | None


def mark_uses(
    graph_module: fx.GraphModule, axes: Mapping[fx.Node, Any], parameters: Collection[str], batch: BatchSize
) -> BatchOrder:
    """Rewrite the graph, and say where the examples lie in what its parameters meet.

    Args:
        graph_module: The graph.
        axes: The batch axis of every value, as proved.
        parameters: The names of the placeholders of trained parameters.
        batch: The symbol of the batch size.
    """
    graph = graph_module.graph
    order: BatchOrder = "first"
    own = {node for node in graph.nodes if node.op == "placeholder" and node.name in parameters}
    for node in list(graph.nodes):
        if node.op != "call_function" or own.isdisjoint(node.all_input_nodes) or node.target in _COMPOSED:
            continue
        if not _tensors(node):
            continue
        tags = {arg: axes.get(arg) for arg in node.all_input_nodes if _tensors(arg)}
        if not any(map(_places, (*tags.values(), axes[node]))):
            own.add(node)
            if node.target is not operator.getitem:
                node.args, node.target = (_named(node.target), *node.args), of_parameters
        elif not _layer(node, tags, own):
            known = tuple(_known(leaf, axes, batch) for leaf in pytree.tree_leaves((node.args, node.kwargs)))
            out = _places(axes[node])
            if None in out or len(out) != len(_tensors(node)) or node.target in dropout.STAND_INS:
                return "elsewhere"
            node.args, node.target = (_named(node.target), known, tuple(out), *node.args), along_batch
            order = "moved"
        elif node.target is batch_first:
            order = "moved"
    graph_module.recompile()
    return order


def _layer(node: fx.Node, tags: Mapping[fx.Node, Any], own: Collection[fx.Node]) -> bool:
    """Whether the operation is a layer with a rule of its own, or is now, after moving axes."""
    given: tuple[Any, ...] = node.args
    args: tuple[Any, ...] = given
    target: Any = node.target
    if target in _PRODUCTS or target is _aten.addmm.default:
        bias, x, weight = given[:3] if target is _aten.addmm.default else (None, *given[:2])
        affine = len(given) == (2 if bias is None else 3) and not node.kwargs
        if not affine or weight not in own or weight.meta["val"].ndim != 2 or x.meta["val"].ndim < 2:
            return False
        if bias is not None and bias.meta["val"].ndim != 1:
            return False
        args, target, position = (x, weight, bias), multiplied, 0
    elif target in _LEADING or target in _BATCHED:
        position = _LEADING.get(target, 0)
    else:
        return False
    x = args[position]
    axis = tags.get(x)
    if not isinstance(axis, BatchAxis) or any(tag is not None for arg, tag in tags.items() if arg is not x):
        return False
    if axis != BatchAxis(0):
        if target in _BATCHED:
            return False
        args, target = (_named(target), position, axis.dim, axis.outer, axis.inner, *args), batch_first
    node.args, node.target = args, target
    return True


def batch_first(operation: Any, position: int, dim: int, outer: int, inner: int, *args: Any, **kwargs: Any) -> Tensor:
    """Return a layer called with the examples of its input moved to the first axis, and back in its output."""
    x = args[position].unflatten(dim, (outer, -1, inner)).movedim(dim + 1, 0)
    out: Tensor = called(operation)(*args[:position], x, *args[position + 1 :], **kwargs)
    return out.movedim(0, dim + 1).flatten(dim, dim + 2)


def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W + b along the last axis."""
    if has_torch_function((weight, bias)):
        found: Tensor = handle_torch_function(multiplied, (weight, bias), x, weight, bias)
        return found
    out = x @ weight
    return out if bias is None else out + bias


# In the code of a graph, operations can be arguments and functions cannot: names stand for them.
_NAMES: Mapping[str, Any] = {function.__name__: function for function in (*REPLACEMENTS.values(), multiplied)}


def called(operation: Any) -> Any:
    """Return the operation, which may be given by name."""
    return _NAMES[operation] if isinstance(operation, str) else operation


def _named(target: Any) -> Any:
    return target.__name__ if target in _NAMES.values() else target


def of_parameters(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what an operation computes from parameters and constants alone."""
    given = pytree.tree_leaves((args, kwargs))
    if has_torch_function(given):
        return handle_torch_function(of_parameters, given, operation, *args, **kwargs)
    return called(operation)(*args, **kwargs)


def along_batch(operation: Any, known: Sequence[Known], out: Sequence[Place], *args: Any, **kwargs: Any) -> Any:
    """Return what an operation computes from parameters and examples.

    Args:
        operation: The operation.
        known: What is known of each of its arguments, in the order of `torch.utils._pytree`.
        out: The same of its results.
        args: Its arguments.
        kwargs: Those by name.
    """
    given = pytree.tree_leaves((args, kwargs))
    if has_torch_function(given):
        return handle_torch_function(along_batch, given, operation, known, out, *args, **kwargs)
    return called(operation)(*args, **kwargs)


def _known(leaf: Any, axes: Mapping[fx.Node, Any], batch: BatchSize) -> Known:
    if not isinstance(leaf, fx.Node):
        return None
    value = leaf.meta.get("val")
    if isinstance(value, torch.SymInt):
        return (int(value.node.expr.subs(batch.symbol, 1)),)
    (place,) = _places(axes.get(leaf)) or (None,)
    return place


def _places(tag: Any) -> list[Place | None]:
    """The place of each result; none at all if no result has any examples."""
    found = [(t.dim, t.outer, t.inner) if isinstance(t, BatchAxis) else None for t in _listed(tag)]
    return found if any(found) else []


def _tensors(node: fx.Node) -> list[Any]:
    return [value for value in _listed(node.meta.get("val")) if isinstance(value, Tensor)]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
