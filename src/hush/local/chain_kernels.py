"""A step over a chain of pooled convolutions, as kernels for an accelerator: a program for an example or a part of it.

Examples lie client by client; `owner` says whose each is and `ends` (clients + 1 numbers) where each client's begin.
Buffers are those of `hush.local.chain`: what lies between the numbers is zero and is never written.

Guarantees:
    - Those of `hush.local.kernels`: float32 in and out, squares in float64, no number of one example in the results of
      another; what is not finite counts in the squares alone, and is given out as zero.
    - Clip factors are those of `hush.local.clip`, and weighted sums are float32 without shorter products.

Edge cases:
    - Programs beyond the last example do nothing.
    - This module can be imported only where Triton is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeAlias

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")

if TYPE_CHECKING:
    at: TypeAlias = Any
    constexpr: TypeAlias = Any
else:  # Triton reads annotations, and takes only its own for them.
    at = tl.tensor
    constexpr = tl.constexpr


def _product(left: at, right: at, total: at, HOW: constexpr) -> at:
    if HOW == "bf16":
        out = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16), total)
    else:
        out = tl.dot(left, right, total, input_precision=HOW)
    return out


def _turned(left: at, right: at, total: at, HOW: constexpr, TURN: constexpr) -> at:
    """The product, or its transpose: which is faster depends on the sizes."""
    return _product(tl.trans(right), tl.trans(left), total, HOW) if TURN else _product(left, right, total, HOW)


def _nothing() -> at:
    """A tuple to which others are added."""
    return ()


def _upright(total: at, TURN: constexpr) -> at:
    return tl.trans(total) if TURN else total


def _fetch(
    x: at, rows: at, ends: at, out: at, clients: at,
    SIZE: constexpr, W: constexpr, HW: constexpr, ROOM: constexpr, PLANE: constexpr, PITCH: constexpr,
    BEGIN: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """Inputs to their places between zeros."""
    n = tl.program_id(0)
    if n < tl.load(ends + clients):
        row = tl.load(rows + n).to(tl.int64)
        i = tl.program_id(1) * B + tl.arange(0, B)
        value = tl.load(x + row * SIZE + i, mask=i < SIZE, other=0.0)
        place = i // HW * PLANE + i % HW // W * PITCH + i % W + BEGIN
        tl.store(out + n.to(tl.int64) * ROOM + place, value, mask=i < SIZE)


def _forward(
    x: at, vectors: at, owner: at, ends: at, out: at, chosen: at, clients: at, stride: at,
    FIRST: constexpr, IN: constexpr, OUT: constexpr, KH: constexpr, KW: constexpr,
    ROOM: constexpr, PLANE: constexpr, PITCH: constexpr, PH: constexpr, PW: constexpr,
    TO_ROOM: constexpr, TO_PLANE: constexpr, TO_PITCH: constexpr, TO_BEGIN: constexpr,
    HOW: constexpr, TURN: constexpr, BO: constexpr, BP: constexpr, BK: constexpr,
) -> None:  # fmt: skip
    """A convolution at the four positions of each window, of which the largest stays if it is positive."""
    n = tl.program_id(0)
    if n < tl.load(ends + clients):
        client = tl.load(owner + n)
        own = vectors + client.to(tl.int64) * stride + FIRST
        o = tl.arange(0, BO)
        p = tl.program_id(1) * BP + tl.arange(0, BP)
        inside = p < PH * PW
        window = tl.where(inside, p // PW * (2 * PITCH) + p % PW * 2, 0)
        source = x + n.to(tl.int64) * ROOM
        first = tl.zeros((BP, BO) if TURN else (BO, BP), dtype=tl.float32)
        second = tl.zeros((BP, BO) if TURN else (BO, BP), dtype=tl.float32)
        third = tl.zeros((BP, BO) if TURN else (BO, BP), dtype=tl.float32)
        fourth = tl.zeros((BP, BO) if TURN else (BO, BP), dtype=tl.float32)
        for start in range(0, IN * KH * KW, BK):
            k = start + tl.arange(0, BK)
            real = k < IN * KH * KW
            tap = tl.where(real, k // (KH * KW) * PLANE + k % (KH * KW) // KW * PITCH + k % KW, 0)
            known = (o < OUT)[:, None] & real[None, :]
            weight = tl.load(own + o[:, None] * (IN * KH * KW) + k[None, :], mask=known, other=0.0)
            seen = source + tap[:, None] + window[None, :]
            first = _turned(weight, tl.load(seen), first, HOW, TURN)
            second = _turned(weight, tl.load(seen + 1), second, HOW, TURN)
            third = _turned(weight, tl.load(seen + PITCH), third, HOW, TURN)
            fourth = _turned(weight, tl.load(seen + PITCH + 1), fourth, HOW, TURN)
        first = _upright(first, TURN)
        second = _upright(second, TURN)
        third = _upright(third, TURN)
        fourth = _upright(fourth, TURN)
        best = first
        which = tl.zeros((BO, BP), dtype=tl.int32)
        better = (second > best) | (second != second)
        best = tl.where(better, second, best)
        which = tl.where(better, 1, which)
        better = (third > best) | (third != third)
        best = tl.where(better, third, best)
        which = tl.where(better, 2, which)
        better = (fourth > best) | (fourth != fourth)
        best = tl.where(better, fourth, best)
        which = tl.where(better, 3, which)
        best += tl.load(own + OUT * IN * KH * KW + o, mask=o < OUT, other=0.0)[:, None]
        which = tl.where(best <= 0, 4, which)
        best = tl.where(best <= 0, 0.0, best)
        stays = (o < OUT)[:, None] & inside[None, :]
        place = o[:, None] * TO_PLANE + (p // PW * TO_PITCH + p % PW + TO_BEGIN)[None, :]
        tl.store(out + n.to(tl.int64) * TO_ROOM + place, best, mask=stays)
        number = o[:, None] * (PH * PW) + p[None, :]
        tl.store(chosen + n.to(tl.int64) * (OUT * PH * PW) + number, which.to(tl.uint8), mask=stays)


def _head(
    features: at, vectors: at, y: at, rows: at, owner: at, ends: at, chosen: at, errors: at, out: at, squares: at,
    clients: at, stride: at,
    FIRST: constexpr, F: constexpr, CLASSES: constexpr, PP: constexpr, PW: constexpr,
    TO_ROOM: constexpr, TO_PLANE: constexpr, TO_PITCH: constexpr, TO_BEGIN: constexpr,
    PARTS: constexpr, PART: constexpr, BC: constexpr, BF: constexpr,
) -> None:  # fmt: skip
    """Logits, the error of each, its way back to the last convolution, and the squared norm of the linear layer's."""
    n = tl.program_id(0)
    if n < tl.load(ends + clients):
        client = tl.load(owner + n)
        own = vectors + client.to(tl.int64) * stride + FIRST
        mine = features + n.to(tl.int64) * F
        c = tl.arange(0, BC)
        sums = tl.zeros((BC, BF), dtype=tl.float32)
        length = tl.zeros((BF,), dtype=tl.float64)
        for start in range(0, F, BF):
            i = start + tl.arange(0, BF)
            value = tl.load(mine + i, mask=i < F, other=0.0)
            known = (c < CLASSES)[:, None] & (i < F)[None, :]
            sums += tl.load(own + c[:, None] * F + i[None, :], mask=known, other=0.0) * value[None, :]
            exact = value.to(tl.float64)
            length += exact * exact
        logits = tl.sum(sums, axis=1) + tl.load(own + CLASSES * F + c, mask=c < CLASSES, other=0.0)
        logits = tl.where(c < CLASSES, logits, float("-inf"))
        power = tl.exp(logits - tl.max(logits, axis=0))
        label = tl.load(y + tl.load(rows + n))
        error = power / tl.sum(power, axis=0) - tl.where(c == label, 1.0, 0.0)
        error = tl.where(c < CLASSES, error, 0.0)
        tl.store(errors + n * CLASSES + c, error, mask=c < CLASSES)
        exact = error.to(tl.float64)
        square = tl.sum(exact * exact, axis=0) * (tl.sum(length, axis=0) + 1.0)
        tl.store(squares + n * PARTS + PART, square)
        target = out + n.to(tl.int64) * TO_ROOM + TO_BEGIN
        for start in range(0, F, BF):
            i = start + tl.arange(0, BF)
            known = (c < CLASSES)[:, None] & (i < F)[None, :]
            weight = tl.load(own + c[:, None] * F + i[None, :], mask=known, other=0.0)
            back = tl.sum(weight * error[:, None], axis=0)
            which = tl.load(chosen + n.to(tl.int64) * F + i, mask=i < F, other=4).to(tl.int32)
            place = target + i // PP * TO_PLANE + i % PP // PW * (2 * TO_PITCH) + i % PW * 2
            for tap in tl.static_range(4):
                tl.store(place + tap // 2 * TO_PITCH + tap % 2, tl.where(which == tap, back, 0.0), mask=i < F)


def _back(
    d: at, vectors: at, owner: at, ends: at, out: at, clients: at, stride: at,
    FIRST: constexpr, IN: constexpr, OUT: constexpr, KH: constexpr, KW: constexpr,
    ROOM: constexpr, PLANE: constexpr, PITCH: constexpr, BEGIN: constexpr, H: constexpr,
    HOW: constexpr, BI: constexpr, BP: constexpr, BK: constexpr,
) -> None:  # fmt: skip
    """From the gradient for a convolution's output, that for its input, each column of taps by itself.

    What is read once serves all columns of taps; they are shifted against each other only when they are added.
    """
    n = tl.program_id(0)
    if n < tl.load(ends + clients):
        client = tl.load(owner + n)
        own = vectors + client.to(tl.int64) * stride + FIRST
        c = tl.arange(0, BI)
        p = tl.program_id(1) * BP + tl.arange(0, BP)
        source = d + n.to(tl.int64) * ROOM + BEGIN
        first = tl.zeros((BI, BP), dtype=tl.float32)
        second = tl.zeros((BI, BP), dtype=tl.float32)
        third = tl.zeros((BI, BP), dtype=tl.float32)
        fourth = tl.zeros((BI, BP), dtype=tl.float32)
        fifth = tl.zeros((BI, BP), dtype=tl.float32)
        for start in range(0, OUT * KH, BK):
            k = start + tl.arange(0, BK)
            real = k < OUT * KH
            o = k // KH
            row = k % KH
            known = (c < IN)[:, None] & real[None, :]
            weight = own + (o * (IN * KH * KW) + row * KW)[None, :] + c[:, None] * (KH * KW)
            arrived = tl.load(source + tl.where(real, o * PLANE - row * PITCH, 0)[:, None] + p[None, :])
            first = _product(tl.load(weight, mask=known, other=0.0), arrived, first, HOW)
            if KW > 1:
                second = _product(tl.load(weight + 1, mask=known, other=0.0), arrived, second, HOW)
            if KW > 2:
                third = _product(tl.load(weight + 2, mask=known, other=0.0), arrived, third, HOW)
            if KW > 3:
                fourth = _product(tl.load(weight + 3, mask=known, other=0.0), arrived, fourth, HOW)
            if KW > 4:
                fifth = _product(tl.load(weight + 4, mask=known, other=0.0), arrived, fifth, HOW)
        stays = (c < IN)[:, None] & (p < H * PITCH)[None, :]
        target = out + n.to(tl.int64) * (KW * IN * H * PITCH) + c[:, None] * (H * PITCH) + p[None, :]
        tl.store(target, first, mask=stays)
        if KW > 1:
            tl.store(target + IN * H * PITCH, second, mask=stays)
        if KW > 2:
            tl.store(target + 2 * IN * H * PITCH, third, mask=stays)
        if KW > 3:
            tl.store(target + 3 * IN * H * PITCH, fourth, mask=stays)
        if KW > 4:
            tl.store(target + 4 * IN * H * PITCH, fifth, mask=stays)


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
            acc = _product(tl.load(seen + start), tl.trans(error), acc, HOW)
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
                more += (_product(rows[tap // KW], tl.trans(columns[tap % KW]), found[tap], HOW),)
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


def _factors(
    squares: at, clips: at, owner: at, ends: at, out: at, clients: at, margin: at,
    PARTS: constexpr, BQ: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """min(1, clip / norm), rounded down; zero where the norm is not finite."""
    n = tl.program_id(0) * B + tl.arange(0, B)
    live = n < tl.load(ends + clients)
    q = tl.arange(0, BQ)
    parts = tl.load(squares + n[:, None] * PARTS + q[None, :], mask=live[:, None] & (q < PARTS)[None, :], other=0.0)
    norm = tl.sqrt(tl.sum(parts, axis=1))
    bound = tl.load(clips + tl.load(owner + n, mask=live, other=0)) * margin
    exact = tl.where(norm > bound, bound / norm, 1.0)
    exact = tl.where(norm - norm == 0, exact, 0.0)
    near = exact.to(tl.float32)
    bits = near.to(tl.int32, bitcast=True)
    below = (bits - 1).to(tl.float32, bitcast=True)
    tl.store(out + n, tl.where(near.to(tl.float64) > exact, below, near), mask=live)


def _gather(
    each: at, factors: at, ends: at, order: at, total: at, stride: at,
    SIZE: constexpr, ADD: constexpr, BN: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """Each client's sum of gradients times factors, brought to the vector's order."""
    client = tl.program_id(0)
    j = tl.program_id(1) * B + tl.arange(0, B)
    begin = tl.load(ends + client)
    end = tl.load(ends + client + 1)
    acc = tl.zeros((BN, B), dtype=tl.float32)
    for start in range(begin, end, BN):
        n = start + tl.arange(0, BN)
        factor = tl.load(factors + n, mask=n < end, other=0.0)
        wanted = (factor > 0)[:, None] & (j < SIZE)[None, :]
        value = tl.load(each + n.to(tl.int64)[:, None] * SIZE + j[None, :], mask=wanted, other=0.0)
        acc += factor[:, None] * value
    found = tl.sum(acc, axis=0)
    target = total + client.to(tl.int64) * stride + tl.load(order + j, mask=j < SIZE, other=0)
    if ADD:
        found += tl.load(target, mask=j < SIZE, other=0.0)
    tl.store(target, found, mask=j < SIZE)


def _outer(
    errors: at, features: at, factors: at, ends: at, total: at, stride: at,
    FIRST: constexpr, F: constexpr, CLASSES: constexpr, ADD: constexpr, BC: constexpr, BN: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """The same for the linear layer, whose gradients are products of an error and the features."""
    client = tl.program_id(0)
    i = tl.program_id(1) * B + tl.arange(0, B)
    c = tl.arange(0, BC)
    begin = tl.load(ends + client)
    end = tl.load(ends + client + 1)
    acc = tl.zeros((BC, B), dtype=tl.float32)
    shifts = tl.zeros((BC, BN), dtype=tl.float32)
    for start in range(begin, end, BN):
        n = start + tl.arange(0, BN)
        factor = tl.load(factors + n, mask=n < end, other=0.0)
        wanted = factor > 0
        error = tl.load(
            errors + n[None, :] * CLASSES + c[:, None], mask=wanted[None, :] & (c < CLASSES)[:, None], other=0.0
        )
        scaled = error * factor[None, :]
        # Below the smallest normal number rounding is no longer relative, and a huge input would make it large again.
        scaled = tl.where(tl.abs(scaled) < 1.1754943508222875e-38, 0.0, scaled)
        shifts += scaled
        value = tl.load(
            features + n.to(tl.int64)[:, None] * F + i[None, :], mask=wanted[:, None] & (i < F)[None, :], other=0.0
        )
        acc = tl.dot(scaled, value, acc, input_precision="ieee")
    own = total + client.to(tl.int64) * stride + FIRST
    known = (c < CLASSES)[:, None] & (i < F)[None, :]
    target = own + c[:, None] * F + i[None, :]
    if ADD:
        acc += tl.load(target, mask=known, other=0.0)
    tl.store(target, acc, mask=known)
    if tl.program_id(1) == 0:
        shift = tl.sum(shifts, axis=1)
        if ADD:
            shift += tl.load(own + CLASSES * F + c, mask=c < CLASSES, other=0.0)
        tl.store(own + CLASSES * F + c, shift, mask=c < CLASSES)


_product, _turned, _upright, _nothing = (triton.jit(f) for f in (_product, _turned, _upright, _nothing))
FETCH, FORWARD, HEAD, BACK, FOLD, EACH, EACH_SHIFTED = (
    triton.jit(f) for f in (_fetch, _forward, _head, _back, _fold, _each, _each_shifted)
)
FACTORS, GATHER, OUTER = (triton.jit(f) for f in (_factors, _gather, _outer))
