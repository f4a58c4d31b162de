"""Rules for each aten operation: where the batch axis goes, or why the operation is refused.

A rule receives what is known so far, the node, and its arguments by the names of the operation's schema, and returns
the batch axis of the result (a list for several results). It must return an axis only if entry i of the result along it
depends on entry i of the inputs alone. Arguments that are not tensors never depend on the batch size, except for the
operations in `SIZED`, whose rules look at it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from hush.models.isolation.axis import BatchAxis, MixesExamplesError, Tag, positive
from hush.models.isolation.dataflow import Dataflow, flat

Arguments = Mapping[str, Any]
Rule = Callable[[Dataflow, fx.Node, Arguments], Any]

_DIFFERENT = "the batch axes of its inputs differ"


def _input(args: Arguments) -> Any:
    return args["self"] if "self" in args else args["input"]


def _many(node: fx.Node, tag: Tag) -> Any:
    value = node.meta["val"]
    return [tag] * len(value) if isinstance(value, list | tuple) else tag


def _dims(value: Any, ndim: int) -> list[int]:
    """Return the axes that an argument names; none or an empty list means all."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return list(range(ndim))
    named = value if isinstance(value, list | tuple) else [value]
    if not all(type(dim) is int for dim in named):
        raise MixesExamplesError("its axes are not plain numbers")
    return [positive(dim, ndim) for dim in named]


def _without(axis: BatchAxis, dims: Sequence[int]) -> BatchAxis:
    """Return the axis after others have been removed."""
    return axis.at(axis.dim - sum(dim < axis.dim for dim in dims))


# Reductions, and operations along axes


