"""Convolutions with per-client weights, and ReLU with max-pooling: Triton kernels and the functions that launch them.

PyTorch has grouped convolutions, which are slow in float32, and no per-example weight gradient without copies many
times the size of the input. Here the inputs of a position are gathered on the chip, product by product. Examples lie as
`hush.training.per_example.padded` says: example b of client c is number b * clients + c.

Guarantees:
    - Float32 in and out; sums are float32. HOW says how factors are multiplied: "ieee" in float32, "tf32x3" with three
      short products for nearly that, "tf32" with one.
    - Squared gradient norms are summed in float64. Values that are not finite count in them alone: in the gradients
      they are replaced by zero.
    - No value of one example enters the results of another.

Edge cases:
    - This module can be imported only where Triton is installed.
    - `usable` is false where the kernels do not apply: another dtype than float32, channel groups, more than two axes,
      no example, or more elements than 31 bits count. PyTorch's own functions are used then.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hush.training.gpu.triton_language import at, constexpr, product, tl, triton
from hush.training.per_example.convolution import Geometry, used_taps

# Sizes of the blocks of positions, outputs and channels, and how a block is computed.
BM, BO, BK, WARPS, STAGES = 64, 64, 32, 4, 2
_MANY_CHANNELS = 16
_WINDOWS = ("H", "W", "OH", "OW", "KH", "KW")
_MOST = 2**30


def _forward_few(
    x: at, w: at, bias: at, out: at, examples: at, clients: at, w_stride: at, b_stride: at,
    IN: constexpr, H: constexpr, W: constexpr, OUT: constexpr, OH: constexpr, OW: constexpr,
    KH: constexpr, KW: constexpr, SH: constexpr, SW: constexpr, PH: constexpr, PW: constexpr,
    DH: constexpr, DW: constexpr, BIASED: constexpr, HOW: constexpr,
    BM: constexpr, BO: constexpr, BK: constexpr,
) -> None:  # fmt: skip
    """Few input channels: channels and taps together are what is summed over."""
    client = tl.program_id(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    example = m // (OH * OW)
    position = m % (OH * OW)
    top = (position // OW) * SH - PH
    left = (position % OW) * SW - PW
    live = example < examples
    number = example * clients + client
    source = number * (IN * H * W) + top * W + left
    acc = tl.zeros((BO, BM), dtype=tl.float32)
    for start in range(0, IN * KH * KW, BK):
        k = start + tl.arange(0, BK)
        down = (k % (KH * KW)) // KW * DH
        right = k % KW * DW
        ih = top[None, :] + down[:, None]
        iw = left[None, :] + right[:, None]
        inside = (k < IN * KH * KW)[:, None] & live[None, :] & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        shift = k // (KH * KW) * (H * W) + down * W + right
        seen = tl.load(x + source[None, :] + shift[:, None], mask=inside, other=0.0)
        known = (o < OUT)[:, None] & (k < IN * KH * KW)[None, :]
        weight = tl.load(w + client * w_stride + o[:, None] * (IN * KH * KW) + k[None, :], mask=known, other=0.0)
        acc = product(weight, seen, acc, HOW)
    if BIASED:
        acc += tl.load(bias + client * b_stride + o, mask=o < OUT, other=0.0)[:, None]
    target = (number * (OUT * OH * OW) + position)[None, :] + (o * (OH * OW))[:, None]
    tl.store(out + target, acc, mask=live[None, :] & (o < OUT)[:, None])


def _forward_many(
    x: at, w: at, bias: at, out: at, examples: at, clients: at, w_stride: at, b_stride: at,
    IN: at, H: at, W: at, OUT: at, OH: at, OW: at,
    KH: constexpr, KW: constexpr, SH: constexpr, SW: constexpr, PH: constexpr, PW: constexpr,
    DH: constexpr, DW: constexpr, TOP: constexpr, LEFT: constexpr, ROWS: constexpr, COLUMNS: constexpr,
    BIASED: constexpr, HOW: constexpr, BM: constexpr, BO: constexpr, BK: constexpr,
) -> None:  # fmt: skip
    """Many input channels: one product over a block of them for each of the ROWS x COLUMNS taps that meet an input."""
    client = tl.program_id(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    example = m // (OH * OW)
    position = m % (OH * OW)
    top = (position // OW) * SH - PH
    left = (position % OW) * SW - PW
    live = example < examples
    number = example * clients + client
    weights = w + client.to(tl.int64) * w_stride + o[:, None] * (IN * KH * KW)
    acc = tl.zeros((BM, BO), dtype=tl.float32)
    # The taps of a block of channels follow each other: their weights lie side by side.
    for part in range(0, tl.cdiv(IN, BK) * (ROWS * COLUMNS)):
        k = part // (ROWS * COLUMNS) * BK + tl.arange(0, BK)
        tap = part % (ROWS * COLUMNS)
        down = TOP + tap // COLUMNS
        right = LEFT + tap % COLUMNS
        ih = top + down * DH
        iw = left + right * DW
        inside = live & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        source = number * (IN * H * W) + ih * W + iw
        seen = tl.load(
            x + source[None, :] + (k * (H * W))[:, None], mask=inside[None, :] & (k < IN)[:, None], other=0.0
        )
        known = (o < OUT)[:, None] & (k < IN)[None, :]
        weight = tl.load(weights + k[None, :] * (KH * KW) + (down * KW + right), mask=known, other=0.0)
        acc = product(tl.trans(seen), tl.trans(weight), acc, HOW)
    found = tl.trans(acc)
    if BIASED:
        found += tl.load(bias + client.to(tl.int64) * b_stride + o, mask=o < OUT, other=0.0)[:, None]
    target = (number * (OUT * OH * OW) + position)[None, :] + (o * (OH * OW))[:, None]
    tl.store(out + target, found, mask=live[None, :] & (o < OUT)[:, None])


def _input_gradient(
    d: at, w: at, out: at, examples: at, clients: at, w_stride: at,
    IN: at, H: at, W: at, OUT: at, OH: at, OW: at,
    KH: constexpr, KW: constexpr, SH: constexpr, SW: constexpr, PH: constexpr, PW: constexpr,
    DH: constexpr, DW: constexpr, TOP: constexpr, LEFT: constexpr, ROWS: constexpr, COLUMNS: constexpr,
    HOW: constexpr, BM: constexpr, BO: constexpr, BK: constexpr,
) -> None:  # fmt: skip
    """One product over a block of output channels for each of the ROWS x COLUMNS taps that meet an input."""
    client = tl.program_id(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    channel = tl.program_id(2) * BO + tl.arange(0, BO)
    example = m // (H * W)
    position = m % (H * W)
    low = position // W + PH
    across = position % W + PW
    live = example < examples
    number = example * clients + client
    weights = w + client.to(tl.int64) * w_stride + channel[:, None] * (KH * KW)
    acc = tl.zeros((BM, BO), dtype=tl.float32)
    for part in range(0, tl.cdiv(OUT, BK) * (ROWS * COLUMNS)):
        k = part // (ROWS * COLUMNS) * BK + tl.arange(0, BK)
        tap = part % (ROWS * COLUMNS)
        down = TOP + tap // COLUMNS
        right = LEFT + tap % COLUMNS
        up = low - down * DH
        back = across - right * DW
        inside = live & (up >= 0) & (back >= 0) & (up % SH == 0) & (back % SW == 0)
        oh = up // SH
        ow = back // SW
        inside = inside & (oh < OH) & (ow < OW)
        source = number * (OUT * OH * OW) + oh * OW + ow
        arrived = tl.load(
            d + source[None, :] + (k * (OH * OW))[:, None], mask=inside[None, :] & (k < OUT)[:, None], other=0.0
        )
        known = (channel < IN)[:, None] & (k < OUT)[None, :]
        weight = tl.load(weights + k[None, :] * (IN * KH * KW) + (down * KW + right), mask=known, other=0.0)
        acc = product(tl.trans(arrived), tl.trans(weight), acc, HOW)
    target = (number * (IN * H * W) + position)[None, :] + (channel * (H * W))[:, None]
    tl.store(out + target, tl.trans(acc), mask=live[None, :] & (channel < IN)[:, None])


def _each(
    x: at, d: at, out: at, sums: at, squares: at,
    IN: constexpr, H: constexpr, W: constexpr, OUT: constexpr, OH: constexpr, OW: constexpr,
    KH: constexpr, KW: constexpr, SH: constexpr, SW: constexpr, PH: constexpr, PW: constexpr,
    DH: constexpr, DW: constexpr, HOW: constexpr, BP: constexpr, BO: constexpr, BK: constexpr,
) -> None:  # fmt: skip
    number = tl.program_id(0)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    row = (k % (KH * KW)) // KW * DH - PH
    column = k % KW * DW - PW
    source = number * (IN * H * W) + (k // (KH * KW)) * (H * W) + row * W + column
    acc = tl.zeros((BK, BO), dtype=tl.float32)
    total = tl.zeros((BO,), dtype=tl.float32)
    for start in range(0, OH * OW, BP):
        p = start + tl.arange(0, BP)
        down = p // OW * SH
        right = p % OW * SW
        ih = row[:, None] + down[None, :]
        iw = column[:, None] + right[None, :]
        inside = (k < IN * KH * KW)[:, None] & (p < OH * OW)[None, :] & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        seen = tl.load(x + source[:, None] + (down * W + right)[None, :], mask=inside, other=0.0)
        known = (o < OUT)[:, None] & (p < OH * OW)[None, :]
        place = number * (OUT * OH * OW) + (o * (OH * OW))[:, None] + p[None, :]
        arrived = tl.load(d + place, mask=known, other=0.0)
        total += tl.sum(arrived, axis=1)
        acc = product(seen, tl.trans(arrived), acc, HOW)
    known = (o < OUT)[:, None] & (k < IN * KH * KW)[None, :]
    target = number.to(tl.int64) * (OUT * IN * KH * KW) + o[:, None] * (IN * KH * KW) + k[None, :]
    # What is not finite shows in the squares; in its place goes zero, which no factor of zero can turn into NaN.
    tl.store(out + target, tl.trans(tl.where(acc - acc == 0, acc, 0.0)), mask=known)
    exact = acc.to(tl.float64)
    block = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    blocks = tl.num_programs(1) * tl.num_programs(2)
    tl.store(squares + number * blocks + block, tl.sum(tl.sum(exact * exact, axis=1), axis=0))
    if tl.program_id(1) == 0:
        tl.store(sums + number * OUT + o, total, mask=o < OUT)


def _pool(
    x: at, out: at, chosen: at, size: at, H: constexpr, W: constexpr, OH: constexpr, OW: constexpr,
    KH: constexpr, KW: constexpr, B: constexpr,
) -> None:  # fmt: skip
    i = tl.program_id(0) * B + tl.arange(0, B)
    position = i % (OH * OW)
    source = x + (i // (OH * OW)) * (H * W) + (position // OW * KH) * W + position % OW * KW
    best = tl.load(source, mask=i < size, other=0.0)
    which = tl.zeros((B,), dtype=tl.int32)
    for tap in tl.static_range(1, KH * KW):
        value = tl.load(source + (tap // KW) * W + tap % KW, mask=i < size, other=0.0)
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        which = tl.where(better, tap, which)
    which = tl.where(best <= 0, KH * KW, which)
    best = tl.where(best <= 0, 0.0, best)
    tl.store(out + i, best, mask=i < size)
    tl.store(chosen + i, which.to(tl.uint8), mask=i < size)


def _unpool(
    d: at, chosen: at, out: at, size: at, H: constexpr, W: constexpr, OH: constexpr, OW: constexpr,
    KH: constexpr, KW: constexpr, B: constexpr,
) -> None:  # fmt: skip
    i = tl.program_id(0) * B + tl.arange(0, B)
    position = i % (H * W)
    h = position // W
    w = position % W
    inside = (i < size) & (h // KH < OH) & (w // KW < OW)
    place = (i // (H * W)) * (OH * OW) + (h // KH) * OW + w // KW
    mine = tl.load(chosen + place, mask=inside, other=255).to(tl.int32) == h % KH * KW + w % KW
    tl.store(out + i, tl.where(mine, tl.load(d + place, mask=inside, other=0.0), 0.0), mask=i < size)


# One compilation serves convolutions of all sizes: Triton would make others for sizes of one and multiples of 16.
_ANY_SIZE = {"do_not_specialize": ["examples", "clients", "IN", "H", "W", "OUT", "OH", "OW"]}
FORWARD_FEW, EACH = (triton.jit(f) for f in (_forward_few, _each))
FORWARD_MANY, INPUT_GRADIENT = (triton.jit(f, **_ANY_SIZE) for f in (_forward_many, _input_gradient))
POOL, UNPOOL = (triton.jit(f) for f in (_pool, _unpool))


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
    positions = examples * sizes["OH"] * sizes["OW"]
    weight, shift = _side_by_side(weight), weight if bias is None else _side_by_side(bias)
    known: dict[str, Any] = {**sizes, "BIASED": bias is not None, "HOW": how}
    strides = (weight.stride(0), shift.stride(0))
    if x.shape[1] < _MANY_CHANNELS:
        blocks = {"BM": 128, "BO": _block(outputs, 32), "BK": 32}
        grid = (_parts(positions, blocks["BM"]), clients, _parts(outputs, blocks["BO"]))
        known |= {**blocks, "num_warps": 4, "num_stages": 1}
        FORWARD_FEW[grid](x.contiguous(), weight, shift, out, examples, clients, *strides, **known)
        return out
    blocks = {"BM": _block(positions, BM), "BO": _block(outputs, BO), "BK": _block(x.shape[1], BK)}
    grid = (_parts(positions, blocks["BM"]), clients, _parts(outputs, blocks["BO"]))
    known |= {**blocks, **_taps(x, g), "num_warps": WARPS, "num_stages": STAGES}
    FORWARD_MANY[grid](x.contiguous(), weight, shift, out, examples, clients, *strides, **known)
    return out


def input_gradient(d: Tensor, x: Tensor, weight: Tensor, clients: int, g: Geometry, how: str) -> Tensor:
    """Its gradient for the input; of `x` the shape alone matters."""
    sizes, weight = _sizes(x, weight.shape[1], g), _side_by_side(weight)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    examples = len(x) // clients
    positions = examples * sizes["H"] * sizes["W"]
    blocks = {"BM": _block(positions, BM), "BO": _block(x.shape[1], BO), "BK": _block(weight.shape[1], BK)}
    grid = (_parts(positions, blocks["BM"]), clients, _parts(x.shape[1], blocks["BO"]))
    known = {**sizes, **blocks, **_taps(x, g), "HOW": how, "num_warps": WARPS, "num_stages": STAGES}
    INPUT_GRADIENT[grid](d.contiguous(), weight, out, examples, clients, weight.stride(0), **known)
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
    EACH[grid](x.contiguous(), d.contiguous(), out, sums, squares, **known)
    return out, sums, squares.sum(1)


def pool(x: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Maxima, or zero if that is more, over windows side by side, and which of the window each is."""
    shape = (x.shape[2] // kernel[0], x.shape[3] // kernel[1])
    out = x.new_empty(*x.shape[:2], *shape)
    chosen = torch.empty_like(out, dtype=torch.uint8)
    sizes = dict(zip(_WINDOWS, (*x.shape[2:], *shape, *kernel), strict=True))
    POOL[_parts(out.numel(), 1024),](x.contiguous(), out, chosen, out.numel(), **sizes, B=1024)
    return out, chosen


def unpool(d: Tensor, chosen: Tensor, shape: torch.Size, kernel: tuple[int, int]) -> Tensor:
    """The gradient for the input of `pool`."""
    out = d.new_empty(shape)
    sizes = dict(zip(_WINDOWS, (*shape[2:], *chosen.shape[2:], *kernel), strict=True))
    UNPOOL[_parts(out.numel(), 1024),](d.contiguous(), chosen, out, out.numel(), **sizes, B=1024)
    return out


def _side_by_side(values: Tensor) -> Tensor:
    """The tensor with each client's own numbers side by side, as they are in a flat vector of parameters."""
    return values if values[0].is_contiguous() else values.contiguous()


def _taps(x: Tensor, g: Geometry) -> dict[str, int]:
    """The first tap along each axis that meets an input, and how many do."""
    found = used_taps(g, tuple(x.shape[2:]), output_shape(x, g))
    down, right = (range(1), found[0]) if len(found) == 1 else found
    return {"TOP": down.start, "LEFT": right.start, "ROWS": len(down), "COLUMNS": len(right)}


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
