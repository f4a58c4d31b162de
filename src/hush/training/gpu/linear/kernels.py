"""Kernels of a linear layer: errors, clip factors, clipped sums and the update rule, for all clients of a step at once.

Rows lie client by client, as `hush.training.gpu.sampling` packs them. Clients are those that still train, the first
ones of a group.

Guarantees:
    - Those of `hush.training.clipped_sum.ClippedSum`. Logits, norms, clip factors, products and sums are float64; an
      error (softmax - label, or what another loss has) is rounded to float32 once, and clipped as it is then.
    - Nothing is added atomically: the same rows give the same sums, to the last bit.

Edge cases:
    - What a row that is left out holds is replaced by zeros: no factor of zero meets a NaN.
    - A client without rows has a sum of zero.
    - This module can be imported only where Triton is installed.
"""

from __future__ import annotations

from hush.training.gpu.triton_language import at, constexpr, tl, triton


def _product(left: at, right: at, total: at) -> at:
    """The total and a product, in float64."""
    return tl.dot(left, right, total, input_precision="ieee", out_dtype=tl.float64)


_product = triton.jit(_product)


def _errors(
    outputs: at, y: at, row: at, real: at, c: at, LOSS: constexpr, CLASSES: constexpr, TARGETS: constexpr
) -> at:
    """The gradient of each row's loss for the outputs, rows x classes; zero beyond the classes."""
    known = real[:, None] & (c < CLASSES)[None, :]
    if LOSS == "softmax":
        label = tl.load(y + row, mask=real, other=0)
        logits = tl.where((c < CLASSES)[None, :], outputs, float("-inf"))
        share = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        share = share / tl.sum(share, axis=1)[:, None]
        error = tl.where(label[:, None] == c[None, :], share - 1.0, share)
    else:
        if TARGETS == 1:
            target = tl.load(y + row, mask=real, other=0.0)[:, None]
        else:
            target = tl.load(y + row[:, None] * TARGETS + c[None, :], mask=known, other=0.0)
        if LOSS == "sigmoid":
            error = (1.0 / (1.0 + tl.exp(-outputs)) - target) * (1.0 / CLASSES)
        else:
            error = outputs - target
            if LOSS == "huber":
                # Comparisons keep what is not a number.
                error = tl.where(error > 1.0, 1.0, tl.where(error < -1.0, -1.0, error)) * (1.0 / CLASSES)
            else:
                error = error * (2.0 / CLASSES)
    return tl.where(known, error, 0.0)


_errors = triton.jit(_errors)


def _factors(error: at, squares: at, clip: at, real: at, MARGIN: constexpr) -> at:
    """min(1, clip / norm); zero where the norm is not finite, or it or the input's is above 2^100 clips."""
    norm = tl.sqrt(tl.sum(error * error, axis=1) * squares)
    bound = clip * MARGIN
    exact = tl.where(norm > bound, bound / norm, 1.0)
    least = 7.888609052210118e-31
    keep = (norm - norm == 0) & (norm * least <= clip) & (tl.sqrt(squares) * least <= clip) & real
    return tl.where(keep, exact, 0.0)


_factors = triton.jit(_factors)


