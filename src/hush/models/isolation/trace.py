"""Tracing: a module's computation as a functional graph of aten operations, for batches of any size or for one row."""

from __future__ import annotations

import copy
import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, export, exported_program
from torch.export.graph_signature import InputKind, OutputKind

from hush.models.isolation import dropout
from hush.models.isolation.axis import BatchAxis, BatchSize, MixesExamplesError, Tag
from hush.models.isolation.proof import draws, prove
from hush.models.isolation.replacements import REPLACEMENTS, bags_by_rows
from hush.models.isolation.traced_module import TracedModule
from hush.models.isolation.uses import BatchOrder, mark_uses
from hush.models.recurrent import parameters_per_direction, recurrent, recurrent_cell

_aten = torch.ops.aten
_COLLECT, _COMPOSITE = "_collect_all_valid_cia_ops", "_is_preservable_cia_op"  # names in PyTorch's exporter
_INPUTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.USER_INPUT)
_STORAGE = (_aten.as_strided, _aten.as_strided_copy, _aten.as_strided_scatter)
_UNWRITTEN = (_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.empty_permuted, _aten.new_empty,
              _aten.new_empty_strided)  # fmt: skip
_OVERWRITING = (_aten.fill, _aten.copy, _aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.sym_size,
                _aten.rand_like)  # fmt: skip
# Creation that takes the default type where none is given.
_DEFAULT_TYPE = (_aten.zeros.default, _aten.ones.default, _aten.full.default, _aten.arange.default,
                 _aten.arange.start, _aten.arange.start_step, _aten.scalar_tensor.default)  # fmt: skip
_CELLS = (_aten.lstm_cell.default, _aten.gru_cell.default, _aten.rnn_tanh_cell.default, _aten.rnn_relu_cell.default)
_RECURRENT = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)


def batched(module: nn.Module, x: Tensor) -> TracedModule:
    """Return the module for batches of any size, proved to keep the examples apart.

    Raises:
        MixesExamplesError: The proof fails.
        Exception: The module cannot be exported with a batch size that varies.
    """
    program = _exported(module, x, Dim("batch", min=2))
    users = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    (symbol,) = [node.meta["val"].shape[0].node.expr for node in nodes if node.name in users]
    bounds = program.range_constraints[symbol]
    if int(bounds.lower) > 2 or str(bounds.upper) not in ("oo", "int_oo"):
        raise MixesExamplesError(f"behaves differently for batches beyond {bounds.lower} to {bounds.upper} examples")
    inputs = {node.name: BatchAxis(0) if node.name in users else None for node in nodes}
    batch = BatchSize(symbol)
    axes = prove(program.graph_module, inputs, batch)
    # Frozen ones take any input: their gradients are not formed.
    trained = {name for name, value in module.named_parameters(remove_duplicate=False) if value.requires_grad}
    parameters = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.PARAMETER and spec.target in trained
    }
    return _traced(module, program, axes, lambda graph_module: mark_uses(graph_module, axes, parameters, batch))


def row_by_row(module: nn.Module, x: Tensor) -> TracedModule:
    """Return the module for one example at a time, mapped over the rows of a batch: examples cannot mix.

    Raises:
        MixesExamplesError: The graph changes state or has several outputs.
        Exception: The module cannot be exported.
    """
    return _traced(module, _exported(module, x[:1].clone(), None), None, lambda _: "one row")


def keyed(traced: TracedModule, shape: tuple[int, ...]) -> TracedModule:
    """Return the same graph with random numbers from keys that come with the rows (`hush.models.isolation.dropout`).

    Args:
        traced: A graph that draws; as it is, its random numbers are their means.
        shape: Of one row.
    """
    graph_module = copy.deepcopy(traced.graph_module)
    graph = graph_module.graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    (packed,) = [place for place, path in zip(places, traced.paths, strict=True) if path is None]
    with graph.inserting_after(places[-1]):
        rows = graph.call_function(dropout.rows_of, (packed, shape))
    packed.replace_all_uses_with(rows, delete_user_cb=lambda user: user is not rows)
    with graph.inserting_after(rows):
        keys = graph.call_function(dropout.keys_of, (packed,))
    for node in graph.nodes:
        if node.target in dropout.STAND_INS:
            node.args = (keys, *node.args[1:])
    graph.lint()
    graph_module.recompile()
    return TracedModule(traced, graph_module, traced.paths, traced.order, keyed=True)


