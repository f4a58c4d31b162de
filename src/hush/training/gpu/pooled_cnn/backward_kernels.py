"""Backward kernels of a pooled CNN: gradients for inputs, and those of each example for weights.

See `hush.training.gpu.pooled_cnn.forward_kernels` for how examples and their numbers lie.

Guarantees:
    - Those of `hush.training.gpu.pooled_cnn.forward_kernels`.

Edge cases:
    - Those of `hush.training.gpu.pooled_cnn.forward_kernels`.
"""

from __future__ import annotations

from hush.training.gpu.triton_language import at, constexpr, product, tl, triton


def _nothing() -> at:
    """A tuple to which others are added."""
    return ()


def _back(
    d: at, laid: at, owner: at, ends: at, out: at, clients: at, stride: at,
    FIRST: constexpr, IN: constexpr, OUT: constexpr, KH: constexpr, KW: constexpr,
    ROOM: constexpr, PLANE: constexpr, PITCH: constexpr, BEGIN: constexpr, H: constexpr,
    TAP: constexpr, OF_OUT: constexpr, OF_IN: constexpr,
    HOW: constexpr, BI: constexpr, BO: constexpr, BP: constexpr,
) -> None:  # fmt: skip
    """From the gradient for a convolution's output, that for its input, each column of taps by itself.

    What is read once serves all columns of taps; they are shifted against each other only when they are added.
    """
    n = tl.program_id(0)
    if n < tl.load(ends + clients):
        client = tl.load(owner + n)
        c = tl.arange(0, BI)
        o = tl.arange(0, BO)
        p = tl.program_id(1) * BP + tl.arange(0, BP)
        known = (c < IN)[:, None] & (o < OUT)[None, :]
        weights = laid + client.to(tl.int64) * stride + FIRST + (o * OF_OUT)[None, :] + (c * OF_IN)[:, None]
        seen = d + n.to(tl.int64) * ROOM + BEGIN + tl.where(o < OUT, o * PLANE, 0)[:, None] + p[None, :]
        found = _nothing()
        for _ in tl.static_range(KW):
            found += (tl.zeros((BI, BP), dtype=tl.float32),)
        for row in range(KH):
            arrived = tl.load(seen - row * PITCH)
            more = _nothing()
            for column in tl.static_range(KW):
                weight = tl.load(weights + (row * KW + column) * TAP, mask=known, other=0.0)
                more += (product(weight, arrived, found[column], HOW),)
            found = more
        target = out + n.to(tl.int64) * (KW * IN * H * PITCH) + c[:, None] * (H * PITCH) + p[None, :]
        stays = (c < IN)[:, None] & (p < H * PITCH)[None, :]
        for column in tl.static_range(KW):
            tl.store(target + column * (IN * H * PITCH), found[column], mask=stays)