def _fused(
    x: at, y: at, points: at, from_start: at, means: at, packed: at, offset: at, clips: at, out: at,
    clients: at, size: at, ends: at, length: at,
    F: constexpr, CLASSES: constexpr, TARGETS: constexpr, WEIGHT: constexpr, SHIFT: constexpr, BIASED: constexpr,
    CENTRED: constexpr, LOSS: constexpr, MARGIN: constexpr, BI: constexpr, BC: constexpr, BN: constexpr,
) -> None:  # fmt: skip
    """The clipped sum of some of a client's rows, each of which is read once: for inputs that fit in registers."""
    client = tl.program_id(0)
    part = tl.program_id(1)
    begin = tl.load(packed + offset + client) + part * length
    end = tl.minimum(tl.load(packed + offset + client + 1), begin + length)
    if begin < end:
        i = tl.arange(0, BI)
        c = tl.arange(0, BC)
        used = (i < F)[:, None] & (c < CLASSES)[None, :]
        own = points + (tl.load(from_start + client).to(tl.int64) * clients + client) * size
        weight = tl.load(own + WEIGHT + c[None, :] * F + i[:, None], mask=used, other=0.0).to(tl.float64)
        first = tl.zeros((BN, BC), dtype=tl.float64)
        if BIASED:
            first += tl.load(own + SHIFT + c, mask=c < CLASSES, other=0.0).to(tl.float64)[None, :]
        if CENTRED:
            mean = tl.load(means + client.to(tl.int64) * F + i, mask=i < F, other=0.0)
        clip = tl.load(clips + client)
        acc = tl.zeros((BC, BI), dtype=tl.float64)
        total = tl.zeros((BC,), dtype=tl.float64)
        rows = packed + offset + ends
        for start in range(begin, end, BN):
            n = start + tl.arange(0, BN)
            real = n < end
            row = tl.load(rows + n, mask=real, other=0).to(tl.int64)
            seen = tl.load(x + row[:, None] * F + i[None, :], mask=real[:, None] & (i < F)[None, :], other=0.0)
            if CENTRED:
                seen = tl.where(real[:, None], seen - mean[None, :], 0.0)
            value = seen.to(tl.float64)
            outputs = _product(value, weight, first)
            error = _errors(outputs.to(tl.float32), y, row, real, c, LOSS, CLASSES, TARGETS).to(tl.float64)
            squares = tl.sum(value * value, axis=1)
            if BIASED:
                squares += 1.0
            factor = _factors(error, squares, clip, real, MARGIN)
            keep = factor > 0
            scaled = tl.where(keep[:, None], error * factor[:, None], 0.0)
            value = tl.where(keep[:, None], value, 0.0)
            acc = _product(tl.trans(scaled), value, acc)
            if BIASED:
                total += tl.sum(scaled, axis=0)
        target = out + (part.to(tl.int64) * clients + client) * size
        tl.store(target + WEIGHT + c[:, None] * F + i[None, :], acc, mask=(c < CLASSES)[:, None] & (i < F)[None, :])
        if BIASED:
            tl.store(target + SHIFT + c, total, mask=c < CLASSES)


def _forward(
    x: at, y: at, points: at, from_start: at, means: at, packed: at, offset: at, clips: at, scaled: at,
    clients: at, size: at, ends: at,
    F: constexpr, CLASSES: constexpr, TARGETS: constexpr, WEIGHT: constexpr, SHIFT: constexpr, BIASED: constexpr,
    CENTRED: constexpr, LOSS: constexpr, MARGIN: constexpr, BI: constexpr, BC: constexpr, BN: constexpr,
) -> None:  # fmt: skip
    """Each row's error times its clip factor, rows x (classes + 1): the factor comes last."""
    client = tl.program_id(0)
    begin = tl.load(packed + offset + client) + tl.program_id(1) * BN
    end = tl.load(packed + offset + client + 1)
    if begin < end:
        c = tl.arange(0, BC)
        n = begin + tl.arange(0, BN)
        real = n < end
        row = tl.load(packed + offset + ends + n, mask=real, other=0).to(tl.int64)
        own = points + (tl.load(from_start + client).to(tl.int64) * clients + client) * size
        outputs = tl.zeros((BN, BC), dtype=tl.float64)
        squares = tl.zeros((BN,), dtype=tl.float64)
        if BIASED:
            outputs += tl.load(own + SHIFT + c, mask=c < CLASSES, other=0.0).to(tl.float64)[None, :]
            squares += 1.0
        for start in range(0, F, BI):
            i = start + tl.arange(0, BI)
            used = (i < F)[:, None] & (c < CLASSES)[None, :]
            weight = tl.load(own + WEIGHT + c[None, :] * F + i[:, None], mask=used, other=0.0).to(tl.float64)
            seen = tl.load(x + row[:, None] * F + i[None, :], mask=real[:, None] & (i < F)[None, :], other=0.0)
            if CENTRED:
                mean = tl.load(means + client.to(tl.int64) * F + i, mask=i < F, other=0.0)
                seen = tl.where(real[:, None], seen - mean[None, :], 0.0)
            value = seen.to(tl.float64)
            outputs = _product(value, weight, outputs)
            squares += tl.sum(value * value, axis=1)
        error = _errors(outputs.to(tl.float32), y, row, real, c, LOSS, CLASSES, TARGETS).to(tl.float64)
        factor = _factors(error, squares, tl.load(clips + client), real, MARGIN)
        target = scaled + n.to(tl.int64) * (CLASSES + 1)
        product = tl.where((factor > 0)[:, None], error * factor[:, None], 0.0)
        tl.store(target[:, None] + c[None, :], product, mask=real[:, None] & (c < CLASSES)[None, :])
        tl.store(target + CLASSES, factor, mask=real)


