"""Forward kernels of a pooled CNN: one program per example or part of it.

Examples lie client by client; `owner` says whose each is and `ends` (clients + 1 numbers) where each client's begin.
Buffers are those of `hush.training.gpu.pooled_cnn.network`: what lies between the numbers is zero and is never written.

Guarantees:
    - Those of `hush.training.gpu.kernels`: float32 in and out, squares in float64, no number of one example in the
      results of another; what is not finite counts in the squares alone, and is given out as zero.
    - Clip factors are those of `hush.training.clipping`, and weighted sums are float32 without shorter
      products.

Edge cases:
    - Programs beyond the last example do nothing.
    - This module can be imported only where Triton is installed.
"""

from __future__ import annotations

from hush.training.gpu.triton_language import at, constexpr, product, tl, triton


def _turned(left: at, right: at, total: at, HOW: constexpr, TURN: constexpr) -> at:
    """The product, or its transpose: which is faster depends on the sizes."""
    return product(tl.trans(right), tl.trans(left), total, HOW) if TURN else product(left, right, total, HOW)


def _upright(total: at, TURN: constexpr) -> at:
    return tl.trans(total) if TURN else total


def _fetch(
    x: at, rows: at, ends: at, out: at, vectors: at, order: at, laid: at, clients: at, stride: at, number: at,
    LAID: constexpr, LAYING: constexpr,
    SIZE: constexpr, W: constexpr, HW: constexpr, ROOM: constexpr, PLANE: constexpr, PITCH: constexpr,
    BEGIN: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """Inputs to their places between zeros; programs beyond the examples put weights into another order."""
    n = tl.program_id(0)
    if n >= number:
        if tl.program_id(1) == 0:
            _laid(vectors, order, laid, n - number, stride, LAID, LAYING, B)
    elif n < tl.load(ends + clients):
        row = tl.load(rows + n).to(tl.int64)
        i = tl.program_id(1) * B + tl.arange(0, B)
        value = tl.load(x + row * SIZE + i, mask=i < SIZE, other=0.0)
        place = i // HW * PLANE + i % HW // W * PITCH + i % W + BEGIN
        tl.store(out + n.to(tl.int64) * ROOM + place, value, mask=i < SIZE)


def _take(
    x: at, queue: at, batch: at, out: at, vectors: at, order: at, laid: at, clients: at, stride: at, slots: at,
    number: at,
    LAID: constexpr, LAYING: constexpr,
    SIZE: constexpr, W: constexpr, HW: constexpr, ROOM: constexpr, PLANE: constexpr, PITCH: constexpr,
    BEGIN: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """The next batch of a queue, and what `_fetch` does with it.

    A queue is the address of packed batches, which of them is next, the address of noise, and how many steps of it
    there are for each client. After the batch two numbers are left: which it is, and where its noise lies.
    """
    n = tl.program_id(0)
    step = tl.load(queue + 1)
    length = clients + 1 + 2 * slots
    packed = tl.load(queue).to(tl.pointer_type(tl.int32)) + step * length
    if (n == 0) & (tl.program_id(1) == 0):
        for start in range(0, clients + 1, B):
            i = start + tl.arange(0, B)
            tl.store(batch + i, tl.load(packed + i, mask=i <= clients, other=0), mask=i <= clients)
        tl.store(batch + length, step.to(tl.int32))
        tl.store(batch + length + 1, (step % tl.load(queue + 3)).to(tl.int32))
    if n >= number:
        if tl.program_id(1) == 0:
            _laid(vectors, order, laid, n - number, stride, LAID, LAYING, B)
    elif n < tl.load(packed + clients):
        rows = packed + clients + 1
        row = tl.load(rows + n)
        if tl.program_id(1) == 0:
            tl.store(batch + clients + 1 + n, row)
            tl.store(batch + clients + 1 + slots + n, tl.load(rows + slots + n))
        i = tl.program_id(1) * B + tl.arange(0, B)
        value = tl.load(x + row.to(tl.int64) * SIZE + i, mask=i < SIZE, other=0.0)
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
        own = vectors + tl.load(owner + n).to(tl.int64) * stride + FIRST
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


def _laid(
    vectors: at, order: at, laid: at, number: at, stride: at, SIZE: constexpr, PARTS: constexpr, B: constexpr
) -> None:  # fmt: skip
    """A part of a client's weights of convolutions, in the order in which gradients of each example come."""
    client = number // PARTS
    j = number % PARTS * B + tl.arange(0, B)
    place = tl.load(order + j, mask=j < SIZE, other=0)
    value = tl.load(vectors + client.to(tl.int64) * stride + place, mask=j < SIZE, other=0.0)
    tl.store(laid + client.to(tl.int64) * SIZE + j, value, mask=j < SIZE)


_turned, _upright, _laid = (triton.jit(f) for f in (_turned, _upright, _laid))
FETCH, TAKE, FORWARD, HEAD = (triton.jit(f) for f in (_fetch, _take, _forward, _head))
