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


def _factors(
    squares: at, clips: at, owner: at, ends: at, out: at, clients: at, margin: at,
    PARTS: constexpr, BQ: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """min(1, clip / norm), rounded down; zero where the norm is not finite or above 2^100 clips."""
    n = tl.program_id(0) * B + tl.arange(0, B)
    live = n < tl.load(ends + clients)
    q = tl.arange(0, BQ)
    parts = tl.load(squares + n[:, None] * PARTS + q[None, :], mask=live[:, None] & (q < PARTS)[None, :], other=0.0)
    norm = tl.sqrt(tl.sum(parts, axis=1))
    bound = tl.load(clips + tl.load(owner + n, mask=live, other=0)) * margin
    exact = tl.where(norm > bound, bound / norm, 1.0)
    exact = tl.where((norm - norm == 0) & (norm * 7.888609052210118e-31 <= bound), exact, 0.0)
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
    acc = tl.zeros((BN, B), dtype=tl.float64)
    for start in range(begin, end, BN):
        n = start + tl.arange(0, BN)
        factor = tl.load(factors + n, mask=n < end, other=0.0)
        wanted = (factor > 0)[:, None] & (j < SIZE)[None, :]
        value = tl.load(each + n.to(tl.int64)[:, None] * SIZE + j[None, :], mask=wanted, other=0.0)
        acc += factor.to(tl.float64)[:, None] * value.to(tl.float64)
    found = tl.sum(acc, axis=0)
    target = total + client.to(tl.int64) * stride + tl.load(order + j, mask=j < SIZE, other=0)
    if ADD:
        found += tl.load(target, mask=j < SIZE, other=0.0)
    tl.store(target, found, mask=j < SIZE)


def _outer(
    errors: at, features: at, factors: at, ends: at, total: at, stride: at,
    FIRST: constexpr, F: constexpr, CLASSES: constexpr, ADD: constexpr, PARTIAL: constexpr, BC: constexpr,
    BN: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """The same for the linear layer, whose gradients are products of an error and the features.

    Partial sums of BN rows are float32 where rows times BN + 1 is at most PARTIAL (`hush.privacy.sensitivity`).
    """
    client = tl.program_id(0)
    i = tl.program_id(1) * B + tl.arange(0, B)
    c = tl.arange(0, BC)
    begin = tl.load(ends + client)
    end = tl.load(ends + client + 1)
    acc = tl.zeros((BC, B), dtype=tl.float64)
    shift = tl.zeros((BC,), dtype=tl.float64)
    # Below the smallest normal number rounding is no longer relative, and a huge input would make it large again.
    if (end - begin) * (BN + 1) <= PARTIAL:
        for start in range(begin, end, BN):
            n = start + tl.arange(0, BN)
            factor = tl.load(factors + n, mask=n < end, other=0.0)
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
            factor = tl.load(factors + row)
            wanted = factor > 0
            scaled = tl.load(errors + row * CLASSES + c, mask=wanted & (c < CLASSES), other=0.0) * factor
            scaled = tl.where(tl.abs(scaled) < 1.1754943508222875e-38, 0.0, scaled).to(tl.float64)
            value = tl.load(features + tl.cast(row, tl.int64) * F + i, mask=wanted & (i < F), other=0.0)
            acc += scaled[:, None] * value.to(tl.float64)[None, :]
            shift += scaled
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


def _move(vectors: at, sums: at, noise: at, scales: at, clients: at, SIZE: constexpr, B: constexpr) -> None:
    """Take the scaled sum and the scaled noise off each client's parameters, in float64 until both are added."""
    client = tl.program_id(0)
    j = tl.program_id(1) * B + tl.arange(0, B)
    at_j = client.to(tl.int64) * SIZE + j
    known = j < SIZE
    step = tl.load(scales + client) * tl.load(sums + at_j, mask=known, other=0.0)
    step += tl.load(scales + clients + client) * tl.load(noise + at_j, mask=known, other=0.0).to(tl.float64)
    moved = tl.load(vectors + at_j, mask=known, other=0.0).to(tl.float64) - step
    tl.store(vectors + at_j, moved.to(tl.float32), mask=known)


FACTORS, GATHER, OUTER, MOVE = (triton.jit(f) for f in (_factors, _gather, _outer, _move))