def _outer(
    x: at, means: at, packed: at, offset: at, scaled: at, out: at, clients: at, size: at, ends: at, length: at,
    F: constexpr, CLASSES: constexpr, WEIGHT: constexpr, SHIFT: constexpr, BIASED: constexpr, CENTRED: constexpr,
    BI: constexpr, BC: constexpr, BN: constexpr,
) -> None:  # fmt: skip
    """From that the clipped sum of some of a client's rows, for a block of inputs."""
    client = tl.program_id(0)
    part = tl.program_id(2)
    begin = tl.load(packed + offset + client) + part * length
    end = tl.minimum(tl.load(packed + offset + client + 1), begin + length)
    if begin < end:
        i = tl.program_id(1) * BI + tl.arange(0, BI)
        c = tl.arange(0, BC)
        acc = tl.zeros((BC, BI), dtype=tl.float64)
        total = tl.zeros((BC,), dtype=tl.float64)
        for start in range(begin, end, BN):
            n = start + tl.arange(0, BN)
            real = n < end
            row = tl.load(packed + offset + ends + n, mask=real, other=0).to(tl.int64)
            source = scaled + n.to(tl.int64) * (CLASSES + 1)
            keep = tl.load(source + CLASSES, mask=real, other=0.0) > 0
            known = keep[:, None] & (c < CLASSES)[None, :]
            error = tl.load(source[:, None] + c[None, :], mask=known, other=0.0)
            seen = tl.load(x + row[:, None] * F + i[None, :], mask=keep[:, None] & (i < F)[None, :], other=0.0)
            if CENTRED:
                mean = tl.load(means + client.to(tl.int64) * F + i, mask=i < F, other=0.0)
                seen = tl.where(keep[:, None], seen - mean[None, :], 0.0)
            acc = _product(tl.trans(error), seen.to(tl.float64), acc)
            if BIASED:
                total += tl.sum(error, axis=0)
        target = out + (part.to(tl.int64) * clients + client) * size
        tl.store(target + WEIGHT + c[:, None] * F + i[None, :], acc, mask=(c < CLASSES)[:, None] & (i < F)[None, :])
        if BIASED:
            # The programs of the first block of inputs write the biases.
            written = tl.where(tl.program_id(1) == 0, CLASSES, 0)
            tl.store(target + SHIFT + c, total, mask=c < written)


def _move(
    points: at, sums: at, packed: at, offset: at, noise: at, stride: at, drift: at, scales: at,
    clients: at, size: at, length: at, NOISY: constexpr, DRIFTS: constexpr, PULLS: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """Add up each client's partial sums, add its noise, and move it by the update rule, all in float64."""
    client = tl.program_id(0)
    j = tl.program_id(1) * B + tl.arange(0, B)
    known = j < size
    number = tl.load(packed + offset + client + 1) - tl.load(packed + offset + client)
    total = tl.zeros((B,), dtype=tl.float64)
    source = sums + client.to(tl.int64) * size + j
    for part in range(0, tl.cdiv(number, length)):
        total += tl.load(source + tl.cast(part, tl.int64) * clients * size, mask=known, other=0.0)
    step = tl.load(scales + client) * total
    if NOISY:
        drawn = tl.load(noise + client.to(tl.int64) * stride + j, mask=known, other=0.0).to(tl.float64)
        step += tl.load(scales + clients + client) * drawn
    place = client.to(tl.int64) * size + j
    now = tl.load(points + place, mask=known, other=0.0)
    if DRIFTS:
        step += tl.load(drift + place, mask=known, other=0.0).to(tl.float64)
    if PULLS:
        begun = tl.load(points + tl.cast(clients, tl.int64) * size + place, mask=known, other=0.0)
        step += tl.load(scales + 3 * clients + client) * (now - begun).to(tl.float64)
    moved = now.to(tl.float64) - tl.load(scales + 2 * clients + client) * step
    tl.store(points + place, moved.to(tl.float32), mask=known)


_COUNTS = ["offset", "clients", "size", "ends", "length", "stride"]
FUSED, FORWARD, OUTER, MOVE = (
    triton.jit(do_not_specialize=[name for name in _COUNTS if name in f.__annotations__])(f)
    for f in (_fused, _forward, _outer, _move)
)
