"""The kernels of `hush.local.kernels`, called on tensors.

Guarantees:
    - Those of the kernels.

Edge cases:
    - `usable` is false where they cannot serve: another type than float32, groups of channels, more than two axes, no
      example, or too many elements. PyTorch's own functions must do then.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hush.local import chain_launch as chain_launch
from hush.local import draw_kernels as draw_kernels
from hush.local import kernels
from hush.local.convolve import Geometry

_MANY_CHANNELS = 16
_WINDOWS = ("H", "W", "OH", "OW", "KH", "KW")
_MOST = 2**30


def usable(x: Tensor, outputs: int, g: Geometry) -> bool:
    """Whether the kernels can compute a convolution of this input."""
    largest = len(x) * max(x.shape[1], outputs) * math.prod(x.shape[2:])
    return x.dtype == torch.float32 and g.groups == 1 and x.ndim in (3, 4) and 0 < largest < _MOST


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, clients: int, g: Geometry, how: str) -> Tensor:
    """The convolution of examples (b, c) with client c's weights (clients x outputs x inputs x kernel)."""
    outputs = weight.shape[1]
    sizes = _sizes(x, outputs, g)
    out = x.new_empty(len(x), outputs, *output_shape(x, g))
    examples = len(x) // clients
    few = x.shape[1] < _MANY_CHANNELS
    blocks = {"BM": 128 if few else 64, "BO": _block(outputs, 32), "BK": 32 if few else _block(x.shape[1], 32)}
    positions = examples * sizes["OH"] * sizes["OW"]
    grid = (_parts(positions, blocks["BM"]), clients, _parts(outputs, blocks["BO"]))
    shift = weight if bias is None else bias
    known = {**sizes, **blocks, "BIASED": bias is not None, "HOW": how, "num_warps": 4, "num_stages": 1}
    if few:
        strides = (weight.stride(0), shift.stride(0))
        kernels.FORWARD_FEW[grid](x.contiguous(), weight, shift, out, examples, clients, *strides, **known)
    else:
        kernels.FORWARD_MANY[grid](
            x.contiguous(), by_tap(weight), shift, out, examples, clients, shift.stride(0), **known
        )
    return out


def input_gradient(d: Tensor, x: Tensor, weight: Tensor, clients: int, g: Geometry, how: str) -> Tensor:
    """Its gradient for the input; of `x` the shape alone matters."""
    sizes = _sizes(x, weight.shape[1], g)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    examples = len(x) // clients
    blocks = {"BM": 64, "BO": _block(x.shape[1], 32), "BK": _block(weight.shape[1], 32)}
    positions = examples * sizes["H"] * sizes["W"]
    grid = (_parts(positions, blocks["BM"]), clients, _parts(x.shape[1], blocks["BO"]))
    known = {**sizes, **blocks, "HOW": how, "num_warps": 4, "num_stages": 1}
    kernels.INPUT_GRADIENT[grid](d.contiguous(), by_tap(weight), out, examples, clients, **known)
    return out


def each(x: Tensor, d: Tensor, g: Geometry, how: str) -> tuple[Tensor, Tensor, Tensor]:
    """The weight gradient of each example, the sum of `d` over positions, and the squared norm of the first."""
    sizes = _sizes(x, d.shape[1], g)
    inputs = x.shape[1] * g.size
    blocks = {"BP": 16, "BO": _block(d.shape[1], 32), "BK": _block(inputs, 64)}
    grid = (len(x), _parts(inputs, blocks["BK"]), _parts(d.shape[1], blocks["BO"]))
    out = x.new_empty(len(x), d.shape[1], x.shape[1], *g.kernel)
    sums = x.new_empty(len(x), d.shape[1])
    squares = x.new_empty(len(x), grid[1] * grid[2], dtype=torch.float64)
    known = {**sizes, **blocks, "HOW": how, "num_warps": 4, "num_stages": 3}
    kernels.EACH[grid](x.contiguous(), d.contiguous(), out, sums, squares, **known)
    return out, sums, squares.sum(1)


def pool(x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Maxima, or zero if that is more, over windows side by side, and which of the window each is."""
    shape = (x.shape[2] // kernel[0], x.shape[3] // kernel[1])
    out = x.new_empty(*x.shape[:2], *shape)
    chosen = torch.empty_like(out, dtype=torch.uint8)
    sizes = dict(zip(_WINDOWS, (*x.shape[2:], *shape, *kernel), strict=True))
    kernels.POOL[_parts(out.numel(), 1024),](x.contiguous(), out, chosen, out.numel(), **sizes, B=1024)
    return out, chosen


def unpool(d: Tensor, chosen: Tensor, shape: torch.Size, kernel: tuple[int, int]) -> Tensor:
    """The gradient for the input of `pool`."""
    out = d.new_empty(shape)
    sizes = dict(zip(_WINDOWS, (*shape[2:], *chosen.shape[2:], *kernel), strict=True))
    kernels.UNPOOL[_parts(out.numel(), 1024),](d.contiguous(), chosen, out, out.numel(), **sizes, B=1024)
    return out


def by_tap(weight: Tensor) -> Tensor:
    """Weights as clients x taps x outputs x inputs."""
    return weight.flatten(3).permute(0, 3, 1, 2).contiguous()


def output_shape(x: Tensor, g: Geometry) -> tuple[int, ...]:
    """Output positions along each axis."""
    return tuple(
        (size + 2 * pad - span) // step + 1
        for size, pad, span, step in zip(x.shape[2:], g.padding, g.spans(), g.stride, strict=True)
    )


def _sizes(x: Tensor, outputs: int, g: Geometry) -> dict[str, int]:
    """What the kernels are compiled for. A convolution along one axis is one with a first axis of one."""

    def two(values: tuple[int, ...], fill: int) -> tuple[int, int]:
        return (fill, values[0]) if len(values) == 1 else (values[0], values[1])

    named = {
        "": two(tuple(x.shape[2:]), 1),
        "O": two(output_shape(x, g), 1),
        "K": two(g.kernel, 1),
        "S": two(g.stride, 1),
        "P": two(g.padding, 0),
        "D": two(g.dilation, 1),
    }
    sizes = {prefix + axis: size for prefix, pair in named.items() for axis, size in zip("HW", pair, strict=True)}
    return {"IN": x.shape[1], "OUT": outputs, **sizes}


def _block(size: int, most: int) -> int:
    """A power of two that covers the size, from the 16 that a product needs."""
    return min(most, max(16, 1 << math.ceil(math.log2(max(size, 1)))))


def _parts(size: int, block: int) -> int:
    return -(-size // block)