def _reduce(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x = _input(args)
    axis, dims = known.axis(x), _dims(args.get("dim"), known.ndim(x))
    if axis.dim in dims:
        raise MixesExamplesError("reduces over the examples")
    return _many(node, axis if args.get("keepdim") else _without(axis, dims))


def _along(*names: str) -> Rule:
    def rule(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
        x = _input(args)
        axis = known.axis(x)
        named = [args[name] for name in names if name in args]
        dims = [dim for value in named for dim in _dims(value, known.ndim(x))] if named else range(known.ndim(x))
        if axis.dim in dims:
            raise MixesExamplesError("operates along the batch axis")
        return _many(node, axis)

    return rule


def _last_two(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x = _input(args)
    axis = known.axis(x)
    if axis.dim >= known.ndim(x) - 2:
        raise MixesExamplesError("operates along the batch axis")
    return axis


# Shapes


def _reshape(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    """Row-major: what lies to the right of the factor B in the flat index does not change."""
    x, axis = _input(args), known.tag(_input(args))
    if axis is None:
        raise MixesExamplesError("a shape is computed from the batch size")
    old = known.batch.shape(known.value(x))
    if axis.numbers and prod(size for size, _ in old) != 1:
        raise MixesExamplesError("the index of an example in its batch is used as a value")
    right = axis.inner * prod(size for size, _ in old[axis.dim + 1 :])
    passed = 1
    for dim, (size, grows) in reversed(list(enumerate(known.batch.shape(node.meta["val"])))):
        if grows:
            inner, rest = divmod(right, passed) if passed else (0, 0)
            if rest or inner < 1 or size % inner:
                break
            return BatchAxis(dim, size // inner, inner, axis.numbers)
        passed *= size
    raise MixesExamplesError("the new shape splits the batch axis")


def _permute(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    axis, order = known.axis(_input(args)), _dims(args["dims"], known.ndim(_input(args)))
    return axis.at(order.index(axis.dim))


def _transpose(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x, axis = _input(args), known.tag(_input(args))
    ndim = known.ndim(x)
    a, b = (positive(args.get(name, default), ndim) for name, default in (("dim0", 0), ("dim1", 1)))
    if axis is None or ndim < 2:
        raise MixesExamplesError(_DIFFERENT)
    return axis.at({a: b, b: a}.get(axis.dim, axis.dim))


def _unsqueeze(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    axis = known.tag(_input(args))
    assert axis is not None
    return axis.at(axis.dim + (positive(args["dim"], known.ndim(_input(args)) + 1) <= axis.dim))


def _squeeze(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x = _input(args)
    if args.get("dim") is None:
        raise MixesExamplesError("squeezes without naming an axis, so that a batch of one loses its batch axis")
    axis, dims = known.axis(x), _dims(args["dim"], known.ndim(x))
    if axis.dim in dims:
        raise MixesExamplesError("squeezes the batch axis")
    return _without(axis, [dim for dim in dims if known.size(x, dim) == (1, False)])


def _expand(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x, out = _input(args), node.meta["val"]
    axis = known.tag(x)
    return known.made(out) if axis is None else axis.at(axis.dim + out.ndim - known.ndim(x))


def _repeat(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x, times = _input(args), args["repeats"]
    if known.tag(x) is None:
        return known.made(node.meta["val"])
    known.fixed(times)
    axis = known.axis(x)
    dim = axis.dim + len(times) - known.ndim(x)
    return BatchAxis(dim, axis.outer * times[dim], axis.inner)


def _select(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    return _reduce(known, node, {"self": args["self"], "dim": args["dim"]})


def _whole(known: Dataflow, args: Arguments, x: Any, dim: int) -> bool:
    """Return whether a slice along the batch axis takes all of it."""
    start, end, step = args.get("start"), args.get("end"), args.get("step", 1)
    to_end = (
        end is None or (type(end) is int and end >= 2**62) or str(known.value(end)) == str(known.value(x).shape[dim])
    )
    return start in (None, 0) and step == 1 and to_end


def _slice(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x, axis = args["self"], known.tag(args["self"])
    if axis is None:
        raise MixesExamplesError("a slice depends on the batch size")
    if positive(args["dim"], known.ndim(x)) == axis.dim:
        if _whole(known, args, x, axis.dim):
            return axis
        raise MixesExamplesError("selects some of the examples")
    known.fixed([args[name] for name in ("start", "end", "step")])
    return axis


def _scatter_slice(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x, src, selects = args["self"], args["src"], "index" in args
    axis, dim = known.axis(x), positive(args["dim"], known.ndim(x))
    if dim == axis.dim:
        if selects or not _whole(known, args, x, dim) or known.tag(src) is None:
            raise MixesExamplesError("writes to some of the examples")
    else:
        known.fixed([args.get(name) for name in ("start", "end", "step", "index")])
    if known.tag(src) is not None:
        other = known.axis(src)
        if other.at(other.dim + (selects and dim <= other.dim)) != axis:
            raise MixesExamplesError(_DIFFERENT)
    return axis


def _unbind(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x = args["self"]
    axis, dim = known.axis(x), positive(args["dim"], known.ndim(x))
    if dim == axis.dim:
        raise MixesExamplesError("splits the batch axis")
    return [_without(axis, [dim])] * len(node.meta["val"])


def _joined(known: Dataflow, tensors: Sequence[Any]) -> BatchAxis:
    found = {known.axis(each) for each in tensors}
    if len(found) != 1:
        raise MixesExamplesError(_DIFFERENT)
    return found.pop()


def _cat(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    # An empty vector may be joined to anything.
    tensors = [each for each in args["tensors"] if tuple(known.value(each).shape) != (0,)]
    axis = _joined(known, tensors)
    if positive(args["dim"], node.meta["val"].ndim) == axis.dim:
        raise MixesExamplesError("joins tensors along the batch axis")
    return axis


def _stack(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    axis = _joined(known, args["tensors"])
    return axis.at(axis.dim + (positive(args["dim"], node.meta["val"].ndim) <= axis.dim))


def _pad(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x, widths = _input(args), args["pad"]
    axis, ndim = known.axis(x), known.ndim(x)
    padded = [ndim - 1 - i for i in range(len(widths) // 2)]
    touched = axis.dim in padded and any(widths[2 * (ndim - 1 - axis.dim) :][:2])
    if touched or (args.get("mode", "constant") != "constant" and axis.dim in padded):
        raise MixesExamplesError("pads the batch axis")
    return axis


def _diff(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    for name in ("prepend", "append"):
        if args[name] is not None and known.axis(args[name]) != known.axis(args["self"]):
            raise MixesExamplesError(_DIFFERENT)
    return _along("dim")(known, node, args)


# Products


def _product(known: Dataflow, a: Any, b: Any) -> BatchAxis:
    sizes, axes = (known.ndim(a), known.ndim(b)), (known.tag(a), known.tag(b))
    out = max(sizes)
    if min(sizes) < 2:
        if sizes[1] == 1 and axes[1] is None and known.axis(a).dim != sizes[0] - 1:
            return known.axis(a)
        if sizes == (1, 2) and axes[0] is None and known.axis(b).dim == 1:
            return known.axis(b).at(0)
        raise MixesExamplesError("a product of vectors that may sum over the examples")
    left, right = (
        None if tag is None else known.axis(x).dim - n for x, tag, n in zip((a, b), axes, sizes, strict=True)
    )
    if left == -1 or right == -2:
        raise MixesExamplesError("sums over the examples")
    if left is not None and right is not None:
        first, second = known.axis(a), known.axis(b)
        if left != right or left >= -2 or first.grouping != second.grouping:
            raise MixesExamplesError("multiplies examples with each other")
        return first.at(left + out)
    if left is not None:
        place, axis, other = left, known.axis(a), b
    else:
        assert right is not None
        place, axis, other = right, known.axis(b), a
    if place < -2:
        known.broadcasts_along(other, place)
    return axis.at(place + out)


def _matmul(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    return _product(known, args["self"], args.get("mat2", args.get("other", args.get("vec"))))


def _addmm(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    a, b = (
        args[names[0]] if names[0] in args else args[names[1]] for names in (("mat1", "batch1"), ("mat2", "batch2"))
    )
    axis, bias = _product(known, a, b), args["self"]
    out = node.meta["val"].ndim
    if known.tag(bias) is None:
        known.broadcasts_along(bias, axis.dim - out)
    elif known.axis(bias).at(known.axis(bias).dim + out - known.ndim(bias)) != axis:
        raise MixesExamplesError(_DIFFERENT)
    return axis


def _linear(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    known.constant(args["weight"], args["bias"])
    axis = known.axis(args["input"])
    if axis.dim == known.ndim(args["input"]) - 1:
        raise MixesExamplesError("sums over the examples")
    return axis


def _einsum(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    equation, tensors = args["equation"].replace(" ", ""), args["tensors"]
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    if "." in equation or not arrow or len(operands) != len(tensors):
        raise MixesExamplesError("an equation with an ellipsis or without an arrow")
    batched = [
        (letters, known.axis(x)) for letters, x in zip(operands, tensors, strict=True) if known.tag(x) is not None
    ]
    found = {(letters[axis.dim], axis.grouping) for letters, axis in batched}
    if len(found) != 1:
        raise MixesExamplesError("multiplies examples with each other")
    letter, (outer, inner) = found.pop()
    elsewhere = [letters for letters, x in zip(operands, tensors, strict=True) if known.tag(x) is None]
    if any(letters.count(letter) != 1 for letters, _ in batched) or any(letter in letters for letters in elsewhere):
        raise MixesExamplesError("multiplies examples with each other")
    if right.count(letter) != 1:
        raise MixesExamplesError("sums over the examples")
    return BatchAxis(right.index(letter), outer, inner)


def _attention(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    query = args["query"]
    axis, ndim = known.axis(query), known.ndim(query)
    if any(known.ndim(other) != ndim or known.axis(other) != axis for other in (args["key"], args["value"])):
        raise MixesExamplesError("attends to other examples")
    if axis.dim >= ndim - 2:
        raise MixesExamplesError("attends to other examples")
    mask = args.get("attn_mask")
    if mask is not None:
        if known.tag(mask) is None:
            known.broadcasts_along(mask, axis.dim - ndim)
        elif known.axis(mask).at(known.axis(mask).dim + ndim - known.ndim(mask)) != axis:
            raise MixesExamplesError(_DIFFERENT)
    return axis


# Layers


def _convolution(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x, weight = args["input"], args["weight"]
    known.constant(weight, args["bias"])
    if known.axis(x).dim or known.ndim(x) != known.ndim(weight):
        raise MixesExamplesError("the examples are not the batch axis of the convolution")
    return known.axis(x)


def _spatial(last: int) -> Rule:
    """Return an operation along the last axes, such as pooling."""

    def rule(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
        x = _input(args)
        axis = known.axis(x)
        known.constant([value for value in args.values() if value is not x])
        if axis.dim >= known.ndim(x) - last:
            raise MixesExamplesError("operates along the batch axis")
        return _many(node, axis)

    return rule


def _channel_shuffle(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    if known.axis(args["self"]).dim == 1:
        raise MixesExamplesError("the examples are its channels")
    return known.axis(args["self"])


def _layer_norm(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x = _input(args)
    known.constant(args["weight"], args.get("bias"))
    if known.axis(x).dim >= known.ndim(x) - len(args["normalized_shape"]):
        raise MixesExamplesError("normalises over the examples")
    return _many(node, known.axis(x))


def _batch_first(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x = _input(args)
    known.constant([value for value in args.values() if value is not x])
    if known.axis(x).dim:
        raise MixesExamplesError("the examples are not its batch axis")
    return known.axis(x)


def _native_group_norm(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    known.fixed(args["group"], args["eps"])
    axis = _batch_first(known, node, args)
    if known.batch.factor(known.value(args["N"])) != (axis.outer * axis.inner, True):
        raise MixesExamplesError("normalises over the examples")
    return [axis] * 3


def _instance_norm(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    if args["running_mean"] is not None or not args["use_input_stats"]:
        raise MixesExamplesError("keeps running statistics")
    return _batch_first(known, node, args)


def _batch_norm(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    if args.get("training", False):
        raise MixesExamplesError("normalises over the examples; use GroupNorm, LayerNorm or InstanceNorm")
    x = args["input"]
    known.constant([value for value in args.values() if value is not x])
    if known.axis(x).dim == 1:
        raise MixesExamplesError("the examples are its channels")
    axis, value = known.axis(x), node.meta["val"]
    return [axis, *[None] * (len(value) - 1)] if isinstance(value, list | tuple) else axis


def _embedding(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    if args["scale_grad_by_freq"]:
        raise MixesExamplesError("scales gradients by how often an index occurs in the batch")
    known.constant(args["weight"])
    return known.axis(args["indices"])


def _recurrent(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    known.constant(args["params"])
    axis = known.axis(args["input"])
    if axis != BatchAxis(0 if args["batch_first"] else 1):
        raise MixesExamplesError("the batch is on its time axis; pass batch_first=True")
    for state in flat(args["hx"]):
        if known.axis(state) != BatchAxis(1):
            raise MixesExamplesError(_DIFFERENT)
    return [axis, *[BatchAxis(1)] * (len(node.meta["val"]) - 1)]


def _cell(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    known.constant([value for name, value in args.items() if name not in ("input", "hx")])
    if any(known.axis(x) != BatchAxis(0) for x in flat([args["input"], args["hx"]])):
        raise MixesExamplesError(_DIFFERENT)
    return _many(node, BatchAxis(0))


def _with_constants(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    """Number by number, beside tensors that depend on no example."""
    x = _input(args)
    known.constant([value for value in args.values() if value is not x])
    return known.axis(x)


# Indexing


def _gather(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    axis = _joined(known, [value for value in flat(args) if known.is_tensor(value)])
    if positive(args["dim"], known.ndim(args["self"])) == axis.dim:
        raise MixesExamplesError("selects among the examples")
    return axis


def _index_select(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x, index = args["self"], args["index"]
    if known.tag(x) is None:
        return known.axis(index).at(positive(args["dim"], known.ndim(x)))
    known.constant(index)
    return _along("dim")(known, node, args)


def _index(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    x, given = args["self"], [(dim, index) for dim, index in enumerate(args["indices"]) if index is not None]
    if any(known.value(index).dtype in (torch.bool, torch.uint8) for _, index in given):
        raise MixesExamplesError("a mask is used as an index")
    places = [dim for dim, _ in given]
    adjacent = places == list(range(places[0], places[0] + len(places)))
    front, width = places[0] if adjacent else 0, max(known.ndim(index) for _, index in given)
    axis = known.tag(x)
    if axis is not None and axis.numbers:
        raise MixesExamplesError("the index of an example in its batch is used as a value")
    if axis is not None and axis.dim not in places:
        known.constant([index for _, index in given])
        place = [dim for dim in range(known.ndim(x)) if dim not in places].index(axis.dim)
        return axis.at(place + width if place >= front or not adjacent else place)
    if axis is not None:
        numbers = known.tag(dict(given)[axis.dim])
        if numbers is None or not numbers.numbers or axis.grouping != (1, 1):
            raise MixesExamplesError("selects among the examples")
    found = set()
    for place, index in given:
        tag = known.tag(index)
        if tag is not None:
            # The numbers of the examples may stand for the batch axis only, also where one tensor indexes two axes.
            used = tag if axis is not None and place == axis.dim else known.axis(index)
            found.add((used.dim + width - known.ndim(index), used.grouping))
    if len(found) != 1:
        raise MixesExamplesError(_DIFFERENT)
    dim, (outer, inner) = found.pop()
    for _, index in given:
        known.broadcasts_along(index, dim - width)
    return BatchAxis(front + dim, outer, inner)


def _bilinear(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    known.constant(args["weight"], args["bias"])
    first, second = args["input1"], args["input2"]
    axis = _joined(known, [first, second])
    if axis.dim == known.ndim(first) - 1:
        raise MixesExamplesError("sums over the examples")
    return axis


def _one_hot(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    if args["num_classes"] < 0:
        raise MixesExamplesError("takes the number of classes from the batch; pass num_classes")
    return known.axis(args["self"])


# Random numbers


def _own_numbers(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    """Return a random number for each number."""
    x = _input(args)
    known.constant([value for value in args.values() if value is not x])
    return _many(node, None if known.tag(x) is None else known.axis(x))


# Creation


def _filled(*values: str) -> Rule:
    """Return a tensor that is filled with what these arguments say."""

    def rule(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
        known.fixed([args[name] for name in values])
        known.constant([args[name] for name in values])
        return known.made(node.meta["val"])

    return rule


def _like(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    known.fixed([value for name, value in args.items() if name != "self"])
    axis = known.tag(args["self"])
    return None if axis is None else BatchAxis(axis.dim, axis.outer, axis.inner)


def _arange(known: Dataflow, node: fx.Node, args: Arguments) -> Any:
    ((size, grows),) = known.batch.shape(node.meta["val"])
    if not grows:
        known.fixed([args.get(name) for name in ("start", "end", "step")])
        return None
    if (args.get("start", 0), args.get("step", 1), size) != (0, 1, 1):
        raise MixesExamplesError("counts the examples")
    return BatchAxis(0, numbers=True)


def _table(*entries: tuple[Rule, str]) -> dict[str, Rule]:
    return {f"aten.{name}": rule for rule, names in entries for name in names.split()}


RULES: Mapping[str, Rule] = _table(
    (_reduce, "sum mean amax amin nansum nanmean logsumexp argmax argmin prod median nanmedian max min any all mode std"
              " var var_mean std_mean linalg_vector_norm norm kthvalue count_nonzero"),
    (_along("dim", "dims", "dimension"), "softmax _softmax log_softmax _log_softmax cumsum cumprod cummax cummin"
              " logcumsumexp glu flip sort argsort topk roll unfold split split_with_sizes chunk"),
    (_last_two, "tril triu"),
    (_reshape, "view reshape _unsafe_view flatten unflatten view_copy"),
    (_permute, "permute"), (_transpose, "transpose t"), (_unsqueeze, "unsqueeze"),
    (_squeeze, "squeeze"), (_expand, "expand"), (_repeat, "repeat"), (_select, "select"), (_slice, "slice"),
    (_scatter_slice, "slice_scatter select_scatter"), (_unbind, "unbind"), (_cat, "cat concat"), (_stack, "stack"),
    (_pad, "pad constant_pad_nd"), (_diff, "diff"),
    (_matmul, "mm bmm matmul mv"), (_addmm, "addmm baddbmm"), (_linear, "linear"), (_einsum, "einsum"),
    (_attention, "scaled_dot_product_attention"),
    (_convolution, "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d"),
    (_spatial(1), "max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool1d_with_indices"
                  " upsample_nearest1d upsample_linear1d"),
    (_spatial(2), "max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool2d_with_indices"
                  " _adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d"
                  " _upsample_bicubic2d_aa _upsample_bilinear2d_aa im2col"),
    (_spatial(3), "max_pool3d avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d max_pool3d_with_indices"
                  " _adaptive_avg_pool3d pixel_shuffle pixel_unshuffle"),
    (_channel_shuffle, "channel_shuffle"),
    (_layer_norm, "layer_norm native_layer_norm rms_norm _fused_rms_norm"), (_batch_first, "group_norm"),
    (_native_group_norm, "native_group_norm"), (_instance_norm, "instance_norm"),
    (_batch_norm, "batch_norm _native_batch_norm_legit_no_training"), (_embedding, "embedding"),
    (_recurrent, "lstm gru rnn_tanh rnn_relu"), (_cell, "gru_cell lstm_cell rnn_tanh_cell rnn_relu_cell"),
    (_with_constants, "prelu _prelu_kernel bucketize"),
    (_gather, "gather scatter scatter_add scatter_reduce"), (_index_select, "index_select"), (_index, "index"),
    (_one_hot, "one_hot"), (_bilinear, "bilinear"),
)  # fmt: skip

# Arguments of these may be computed from the batch size; their rules say how.
SIZED = frozenset(_table((_reshape, "view reshape _unsafe_view flatten unflatten view_copy expand repeat slice"
                                    " slice_scatter native_group_norm")))  # fmt: skip

# Operations number by number that PyTorch does not mark as such.
POINTWISE = frozenset(_table((_with_constants, """where copy fill _to_copy to detach alias lift_fresh_copy masked_fill
    dropout native_dropout alpha_dropout log_sigmoid hardswish erf rsub clamp contiguous type_as softsign logical_and
    square hardsigmoid log_sigmoid_forward expand_as bitwise_not __and__ __or__ isclose special_expit absolute negative
    multiply divide subtract floor_divide greater less clone""")))  # fmt: skip

# Random numbers: the operation is replaced by one that computes them from each example's key.
DRAWN: Mapping[str, Rule] = _table(
    (_own_numbers, "native_dropout dropout bernoulli rrelu"),
    (_filled(), "rand"),
    (_like, "rand_like"),
    (_attention, "scaled_dot_product_attention"),
    (_recurrent, "lstm gru rnn_tanh rnn_relu"),
)

CREATION: Mapping[str, Rule] = _table(
    # Memory that was not written is refused unless only its shape is used.
    (_filled(), "zeros ones new_zeros new_ones empty new_empty"),
    (_filled("fill_value"), "full new_full"),
    (_filled("s"), "scalar_tensor"),
    (_like, "zeros_like ones_like full_like empty_like"),
    (_arange, "arange"),
)
