"""Convolutions of any dimension, and the weight gradient of each example by itself.

Guarantees:
    - `each_by_columns` and `each_by_groups` compute the same numbers but for rounding; they differ in speed alone.

Edge cases:
    - An uneven `padding="same"` is applied to the input beforehand, as PyTorch does.
    - A convolution without any example or output position has gradients of zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Kernel, stride, padding and dilation along each axis, and the number of groups of channels."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int

    @property
    def size(self) -> int:
        """Positions in the kernel."""
        return math.prod(self.kernel)

    def transposed_shape(self, x: Tensor, channels: int, more: Sizes) -> Sizes:
        """The shape of a transposed convolution's output; `more` is its output padding."""
        along = zip(x.shape[2:], self.stride, self.padding, self.spans(), more, strict=True)
        return (len(x), channels, *((n - 1) * s - 2 * p + span + extra for n, s, p, span, extra in along))

    def spans(self) -> Sizes:
        """Input positions that one output position reaches over, along each axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))


def prepared(
    x: Tensor,
    kernel: Sizes,
    stride: int | Sequence[int],
    padding: int | str | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> tuple[Tensor, Geometry]:
    """The input and the geometry of a convolution as PyTorch's functions describe it."""
    axes = len(kernel)
    steps, gaps = _sizes(stride, axes), _sizes(dilation, axes)
    if padding == "same":
        around = [(k - 1) * d for k, d in zip(kernel, gaps, strict=True)]
        if any(total % 2 for total in around):
            x = functional.pad(x, [side for t in reversed(around) for side in (t // 2, t - t // 2)])
            around = [0] * axes
        return x, Geometry(kernel, steps, tuple(t // 2 for t in around), gaps, groups)
    edges = (0,) * axes if isinstance(padding, str) else _sizes(padding, axes)
    return x, Geometry(kernel, steps, edges, gaps, groups)


def transposed(
    axes: int,
    kernel: Sizes,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
    more: int | Sequence[int],
) -> tuple[Geometry, Sizes]:
    """The geometry of the convolution that a transposed one is the adjoint of, and its output padding."""
    steps, edges, gaps = (_sizes(value, axes) for value in (stride, padding, dilation))
    return Geometry(kernel, steps, edges, gaps, groups), _sizes(more, axes)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
    """The convolution itself."""
    return torch.convolution(x, weight, bias, g.stride, g.padding, g.dilation, False, (0,) * len(g.kernel), g.groups)


def input_gradient(d: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
    """The gradient for the input; of `x` the shape alone matters."""
    return _backward(d, x, weight, g, (True, False, False))[0]


def used_taps(g: Geometry, inputs: Sizes, outputs: Sizes) -> tuple[range, ...]:
    """The kernel positions along each axis that meet an input: the others see padding alone, at every output position.

    Their weights have a gradient of zero. With inputs of 1 x 1 and a padded kernel of 3 x 3 they are eight of nine.
    """
    return tuple(
        _used(*values) for values in zip(g.kernel, g.stride, g.padding, g.dilation, inputs, outputs, strict=True)
    )


def _used(kernel: int, stride: int, padding: int, dilation: int, inputs: int, outputs: int) -> range:
    used = [
        tap
        for tap in range(kernel)
        if any(0 <= at * stride - padding + tap * dilation < inputs for at in range(outputs))
    ]
    return range(used[0], used[-1] + 1) if used else range(kernel)


def columns(x: Tensor, g: Geometry, taps: Sequence[range] | None = None) -> Tensor:
    """What each output position sees: examples x channels * kernel x positions; of the kernel only `taps`, if given."""
    chosen = tuple(range(size) for size in g.kernel) if taps is None else taps
    sides = []
    for axis, (own, step, pad, gap) in enumerate(zip(chosen, g.stride, g.padding, g.dilation, strict=True)):
        size = x.shape[2 + axis]
        last = (_outputs(g, axis, size) - 1) * step - pad + own[-1] * gap
        sides.append((pad - own[0] * gap, last - (size - 1)))
    edges = [side for pair in reversed(sides) for side in pair]
    padded = functional.pad(x, edges) if any(edges) else x
    for axis, (own, step, gap) in enumerate(zip(chosen, g.stride, g.dilation, strict=True)):
        padded = padded.unfold(2 + axis, (len(own) - 1) * gap + 1, step)[..., ::gap]
    axes = len(g.kernel)
    order = (0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    # Spelled out because an empty batch leaves no room for -1.
    rows, positions = x.shape[1] * math.prod(map(len, chosen)), math.prod(padded.shape[2 : 2 + axes])
    return padded.permute(order).reshape(len(x), rows, positions)


def _outputs(g: Geometry, axis: int, size: int) -> int:
    return (size + 2 * g.padding[axis] - g.spans()[axis]) // g.stride[axis] + 1


def each_by_columns(x: Tensor, d: Tensor, g: Geometry) -> Tensor:
    """Weight gradients of each example, as one matrix product for each example and group."""
    batch = len(x) * g.groups
    seen = columns(x, g)
    seen = seen.reshape(batch, seen.shape[1] // g.groups, seen.shape[2])
    out = d.reshape(batch, d.shape[1] // g.groups, seen.shape[2])
    each = torch.bmm(out, seen.transpose(1, 2))
    return each.view(len(x), d.shape[1], x.shape[1] // g.groups, *g.kernel)


def each_by_groups(x: Tensor, d: Tensor, g: Geometry) -> Tensor:
    """Weight gradients of each example, as one convolution in which every example is a group of its own."""
    shape = (d.shape[1], x.shape[1] // g.groups, *g.kernel)
    if not len(x):
        return x.new_zeros(0, *shape)
    alone = Geometry(g.kernel, g.stride, g.padding, g.dilation, g.groups * len(x))
    merged_x, merged_d = (t.contiguous().view(1, -1, *t.shape[2:]) for t in (x, d))
    sizes_only = x.new_empty(len(x) * shape[0], *shape[1:])
    return _backward(merged_d, merged_x, sizes_only, alone, (False, True, False))[1].view(len(x), *shape)


def _backward(
    d: Tensor, x: Tensor, weight: Tensor, g: Geometry, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    out: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        d, x, weight, None, g.stride, g.padding, g.dilation, False, (0,) * len(g.kernel), g.groups, wanted
    )
    return out


def _sizes(value: int | Sequence[int], axes: int) -> Sizes:
    listed = (value,) if isinstance(value, int) else tuple(value)
    return listed * axes if len(listed) == 1 else listed
