"""Sum kernels: from the squares of each example's gradient to clip factors, and to each client's clipped sum.

See `hush.training.gpu.pooled_cnn.forward_kernels` for how examples lie.

Guarantees:
    - Those of `hush.training.gpu.pooled_cnn.forward_kernels`.
    - Sums over examples are float64, products included.

Edge cases:
    - Those of `hush.training.gpu.pooled_cnn.forward_kernels`.
"""

from __future__ import annotations

from hush.training.gpu.triton_language import at, constexpr, tl, triton


def _factor(parts: at, bound: at) -> at:
    """min(1, clip / norm), rounded down; zero where the norm is not finite or above 2^100 clips."""
    norm = tl.sqrt(tl.sum(parts, axis=1))
    exact = tl.where(norm > bound, bound / norm, 1.0)
    exact = tl.where((norm - norm == 0) & (norm * 7.888609052210118e-31 <= bound), exact, 0.0)
    near = exact.to(tl.float32)
    bits = near.to(tl.int32, bitcast=True)
    below = (bits - 1).to(tl.float32, bitcast=True)
    return tl.where(near.to(tl.float64) > exact, below, near)


def _factors(
    squares: at, clips: at, owner: at, ends: at, out: at, clients: at, margin: at,
    PARTS: constexpr, BQ: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """The clip factor of each example."""
    n = tl.program_id(0) * B + tl.arange(0, B)
    live = n < tl.load(ends + clients)
    q = tl.arange(0, BQ)
    parts = tl.load(squares + n[:, None] * PARTS + q[None, :], mask=live[:, None] & (q < PARTS)[None, :], other=0.0)
    bound = tl.load(clips + tl.load(owner + n, mask=live, other=0)) * margin
    tl.store(out + n, _factor(parts, bound), mask=live)


def _summed(
    each: at, factors: at, begin: at, end: at, j: at, bound: at,
    SIZE: constexpr, PARTS: constexpr, BQ: constexpr, BN: constexpr, B: constexpr,
) -> at:  # fmt: skip
    """A client's sum of gradients times factors; `factors` are squares, where PARTS says how many."""
    acc = tl.zeros((BN, B), dtype=tl.float64)
    for start in range(begin, end, BN):
        n = start + tl.arange(0, BN)
        factor = _factors_of(factors, n, end, bound, PARTS, BQ)
        wanted = (factor > 0)[:, None] & (j < SIZE)[None, :]
        value = tl.load(each + n.to(tl.int64)[:, None] * SIZE + j[None, :], mask=wanted, other=0.0)
        acc += factor.to(tl.float64)[:, None] * value.to(tl.float64)
    return tl.sum(acc, axis=0)


def _factors_of(factors: at, n: at, end: at, bound: at, PARTS: constexpr, BQ: constexpr) -> at:
    """The factors of these examples, zero beyond the end; `factors` are squares, where PARTS says how many."""
    if PARTS:
        q = tl.arange(0, BQ)
        known = (n < end)[:, None] & (q < PARTS)[None, :]
        found = _factor(tl.load(factors + n[:, None] * PARTS + q[None, :], mask=known, other=0.0), bound)
        found = tl.where(n < end, found, 0.0)
    else:
        found = tl.load(factors + n, mask=n < end, other=0.0)
    return found


def _outer_products(
    errors: at, features: at, factors: at, begin: at, end: at, i: at, bound: at,
    F: constexpr, CLASSES: constexpr, PARTIAL: constexpr, PARTS: constexpr, BQ: constexpr, BC: constexpr,
    BN: constexpr, B: constexpr,
) -> at:  # fmt: skip
    """The same for the linear layer, whose gradients are products of an error and the features; and for its biases.

    Partial sums of BN rows are float32 where rows times BN + 1 is at most PARTIAL (`hush.privacy.sensitivity`).
    """
    c = tl.arange(0, BC)
    acc = tl.zeros((BC, B), dtype=tl.float64)
    shift = tl.zeros((BC,), dtype=tl.float64)
    # Below the smallest normal number rounding is no longer relative, and a huge input would make it large again.
    if (end - begin) * (BN + 1) <= PARTIAL:
        for start in range(begin, end, BN):
            n = start + tl.arange(0, BN)
            factor = _factors_of(factors, n, end, bound, PARTS, BQ)
            wanted = factor > 0
            known = wanted[None, :] & (c < CLASSES)[:, None]
            scaled = tl.load(errors + n[None, :] * CLASSES + c[:, None], mask=known, other=0.0) * factor[None, :]
            scaled = tl.where(tl.abs(scaled) < 1.1754943508222875e-38, 0.0, scaled)
            inside = wanted[:, None] & (i < F)[None, :]
            value = tl.load(features + n.to(tl.int64)[:, None] * F + i[None, :], mask=inside, other=0.0)
            acc += tl.dot(scaled, value, input_precision="ieee").to(tl.float64)
            shift += tl.sum(scaled.to(tl.float64), axis=1)
    else:
        for row in range(begin, end):
            factor = tl.sum(_factors_of(factors, row + tl.zeros((1,), dtype=tl.int32), end, bound, PARTS, BQ), axis=0)
            known = (c < CLASSES) & (factor + tl.zeros((BC,), dtype=tl.float32) > 0)
            scaled = tl.load(errors + row * CLASSES + c, mask=known, other=0.0) * factor
            scaled = tl.where(tl.abs(scaled) < 1.1754943508222875e-38, 0.0, scaled).to(tl.float64)
            inside = (i < F) & (factor + tl.zeros((B,), dtype=tl.float32) > 0)
            value = tl.load(features + tl.cast(row, tl.int64) * F + i, mask=inside, other=0.0)
            acc += scaled[:, None] * value.to(tl.float64)[None, :]
            shift += scaled
    return acc, shift


def _gather(
    each: at, factors: at, ends: at, order: at, total: at, stride: at,
    SIZE: constexpr, ADD: constexpr, BN: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """Each client's sum of gradients times factors, brought to the vector's order."""
    client = tl.program_id(0)
    j = tl.program_id(1) * B + tl.arange(0, B)
    begin = tl.load(ends + client)
    end = tl.load(ends + client + 1)
    found = _summed(each, factors, begin, end, j, 0.0, SIZE, 0, 1, BN, B)
    target = total + client.to(tl.int64) * stride + tl.load(order + j, mask=j < SIZE, other=0)
    if ADD:
        found += tl.load(target, mask=j < SIZE, other=0.0)
    tl.store(target, found, mask=j < SIZE)


def _outer(
    errors: at, features: at, factors: at, ends: at, total: at, stride: at,
    FIRST: constexpr, F: constexpr, CLASSES: constexpr, ADD: constexpr, PARTIAL: constexpr, BC: constexpr,
    BN: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """The same for the linear layer."""
    client = tl.program_id(0)
    i = tl.program_id(1) * B + tl.arange(0, B)
    c = tl.arange(0, BC)
    begin = tl.load(ends + client)
    end = tl.load(ends + client + 1)
    acc, shift = _outer_products(errors, features, factors, begin, end, i, 0.0, F, CLASSES, PARTIAL, 0, 1, BC, BN, B)
    own = total + client.to(tl.int64) * stride + FIRST
    known = (c < CLASSES)[:, None] & (i < F)[None, :]
    target = own + c[:, None] * F + i[None, :]
    if ADD:
        acc += tl.load(target, mask=known, other=0.0)
    tl.store(target, acc, mask=known)
    if tl.program_id(1) == 0:
        if ADD:
            shift += tl.load(own + CLASSES * F + c, mask=c < CLASSES, other=0.0)
        tl.store(own + CLASSES * F + c, shift, mask=c < CLASSES)


def _moved(vectors: at, noise: at, places: at, sums: at, about_sum: at, about_noise: at, known: at) -> None:
    """Take the scaled sum and the scaled noise off parameters, in float64 until both are added."""
    step = about_sum * sums + about_noise * tl.load(noise + places, mask=known, other=0.0).to(tl.float64)
    moved = tl.load(vectors + places, mask=known, other=0.0).to(tl.float64) - step
    tl.store(vectors + places, moved.to(tl.float32), mask=known)


def _finish(
    each: at, errors: at, features: at, squares: at, clips: at, ends: at, order: at, vectors: at, noise: at,
    scales: at, clients: at, stride: at, margin: at, queue: at, place: at, advance: at,
    SIZE: constexpr, F: constexpr, CLASSES: constexpr, PARTIAL: constexpr, PARTS: constexpr, BQ: constexpr,
    BC: constexpr, BN: constexpr, B: constexpr, OUTER_BN: constexpr, OUTER_B: constexpr, QUEUED: constexpr,
) -> None:  # fmt: skip
    """What `_factors`, `_gather`, `_outer` and `_move` do for a batch in one piece; sums are not written.

    With a queue noise is where the queue says, and the queue advances.
    """
    client = tl.program_id(0)
    part = tl.program_id(1)
    about_sum = tl.load(scales + client)
    about_noise = tl.load(scales + clients + client)
    own = vectors + client.to(tl.int64) * stride
    drawn = noise + client.to(tl.int64) * stride
    if QUEUED:
        # Other programs read the place of the step beside the batch, not in the queue.
        if (client == 0) & (part == 0):
            tl.store(queue + 1, tl.load(place).to(tl.int64) + tl.load(advance))
        step = client * tl.load(queue + 3) + tl.load(place + 1)
        drawn = tl.load(queue + 2).to(tl.pointer_type(tl.float32)) + step * stride
    # Who does not move has no noise.
    if (about_sum != 0) | (about_noise != 0):
        begin = tl.load(ends + client)
        end = tl.load(ends + client + 1)
        bound = tl.load(clips + client) * margin
        GATHERING: constexpr = (SIZE + B - 1) // B
        if part < GATHERING:
            j = part * B + tl.arange(0, B)
            found = _summed(each, squares, begin, end, j, bound, SIZE, PARTS, BQ, BN, B)
            _moved(own, drawn, tl.load(order + j, mask=j < SIZE, other=0), found, about_sum, about_noise, j < SIZE)
        else:
            i = (part - GATHERING) * OUTER_B + tl.arange(0, OUTER_B)
            c = tl.arange(0, BC)
            acc, shift = _outer_products(
                errors, features, squares, begin, end, i, bound, F, CLASSES, PARTIAL, PARTS, BQ, BC, OUTER_BN, OUTER_B
            )
            known = (c < CLASSES)[:, None] & (i < F)[None, :]
            _moved(own, drawn, SIZE + c[:, None] * F + i[None, :], acc, about_sum, about_noise, known)
            if part == GATHERING:
                _moved(own, drawn, SIZE + CLASSES * F + c, shift, about_sum, about_noise, c < CLASSES)


def _move(vectors: at, sums: at, noise: at, scales: at, clients: at, SIZE: constexpr, B: constexpr) -> None:
    """Take each client's scaled sum and scaled noise off its parameters."""
    client = tl.program_id(0)
    j = tl.program_id(1) * B + tl.arange(0, B)
    first = client.to(tl.int64) * SIZE
    found = tl.load(sums + first + j, mask=j < SIZE, other=0.0)
    about_sum, about_noise = tl.load(scales + client), tl.load(scales + clients + client)
    _moved(vectors + first, noise + first, j, found, about_sum, about_noise, j < SIZE)


_factor, _factors_of, _summed, _outer_products, _moved = (
    triton.jit(f) for f in (_factor, _factors_of, _summed, _outer_products, _moved)
)
FACTORS, GATHER, OUTER, MOVE, FINISH = (triton.jit(f) for f in (_factors, _gather, _outer, _move, _finish))