def _traced(
    module: nn.Module,
    program: ExportedProgram,
    axes: Mapping[fx.Node, Any] | None,
    arranged: Callable[[fx.GraphModule], BatchOrder],
) -> TracedModule:
    _without_generator(program.graph_module, axes)
    arguments = [
        None
        if spec.kind is InputKind.USER_INPUT
        else (program.constants[spec.target] if spec.kind is InputKind.CONSTANT_TENSOR else spec.target)
        for spec in program.graph_signature.input_specs
    ]
    runnable = _runnable(program)
    return TracedModule(module, runnable, arguments, arranged(runnable))


def _exported(module: nn.Module, x: Tensor, dim: Dim | None) -> ExportedProgram:
    """Return the functional graph: in-place changes and aliases are gone, `no_grad` regions are inlined."""
    shapes = None if dim is None else ({0: dim},)
    with bags_by_rows():
        program: ExportedProgram = export(module, (x,), dynamic_shapes=shapes, strict=False)
    _inline_no_grad(program.graph_module)
    with _composites_of(program):
        program = program.run_decompositions({})
    for output in program.graph_signature.output_specs:
        if output.kind is not OutputKind.USER_OUTPUT:
            raise MixesExamplesError(f"changes {output.target} while it runs")
    if len(program.graph_signature.output_specs) != 1:
        raise MixesExamplesError("returns more than one tensor")
    for spec in program.graph_signature.input_specs:
        if spec.kind not in _INPUTS:
            raise MixesExamplesError(f"takes an input of kind {spec.kind}")
    _refuse_foreign(program)
    return program


@contextmanager
def _composites_of(program: ExportedProgram) -> Iterator[None]:
    """Let PyTorch keep the composite operations of this program alone from being decomposed, and not all that exist.

    It registers thousands of functions for those, which takes as long as to trace a small module. Where PyTorch names
    its own functions differently, nothing is changed.
    """
    collect, composite = getattr(exported_program, _COLLECT, None), getattr(torch._export.utils, _COMPOSITE, None)
    if collect is None or composite is None:
        yield
        return
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, fx.GraphModule)]
    targets = {node.target for graph in graphs for node in graph.nodes}
    found = {each for each in targets if isinstance(each, torch._ops.OpOverload) and composite(each)}
    setattr(exported_program, _COLLECT, lambda: found)
    try:
        yield
    finally:
        setattr(exported_program, _COLLECT, collect)


def _refuse_foreign(program: ExportedProgram) -> None:
    """Refuse what would run the user's own code with the graph, or read memory that no operation wrote."""
    for name, constant in program.constants.items():
        if type(constant) not in (Tensor, nn.Parameter):
            raise MixesExamplesError(f"{name} is a {type(constant).__name__}, expected a plain tensor")
    for node in program.graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise MixesExamplesError(f"{target}: no rule for this operation")
        if not isinstance(target, torch._ops.OpOverload):
            continue
        if target.namespace != "aten":
            raise MixesExamplesError(f"{target}: not an operation of PyTorch's own")
        packet = target.overloadpacket
        if packet in _STORAGE:
            raise MixesExamplesError(f"{target}: reads a tensor's memory beyond its own values")
        if packet in _UNWRITTEN and not all(_overwrites(user, node) for user in node.users):
            raise MixesExamplesError(f"{target}: reads memory that was not written")
        if draws(node) and target not in dropout.FUNCTIONS:
            raise MixesExamplesError(f"{target}: uses random numbers; accepted: dropout, bernoulli, rand and rrelu")


def _overwrites(user: fx.Node, node: fx.Node) -> bool:
    """Return whether the first argument gives the operation a shape alone."""
    packet = getattr(user.target, "overloadpacket", None)
    shaped = packet in _OVERWRITING or user.target is _aten.bernoulli.p
    return shaped and user.args[0] is node and user.all_input_nodes.count(node) == 1


