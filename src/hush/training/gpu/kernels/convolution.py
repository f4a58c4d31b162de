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

import inspect
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hush.training.gpu.triton_language import at, constexpr, product, tl, triton
from hush.training.per_example.convolution import Geometry, used_taps

# Sizes of the blocks of positions, outputs and channels, and how a block is computed.
BM, BO, BK, WARPS, STAGES = 64, 64, 32, 4, 3
_FEW_POSITIONS = 32  # up to which a block of positions is as small: each size is a compilation of its own
_MANY_CHANNELS = 16
_MANY_POSITIONS = 64
_TILE = 32
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


def _by_tap(
    w: at, out: at, w_stride: at, IN: at, OUT: at, KH: at, KW: at, TOP: at, LEFT: at, ROWS: at, COLUMNS: at,
    B: constexpr,
) -> None:  # fmt: skip
    """Weights as clients x taps x inputs x outputs, for the taps that meet an input."""
    client = tl.program_id(2).to(tl.int64)
    o = tl.program_id(0) * B + tl.arange(0, B)
    i = tl.program_id(1) * B + tl.arange(0, B)
    known = (o < OUT)[:, None] & (i < IN)[None, :]
    source = w + client * w_stride + (o[:, None] * IN + i[None, :]) * (KH * KW)
    for tap in range(ROWS * COLUMNS):
        place = (TOP + tap // COLUMNS) * KW + LEFT + tap % COLUMNS
        value = tl.load(source + place, mask=known, other=0.0)
        target = out + (client * (ROWS * COLUMNS) + tap) * (IN * OUT) + i[:, None] * OUT + o[None, :]
        tl.store(target, tl.trans(value), mask=tl.trans(known))


def _forward_many(
    x: at, w: at, bias: at, out: at, examples: at, clients: at, b_stride: at,
    IN: at, H: at, W: at, OUT: at, OH: at, OW: at,
    SH: at, SW: at, PH: at, PW: at, DH: at, DW: at, TOP: at, LEFT: at, ROWS: at, COLUMNS: at,
    LAST: constexpr, OUT_LAST: constexpr, BIASED: constexpr, HOW: constexpr,
    BM: constexpr, BO: constexpr, BK: constexpr,
) -> None:  # fmt: skip
    """Many input channels: one product over a block of them for each tap. Weights are those of `_by_tap`.

    With LAST the channels of a position lie side by side in the input, with OUT_LAST in the output.
    """
    client = tl.program_id(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    example = m // (OH * OW)
    position = m % (OH * OW)
    top = (position // OW) * SH - PH
    left = (position % OW) * SW - PW
    live = example < examples
    number = example * clients + client
    weights = w + client.to(tl.int64) * (ROWS * COLUMNS) * IN * OUT + o[None, :]
    acc = tl.zeros((BM, BO), dtype=tl.float32)
    for part in range(0, tl.cdiv(IN, BK) * (ROWS * COLUMNS)):
        k = part // (ROWS * COLUMNS) * BK + tl.arange(0, BK)
        tap = part % (ROWS * COLUMNS)
        ih = top + (TOP + tap // COLUMNS) * DH
        iw = left + (LEFT + tap % COLUMNS) * DW
        inside = live & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        if LAST:
            source = (number * (H * W) + ih * W + iw) * IN
            seen = tl.load(x + source[:, None] + k[None, :], mask=inside[:, None] & (k < IN)[None, :], other=0.0)
        else:
            source = number * (IN * H * W) + ih * W + iw
            across = k * (H * W)
            mask = inside[None, :] & (k < IN)[:, None]
            seen = tl.trans(tl.load(x + source[None, :] + across[:, None], mask=mask, other=0.0))
        known = (k < IN)[:, None] & (o < OUT)[None, :]
        weight = tl.load(weights + (tap * IN + k)[:, None] * OUT, mask=known, other=0.0)
        acc = product(seen, weight, acc, HOW)
    if BIASED:
        acc += tl.load(bias + client.to(tl.int64) * b_stride + o, mask=o < OUT, other=0.0)[None, :]
    written = live[:, None] & (o < OUT)[None, :]
    if OUT_LAST:
        target = (number * (OH * OW) + position)[:, None] * OUT + o[None, :]
        tl.store(out + target, acc, mask=written)
    else:
        target = (number * (OUT * OH * OW) + position)[None, :] + (o * (OH * OW))[:, None]
        tl.store(out + target, tl.trans(acc), mask=tl.trans(written))


def _input_gradient(
    d: at, w: at, out: at, examples: at, clients: at,
    IN: at, H: at, W: at, OUT: at, OH: at, OW: at,
    SH: at, SW: at, PH: at, PW: at, DH: at, DW: at, TOP: at, LEFT: at, ROWS: at, COLUMNS: at,
    STRIDED: constexpr, LAST: constexpr, OUT_LAST: constexpr, HOW: constexpr,
    BM: constexpr, BO: constexpr, BK: constexpr,
) -> None:  # fmt: skip
    """One product over a block of output channels for each tap. LAST is said of `d`, OUT_LAST of what is computed."""
    client = tl.program_id(1)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    channel = tl.program_id(2) * BO + tl.arange(0, BO)
    example = m // (H * W)
    position = m % (H * W)
    low = position // W + PH
    across = position % W + PW
    live = example < examples
    number = example * clients + client
    weights = w + client.to(tl.int64) * (ROWS * COLUMNS) * IN * OUT
    acc = tl.zeros((BM, BO), dtype=tl.float32)
    for part in range(0, tl.cdiv(OUT, BK) * (ROWS * COLUMNS)):
        k = part // (ROWS * COLUMNS) * BK + tl.arange(0, BK)
        tap = part % (ROWS * COLUMNS)
        up = low - (TOP + tap // COLUMNS) * DH
        back = across - (LEFT + tap % COLUMNS) * DW
        inside = live & (up >= 0) & (back >= 0)
        if STRIDED:
            inside = inside & (up % SH == 0) & (back % SW == 0)
            oh = up // SH
            ow = back // SW
        else:
            oh = up
            ow = back
        inside = inside & (oh < OH) & (ow < OW)
        if LAST:
            source = (number * (OH * OW) + oh * OW + ow) * OUT
            arrived = tl.load(d + source[:, None] + k[None, :], mask=inside[:, None] & (k < OUT)[None, :], other=0.0)
        else:
            source = number * (OUT * OH * OW) + oh * OW + ow
            shift = k * (OH * OW)
            mask = inside[None, :] & (k < OUT)[:, None]
            arrived = tl.trans(tl.load(d + source[None, :] + shift[:, None], mask=mask, other=0.0))
        known = (channel < IN)[:, None] & (k < OUT)[None, :]
        weight = tl.load(weights + (tap * IN + channel)[:, None] * OUT + k[None, :], mask=known, other=0.0)
        acc = product(arrived, tl.trans(weight), acc, HOW)
    written = live[:, None] & (channel < IN)[None, :]
    if OUT_LAST:
        target = (number * (H * W) + position)[:, None] * IN + channel[None, :]
        tl.store(out + target, acc, mask=written)
    else:
        target = (number * (IN * H * W) + position)[None, :] + (channel * (H * W))[:, None]
        tl.store(out + target, tl.trans(acc), mask=tl.trans(written))


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
# Channels are left out, because that they are a multiple of 16 lets threads read 16 bytes at a time.
_SIZES = ("H", "W", "OH", "OW", "KH", "KW", "SH", "SW", "PH", "PW", "DH", "DW", "TOP", "LEFT", "ROWS", "COLUMNS")
FORWARD_FEW, EACH = (triton.jit(f) for f in (_forward_few, _each))


def _of_any_size(function: Any) -> Any:
    names = ("examples", "clients", *_SIZES)
    return triton.jit(function, do_not_specialize=[n for n in names if n in inspect.signature(function).parameters])


FORWARD_MANY, INPUT_GRADIENT, BY_TAP = map(_of_any_size, (_forward_many, _input_gradient, _by_tap))
POOL, UNPOOL = (triton.jit(f) for f in (_pool, _unpool))


def usable(x: Tensor, outputs: int, g: Geometry) -> bool:
    """Whether the kernels can compute a convolution of this input."""
    largest = len(x) * max(x.shape[1], outputs) * math.prod(x.shape[2:])
    return x.dtype == torch.float32 and g.groups == 1 and x.ndim in (3, 4) and 0 < largest < _MOST


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a convolution, clients x outputs x inputs x kernel, and the taps that meet an input."""

    values: Tensor
    taps: tuple[range, ...]

    @cached_property
    def by_tap(self) -> Tensor:
        """The weights as clients x taps x inputs x outputs, for these taps alone."""
        values = _side_by_side(self.values)
        clients, outputs, inputs = values.shape[:3]
        known = _taps(self.taps)
        kernel = (1, *values.shape[3:])[-2:]
        out = values.new_empty(clients, known["ROWS"] * known["COLUMNS"], inputs, outputs)
        grid = (_parts(outputs, _TILE), _parts(inputs, _TILE), clients)
        sizes = {"KH": kernel[0], "KW": kernel[1], **known, "B": _TILE, "num_warps": 4}
        BY_TAP[grid](values, out, values.stride(0), inputs, outputs, **sizes)
        return out


def weights_of(values: Tensor, x: Tensor, g: Geometry) -> Weights:
    """The weights of a convolution of inputs of that shape."""
    return Weights(values, used_taps(g, tuple(x.shape[2:]), output_shape(x, g)))


def forward(x: Tensor, weights: Weights, bias: Tensor | None, clients: int, g: Geometry, how: str) -> Tensor:
    """The convolution of examples (b, c) with client c's weights."""
    outputs = weights.values.shape[1]
    sizes = _sizes(x, outputs, g)
    out = x.new_empty(len(x), outputs, *output_shape(x, g))
    examples = len(x) // clients
    positions = examples * sizes["OH"] * sizes["OW"]
    values = _side_by_side(weights.values)
    shift = values if bias is None else _side_by_side(bias)
    known: dict[str, Any]
    if x.shape[1] < _MANY_CHANNELS:
        blocks = {"BM": 128, "BO": _block(outputs, 32), "BK": 32}
        grid = (_parts(positions, blocks["BM"]), clients, _parts(outputs, blocks["BO"]))
        known = {**sizes, **blocks, "BIASED": bias is not None, "HOW": how, "num_warps": 4, "num_stages": 1}
        strides = (values.stride(0), shift.stride(0))
        FORWARD_FEW[grid](x.contiguous(), values, shift, out, examples, clients, *strides, **known)
        return out
    blocks = {
        "BM": min(BM, _FEW_POSITIONS) if positions <= _FEW_POSITIONS else BM,
        "BO": _block(outputs, BO),
        "BK": _block(x.shape[1], BK),
    }
    grid = (_parts(positions, blocks["BM"]), clients, _parts(outputs, blocks["BO"]))
    given, last = _laid_out(x)
    known = {**_but_kernel(sizes), **blocks, **_taps(weights.taps), "BIASED": bias is not None, "HOW": how}
    known |= {"LAST": last, "OUT_LAST": sizes["OH"] * sizes["OW"] == 1, "num_warps": WARPS, "num_stages": STAGES}
    FORWARD_MANY[grid](given, weights.by_tap, shift, out, examples, clients, shift.stride(0), **known)
    return out


def input_gradient(d: Tensor, x: Tensor, weights: Weights, clients: int, g: Geometry, how: str) -> Tensor:
    """Its gradient for the input; of `x` the shape alone matters."""
    outputs = weights.values.shape[1]
    sizes = _sizes(x, outputs, g)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    examples = len(x) // clients
    positions = examples * sizes["H"] * sizes["W"]
    blocks = {
        "BM": min(BM, _FEW_POSITIONS) if positions <= _FEW_POSITIONS else BM,
        "BO": _block(x.shape[1], BO),
        "BK": _block(outputs, BK),
    }
    grid = (_parts(positions, blocks["BM"]), clients, _parts(x.shape[1], blocks["BO"]))
    given, last = _laid_out(d)
    known: dict[str, Any] = {**_but_kernel(sizes), **blocks, **_taps(weights.taps), "HOW": how}
    known |= {"STRIDED": max(sizes["SH"], sizes["SW"]) > 1, "LAST": last, "OUT_LAST": sizes["H"] * sizes["W"] == 1}
    known |= {"num_warps": WARPS, "num_stages": STAGES}
    INPUT_GRADIENT[grid](given, weights.by_tap, out, examples, clients, **known)
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


def _laid_out(t: Tensor) -> tuple[Tensor, bool]:
    """The tensor as kernels read it fastest, and whether the channels of a position lie side by side in it.

    Where there are few positions, neighbouring threads would otherwise read numbers that are far apart.
    """
    positions = math.prod(t.shape[2:])
    if positions >= _MANY_POSITIONS:
        return t.contiguous(), False
    return t.movedim(1, -1).contiguous(), True


def _taps(taps: tuple[range, ...]) -> dict[str, int]:
    """The first tap along each axis that meets an input, and how many do."""
    down, right = (range(1), taps[0]) if len(taps) == 1 else taps
    return {"TOP": down.start, "LEFT": right.start, "ROWS": len(down), "COLUMNS": len(right)}


def _but_kernel(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes without those of the whole kernel, of which weights tap by tap know nothing."""
    return {name: size for name, size in sizes.items() if name not in ("KH", "KW")}


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
