"""Proof that a graph keeps the examples of a batch apart: the batch axis is followed through every operation.

Every tensor of an exported graph (aten operations, functional) either depends on no example or has one batch axis
(`hush.models.isolation.axis`). The rule of an operation (`hush.models.isolation.rules`) says where that axis goes, or
refuses; an operation without a rule is refused.

Guarantees:
    - For every batch size of at least 2, in exact arithmetic, entry i along the output's batch axis is a function of
      example i and of the parameters alone: the contract of Theorem 9 of docs/proofs.md. The backward pass is the
      derivative of the same graph.
    - After each operation exactly the axis named by its rule grows with the batch size.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from hush.models.isolation.axis import BatchAxis, BatchSize, MixesExamplesError, Tag, is_fixed
from hush.models.isolation.dataflow import Dataflow, flat
from hush.models.isolation.rules import CREATION, DRAWN, POINTWISE, RULES, SIZED

_SIZES = ("aten.sym_size", "aten._assert_scalar", "aten._assert_tensor_metadata", "aten.sym_constrain_range",
          "aten.sym_constrain_range_for_size")  # fmt: skip
_RULED = ("aten.index", "aten.one_hot")  # whose rules refuse shapes that depend on values
_VALUE_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def prove(graph_module: fx.GraphModule, inputs: Mapping[str, Tag], batch: BatchSize) -> Mapping[fx.Node, Any]:
    """Return the batch axis of every value, none for those that depend on no example.

    Args:
        graph_module: A functional graph of aten operations.
        inputs: The tag of each placeholder by its name.
        batch: The symbol of the batch size.

    Raises:
        MixesExamplesError: An operation may mix examples, or the output is not one row per example; the message names
            the operation and the line that calls it.
    """
    known = Dataflow(batch)
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            known.tags[node] = inputs[node.name]
        elif node.op == "call_function":
            try:
                known.tags[node] = _step(known, node)
                _verify(known, node)
            except MixesExamplesError as error:
                raise MixesExamplesError(f"{node.target}: {error}{_line(node)}") from None
        elif node.op == "output":
            if [known.tag(each) for each in node.args[0]] != [BatchAxis(0)]:
                raise MixesExamplesError("the output is not one tensor with one row per example")
        else:
            raise MixesExamplesError(f"a node of kind {node.op}")
    return known.tags


def _step(known: Dataflow, node: fx.Node) -> Any:
    target: Any = node.target
    if target is operator.getitem:
        source: Any = node.args[0]
        return known.tags[source][node.args[1]]
    if not isinstance(target, torch._ops.OpOverload):
        if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            return None  # arithmetic on sizes: where the result is used is checked
        raise MixesExamplesError("no rule for this function")
    packet = str(target).rsplit(".", 1)[0]
    if packet in _SIZES:
        return None
    if target._schema.is_mutable:
        raise MixesExamplesError("changes a tensor in place")
    if packet not in _RULED and any(tag in target.tags for tag in _VALUE_DEPENDENT):
        raise MixesExamplesError("a shape or a Python number depends on values")
    arguments = _bound(target, node)
    if draws(node):
        return _drawn(known, node, packet, arguments)
    if packet in CREATION:
        return CREATION[packet](known, node, arguments)
    if packet not in SIZED:
        known.fixed(arguments)
    tensors = [each for each in flat(arguments) if known.is_tensor(each)]
    if all(known.tag(each) is None for each in tensors) and all(is_fixed(known.value(v)) for v in flat(arguments)):
        return _each(node, None)
    if torch.Tag.pointwise in target.tags or packet in POINTWISE:
        return _each(node, known.broadcast(tensors, _first(node).ndim))
    if packet not in RULES:
        raise MixesExamplesError("no rule for this operation")
    return RULES[packet](known, node, arguments)


def _bound(target: Any, node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by the names of the operation's schema."""
    found: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(node.args):
            found[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
        else:
            raise MixesExamplesError(f"is called without {argument.name}")
    return found


def _drawn(known: Dataflow, node: fx.Node, packet: str, arguments: Mapping[str, Any]) -> Any:
    """Return the tag of random numbers: each example has its own, since its key says what they are."""
    if packet not in DRAWN:
        raise MixesExamplesError("uses random numbers")
    found = DRAWN[packet](known, node, arguments)
    if None in (found if isinstance(found, list) else [found]):
        raise MixesExamplesError("draws the same random numbers for all examples")
    return found


def draws(node: fx.Node) -> bool:
    """Return whether an operation draws random numbers with the arguments that it is given."""
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    packet, arguments = str(target).rsplit(".", 1)[0], _bound(target, node)
    if packet in ("aten.dropout", "aten.native_dropout", "aten.alpha_dropout", "aten.feature_dropout"):
        return bool(arguments.get("p", 0.0) > 0 and arguments.get("train", True))
    if packet == "aten.scaled_dot_product_attention":
        return bool(arguments["dropout_p"] > 0)
    if packet in ("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu"):
        return bool(arguments["dropout"] > 0 and arguments["train"])
    return True


def _verify(known: Dataflow, node: fx.Node) -> None:
    """Whatever a rule says: exactly the axis that it names grows with the batch, by the factor that it names."""
    value, tag = node.meta.get("val"), known.tags[node]
    pairs = zip(value, tag, strict=True) if isinstance(value, list | tuple) else [(value, tag)]
    for tensor, axis in pairs:
        if isinstance(tensor, Tensor):
            grown = [(dim, factor) for dim, (factor, grows) in enumerate(known.batch.shape(tensor)) if grows]
            expected = [] if axis is None else [(axis.dim, axis.outer * axis.inner)]
            if grown != expected:
                raise MixesExamplesError("the axes that grow with the batch are not those of its rule")


def _each(node: fx.Node, tag: Tag) -> Any:
    value = node.meta["val"]
    return [tag] * len(value) if isinstance(value, list | tuple) else tag


def _first(node: fx.Node) -> Tensor:
    value = node.meta["val"]
    found: Tensor = value[0] if isinstance(value, list | tuple) else value
    return found


def _line(node: fx.Node) -> str:
    """Return the line of the user's code that made the node, where it is known."""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    return f" (in: {lines[-1].strip()})" if lines else ""