def _inline_no_grad(graph_module: fx.GraphModule) -> None:
    """Replace regions without gradients by their operations, their results detached."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or str(node.target) != "wrap_with_set_grad_enabled":
            continue
        enabled, inner, *operands = node.args
        body = getattr(graph_module, inner.target)
        _inline_no_grad(body)
        places = [each for each in body.graph.nodes if each.op == "placeholder"]
        with graph.inserting_before(node):
            results: Any = graph.graph_copy(body.graph, dict(zip(places, operands, strict=True)))
            results = list(results) if isinstance(results, list | tuple) else [results]
            if not enabled:
                results = [_detached(graph, each) for each in results]
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise MixesExamplesError("uses a region without gradients in an unknown way")
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        if not inner.users:
            graph.erase_node(inner)
    graph_module.recompile()


def _detached(graph: fx.Graph, node: Any) -> Any:
    if not isinstance(node, fx.Node) or not isinstance(node.meta.get("val"), Tensor):
        return node
    detached = graph.call_function(_aten.detach.default, (node,))
    detached.meta = dict(node.meta)
    return detached


def _runnable(program: ExportedProgram) -> fx.GraphModule:
    """Return the graph for any device, type and strides, without operations that have no derivative or no vmap rule."""
    graph_module: fx.GraphModule = program.graph_module
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if str(node.target).startswith(("aten._assert", "aten.sym_constrain")):
            graph.erase_node(node)
        elif node.target in (_aten.view.default, _aten._unsafe_view.default):
            node.target = _aten.reshape.default
        elif node.target in REPLACEMENTS:
            node.target = REPLACEMENTS[node.target]
        elif node.target in _DEFAULT_TYPE and node.kwargs.get("dtype") is None:
            node.kwargs = {**node.kwargs, "dtype": node.meta["val"].dtype}
        elif node.target in _CELLS:
            node.args, node.target = (node.target, *node.args), recurrent_cell
        elif node.target in _RECURRENT:
            _refuse_projections(node)
            node.args = (node.target, *node.args)
            node.target = recurrent
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    places = [node for node in graph.nodes if node.op == "placeholder"]
    (x,) = [node for node in places if kinds[node.name] is InputKind.USER_INPUT]
    _follow(graph, x, "device", x.meta["val"].device, places[-1])
    # An encoder may have no parameters; it computes in the type in which it was traced.
    for weight in [node for node in places if kinds[node.name] is InputKind.PARAMETER][:1]:
        _follow(graph, weight, "dtype", weight.meta["val"].dtype, places[-1])
    graph.eliminate_dead_code()
    graph.lint()
    graph_module.recompile()
    return graph_module


def _without_generator(graph_module: fx.GraphModule, axes: Mapping[fx.Node, Any] | None) -> None:
    """Replace what draws by what stands for it, without keys so far."""
    for site, node in enumerate(graph_module.graph.nodes):
        if node.op != "call_function" or not draws(node):
            continue
        operation: tuple[Any, ...] = ()
        if node.target in _RECURRENT:
            _refuse_projections(node)
            operation = (node.target,)
        elif node.target is _aten.rand.default:
            node.kwargs = {**node.kwargs, "dtype": node.meta["val"].dtype}
        found = None if axes is None else axes[node]
        tag: Tag = found[0] if isinstance(found, list) else found
        axis = None if tag is None else (tag.dim, tag.outer, tag.inner)
        node.args = (None, site, axis, *operation, *node.args)
        node.target = dropout.FUNCTIONS[node.target]


def _refuse_projections(node: fx.Node) -> None:
    args: Any = node.args[2:]
    params, has_biases, layers, _, _, bidirectional, _ = args
    if len(params) != layers * (1 + bidirectional) * parameters_per_direction(has_biases):
        raise MixesExamplesError("a recurrent layer with projections")


def _follow(graph: fx.Graph, source: fx.Node, attribute: str, traced: object, last: fx.Node) -> None:
    """Take a device or a type from a tensor when the graph runs, not from when it was traced."""

    def is_traced(value: object) -> bool:
        return type(value) is type(traced) and value == traced

    named = [node for node in graph.nodes if any(map(is_traced, _leaves(node.args, node.kwargs)))]
    if not named:
        return
    with graph.inserting_after(last):
        found = graph.call_function(getattr, (source, attribute))
    for node in named:
        followed: Any = fx.node.map_aggregate((node.args, node.kwargs), lambda v: found if is_traced(v) else v)
        node.args, node.kwargs = followed


def _leaves(*values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(*value)
        elif isinstance(value, dict):
            yield from _leaves(*value.values())
        else:
            yield value


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings, log lines and printed graphs of PyTorch's tracing."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