def _fold(
    parts: at, ends: at, chosen: at, out: at, clients: at,
    IN: constexpr, KW: constexpr, PITCH: constexpr, H: constexpr, W: constexpr, OW: constexpr, LEFT: constexpr,
    TO_ROOM: constexpr, TO_PLANE: constexpr, TO_PITCH: constexpr, TO_BEGIN: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """The sum over columns of taps, brought to the positions that the pooling chose."""
    n = tl.program_id(0)
    if n < tl.load(ends + clients):
        i = tl.program_id(1) * B + tl.arange(0, B)
        inside = i < IN * H * W
        c = i // (H * W)
        row = i % (H * W) // W
        column = i % W
        source = parts + n.to(tl.int64) * (KW * IN * H * PITCH) + (c * H + row) * PITCH
        total = tl.zeros((B,), dtype=tl.float32)
        for tap in tl.static_range(KW):
            at_column = column + LEFT - tap
            there = inside & (at_column >= 0) & (at_column < OW)
            total += tl.load(source + tap * (IN * H * PITCH) + at_column, mask=there, other=0.0)
        which = tl.load(chosen + n.to(tl.int64) * (IN * H * W) + i, mask=inside, other=4).to(tl.int32)
        place = c * TO_PLANE + row * (2 * TO_PITCH) + column * 2 + TO_BEGIN
        target = out + n.to(tl.int64) * TO_ROOM + place
        for tap in tl.static_range(4):
            tl.store(target + tap // 2 * TO_PITCH + tap % 2, tl.where(which == tap, total, 0.0), mask=inside)


def _each(
    x: at, d: at, ends: at, out: at, squares: at, clients: at,
    IN: constexpr, OUT: constexpr, KH: constexpr, KW: constexpr,
    ROOM: constexpr, PLANE: constexpr, PITCH: constexpr,
    D_ROOM: constexpr, D_PLANE: constexpr, D_BEGIN: constexpr, OH: constexpr,
    SIZE: constexpr, FIRST: constexpr, PARTS: constexpr, PART: constexpr,
    HOW: constexpr, BO: constexpr, BP: constexpr, BK: constexpr,
) -> None:  # fmt: skip
    """The gradient of each example for a convolution's weights and biases, and its squared norm."""
    n = tl.program_id(0)
    if n < tl.load(ends + clients):
        k = tl.program_id(1) * BK + tl.arange(0, BK)
        o = tl.arange(0, BO)
        real = k < IN * KH * KW
        tap = tl.where(real, k // (KH * KW) * PLANE + k % (KH * KW) // KW * PITCH + k % KW, 0)
        p = tl.arange(0, BP)
        seen = x + n.to(tl.int64) * ROOM + tap[:, None] + p[None, :]
        arrived = d + n.to(tl.int64) * D_ROOM + D_BEGIN + o[:, None] * D_PLANE + p[None, :]
        acc = tl.zeros((BK, BO), dtype=tl.float32)
        total = tl.zeros((BO, BP), dtype=tl.float32)
        for start in range(0, OH * PITCH, BP):
            known = (o < OUT)[:, None] & (start + p < OH * PITCH)[None, :]
            error = tl.load(arrived + start, mask=known, other=0.0)
            total += error
            acc = product(tl.load(seen + start), tl.trans(error), acc, HOW)
        known = (o < OUT)[None, :] & real[:, None]
        acc = tl.where(known, acc, 0.0)
        own = out + n.to(tl.int64) * SIZE + FIRST
        # What is not finite shows in the squares; in its place goes zero, which no factor of zero can turn into NaN.
        tl.store(own + o[None, :] * (IN * KH * KW) + k[:, None], tl.where(acc - acc == 0, acc, 0.0), mask=known)
        exact = acc.to(tl.float64)
        square = tl.sum(tl.sum(exact * exact, axis=1), axis=0)
        if tl.program_id(1) == 0:
            bias = tl.sum(total, axis=1)
            tl.store(own + OUT * IN * KH * KW + o, tl.where(bias - bias == 0, bias, 0.0), mask=o < OUT)
            exactly = bias.to(tl.float64)
            square += tl.sum(exactly * exactly, axis=0)
        tl.store(squares + n * PARTS + PART + tl.program_id(1), square)


def _each_shifted(
    x: at, d: at, ends: at, out: at, squares: at, clients: at,
    IN: constexpr, OUT: constexpr, KH: constexpr, KW: constexpr,
    ROOM: constexpr, PLANE: constexpr, PITCH: constexpr,
    D_ROOM: constexpr, D_PLANE: constexpr, D_BEGIN: constexpr, OH: constexpr,
    SIZE: constexpr, FIRST: constexpr, PARTS: constexpr, PART: constexpr,
    HOW: constexpr, BI: constexpr, BO: constexpr, BP: constexpr,
) -> None:  # fmt: skip
    """The same for many inputs: inputs shifted by rows of taps against gradients shifted by columns of taps.

    So each is read once for a row or a column of taps, not once for a tap. Gradients come out tap by tap.
    """
    n = tl.program_id(0)
    if n < tl.load(ends + clients):
        o = tl.arange(0, BO)
        c = tl.arange(0, BI)
        p = tl.arange(0, BP)
        seen = x + n.to(tl.int64) * ROOM + tl.where(c < IN, c, 0)[:, None] * PLANE + p[None, :]
        arrived = d + n.to(tl.int64) * D_ROOM + D_BEGIN + o[:, None] * D_PLANE + p[None, :]
        total = tl.zeros((BO, BP), dtype=tl.float32)
        found = _nothing()
        for _ in tl.static_range(KH * KW):
            found += (tl.zeros((BI, BO), dtype=tl.float32),)
        for start in range(0, OH * PITCH + KW - 1, BP):
            rows = _nothing()
            for row in tl.static_range(KH):
                rows += (tl.load(seen + start + row * PITCH),)
            columns = _nothing()
            for column in tl.static_range(KW):
                f = start + p - column
                known = (o < OUT)[:, None] & ((f >= 0) & (f < OH * PITCH))[None, :]
                columns += (tl.load(arrived + start - column, mask=known, other=0.0),)
            total += columns[0]
            more = _nothing()
            for tap in tl.static_range(KH * KW):
                more += (product(rows[tap // KW], tl.trans(columns[tap % KW]), found[tap], HOW),)
            found = more
        own = out + n.to(tl.int64) * SIZE + FIRST
        known = (o < OUT)[None, :] & (c < IN)[:, None]
        exact = tl.zeros((BI, BO), dtype=tl.float64)
        for tap in tl.static_range(KH * KW):
            acc = tl.where(known, found[tap], 0.0)
            place = own + tap * (OUT * IN) + o[None, :] * IN + c[:, None]
            tl.store(place, tl.where(acc - acc == 0, acc, 0.0), mask=known)
            exact += acc.to(tl.float64) * acc.to(tl.float64)
        bias = tl.sum(total, axis=1)
        tl.store(own + OUT * IN * KH * KW + o, tl.where(bias - bias == 0, bias, 0.0), mask=o < OUT)
        exactly = bias.to(tl.float64)
        square = tl.sum(tl.sum(exact, axis=1), axis=0) + tl.sum(exactly * exactly, axis=0)
        tl.store(squares + n * PARTS + PART, square)


def _each_chosen(
    x: at, parts: at, chosen: at, ends: at, out: at, squares: at, clients: at,
    IN: constexpr, OUT: constexpr, KH: constexpr, KW: constexpr,
    ROOM: constexpr, PLANE: constexpr, PITCH: constexpr, PH: constexpr, PW: constexpr,
    SUMS: constexpr, SUM_PITCH: constexpr, SUM_WIDTH: constexpr, LEFT: constexpr,
    SIZE: constexpr, FIRST: constexpr, PARTS: constexpr, PART: constexpr, OWN: constexpr,
    BO: constexpr, BP: constexpr,
) -> None:  # fmt: skip
    """What `_fold` and `_each` do, for some outputs of a first convolution: only positions that pooling chose count.

    Products are float32.
    """
    n = tl.program_id(0)
    if n < tl.load(ends + clients):
        o = tl.program_id(1) * BO + tl.arange(0, BO)
        p = tl.arange(0, BP)[None, :]
        out_of = o[:, None]
        inside = (out_of < OUT) & (p < PH * PW)
        column = p % PW
        source = parts + n.to(tl.int64) * (SUMS * OUT * PH * SUM_PITCH) + out_of * (PH * SUM_PITCH)
        source += p // PW * SUM_PITCH + column + LEFT
        number = out_of * (PH * PW) + p
        which = tl.load(chosen + n.to(tl.int64) * (OUT * PH * PW) + number, mask=inside, other=4).to(tl.int32)
        error = tl.zeros((BO, BP), dtype=tl.float32)
        for tap in tl.static_range(SUMS):
            there = inside & (column + LEFT - tap >= 0) & (column + LEFT - tap < SUM_WIDTH)
            error += tl.load(source + tap * (OUT * PH * SUM_PITCH) - tap, mask=there, other=0.0)
        error = tl.where(which < 4, error, 0.0)
        which = tl.where(which < 4, which, 0)
        seen = x + n.to(tl.int64) * ROOM + tl.where(inside, p // PW * (2 * PITCH) + column * 2, 0)
        seen += which // 2 * PITCH + which % 2
        own = out + n.to(tl.int64) * SIZE + FIRST
        bias = tl.sum(error, axis=1)
        exact = bias.to(tl.float64)
        square = exact * exact
        tl.store(own + OUT * IN * KH * KW + o, tl.where(bias - bias == 0, bias, 0.0), mask=o < OUT)
        for k in tl.static_range(IN * KH * KW):
            value = tl.load(seen + k // (KH * KW) * PLANE + k % (KH * KW) // KW * PITCH + k % KW)
            acc = tl.sum(error * value, axis=1)
            tl.store(own + o * (IN * KH * KW) + k, tl.where(acc - acc == 0, acc, 0.0), mask=o < OUT)
            exact = acc.to(tl.float64)
            square += exact * exact
        square = tl.sum(tl.where(o < OUT, square, 0.0), axis=0)
        if tl.program_id(1) == 0:
            rest = (OUT + BO - 1) // BO + tl.arange(0, 64)
            tl.store(squares + n * PARTS + PART + rest, tl.zeros((64,), dtype=tl.float64), mask=rest < OWN)
        tl.store(squares + n * PARTS + PART + tl.program_id(1), square)


_nothing = triton.jit(_nothing)
BACK, FOLD, EACH = (triton.jit(f) for f in (_back, _fold, _each))
EACH_SHIFTED, EACH_CHOSEN = (triton.jit(f) for f in (_each_shifted, _each_chosen))
