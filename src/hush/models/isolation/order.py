"""Order of axes: layers with parameters get inputs with the examples along the first axis, as per-example rules expect.

User code may call a linear layer on time x batch x width, or on (batch * time) x width. The batch axis that the proof
found says where the examples are; for such calls the axis is moved to the front, and back afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, fx

from hush.models.isolation.axis import BatchAxis

_aten = torch.ops.aten
# Layers that take any number of leading axes, and the position of their input.
_LEADING: Mapping[Any, int] = {
    _aten.linear.default: 0,
    _aten.layer_norm.default: 0,
    _aten.rms_norm.default: 0,
    _aten.embedding.default: 1,
}
_RECURRENT = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)

# first: everywhere as it was written; moved: everywhere, after moving axes; elsewhere: a layer's examples do not lie
# along an axis of their own; one row: there is one example only.
BatchOrder = Literal["first", "moved", "elsewhere", "one row"]


def bring_batch_to_front(
    graph_module: fx.GraphModule, axes: Mapping[fx.Node, Any], parameters: Collection[str]
) -> BatchOrder:
    """Rewrite the graph, and say where the examples lie in the inputs of its layers.

    Args:
        graph_module: The graph.
        axes: The batch axis of every value, as proved.
        parameters: The names of the placeholders of parameters.
    """
    order: BatchOrder = "first"
    for node in list(graph_module.graph.nodes):
        own = [arg for arg in node.all_input_nodes if arg.op == "placeholder" and arg.name in parameters]
        if node.op != "call_function" or not own or node.target in _RECURRENT:
            continue
        found = {axes.get(arg) for arg in node.all_input_nodes if arg not in own and _is_tensor(arg)}
        if found == {BatchAxis(0)} or not found:
            continue
        (axis,) = found if len(found) == 1 else (None,)
        if node.target not in _LEADING or not isinstance(axis, BatchAxis):
            order = "elsewhere"
            continue
        node.args = (node.target, _LEADING[node.target], axis.dim, axis.outer, axis.inner, *node.args)
        node.target = batch_first
        order = "moved" if order == "first" else order
    return order


def batch_first(operation: Any, position: int, dim: int, outer: int, inner: int, *args: Any, **kwargs: Any) -> Tensor:
    """Return a layer called with the examples of its input moved to the first axis, and back in its output."""
    x = args[position].unflatten(dim, (outer, -1, inner)).movedim(dim + 1, 0)
    out: Tensor = operation(*args[:position], x, *args[position + 1 :], **kwargs)
    return out.movedim(0, dim + 1).flatten(dim, dim + 2)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)
