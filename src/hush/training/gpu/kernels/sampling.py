"""Sampling kernels: batches on a GPU, Poisson or of a fixed size. Which rows are chosen, and where each goes among
those of its step.

Guarantees:
    - A row is chosen if the 53 highest of its own 64 fair bits are below its client's bar:
      `hush.privacy.noise.RowSampler` decides the same from the same bits.
    - A batch of a fixed size is every set of so many rows with the same probability, but for rows whose 53 bits are
      equal: the same rows as with `hush.privacy.plan.PrivacyPlan.sample` of the same bits.

Edge cases:
    - A client has no rows in the steps that it does not take.
    - This module can be imported only where Triton is installed.
"""

from __future__ import annotations

from hush.training.gpu.triton_language import at, constexpr, tl, triton


def _decide(
    words: at, clients: at, chosen: at, counts: at, first: at, number: at, FIELDS: constexpr, B: constexpr
) -> None:
    """Choose the rows of one client in one step, and count them."""
    client = first + tl.program_id(0)
    step = tl.program_id(1)
    own = clients + client * FIELDS
    if (step < tl.load(own + 1)) & (tl.load(own + 5) < 0):
        samples = tl.load(own).to(tl.int32)
        bar = tl.load(own + 2)
        begin = tl.load(own + 4) + step.to(tl.int64) * samples
        base = tl.load(clients + first * FIELDS + 4)
        total = tl.zeros((B,), dtype=tl.int32)
        for start in range(0, samples, B):
            j = start + tl.arange(0, B)
            word = tl.load(words + (begin - base) + j, mask=j < samples, other=-1)
            inside = (j < samples) & (((word >> 11) & 0x1FFFFFFFFFFFFF) < bar)
            tl.store(chosen + begin + j, inside.to(tl.uint8), mask=j < samples)
            total += inside.to(tl.int32)
        tl.store(counts + step * number + client, tl.sum(total, axis=0))


def _lowest(
    words: at, clients: at, chosen: at, counts: at, first: at, number: at, FIELDS: constexpr, B: constexpr
) -> None:
    """Choose the rows of one client in one step whose bits are the lowest, as many as a fixed batch has."""
    client = first + tl.program_id(0)
    step = tl.program_id(1)
    own = clients + client * FIELDS
    size = tl.load(own + 5)
    if (step < tl.load(own + 1)) & (size >= 0):
        samples = tl.load(own).to(tl.int32)
        begin = tl.load(own + 4) + step.to(tl.int64) * samples
        source = words + (begin - tl.load(clients + first * FIELDS + 4))
        # The largest bar with at most as many rows below it, bit by bit.
        bar = size * 0
        half = bar + 9007199254740992
        below = bar
        for _ in range(54):
            total = tl.zeros((B,), dtype=tl.int32)
            for start in range(0, samples, B):
                j = start + tl.arange(0, B)
                word = (tl.load(source + j, mask=j < samples, other=-1) >> 11) & 0x1FFFFFFFFFFFFF
                total += ((j < samples) & (word < bar + half)).to(tl.int32)
            found = tl.sum(total, axis=0).to(tl.int64)
            fits = found <= size
            bar = tl.where(fits, bar + half, bar)
            below = tl.where(fits, found, below)
            half = half >> 1
        # Of rows with equal bits at the bar, the first ones.
        left = (size - below).to(tl.int32)
        for start in range(0, samples, B):
            j = start + tl.arange(0, B)
            word = (tl.load(source + j, mask=j < samples, other=-1) >> 11) & 0x1FFFFFFFFFFFFF
            tied = ((j < samples) & (word == bar)).to(tl.int32)
            rank = tl.cumsum(tied, axis=0) - tied
            inside = (j < samples) & ((word < bar) | ((tied > 0) & (rank < left)))
            tl.store(chosen + begin + j, inside.to(tl.uint8), mask=j < samples)
            left -= tl.sum(tied, axis=0)
        tl.store(counts + step * number + client, size.to(tl.int32))


def _place(
    chosen: at, clients: at, ends: at, packed: at, number: at, stride: at, rows: at, room: at,
    FIELDS: constexpr, B: constexpr,
) -> None:  # fmt: skip
    """Write the rows of one client in one step to their places, and beside them whose they are."""
    client = tl.program_id(0)
    step = tl.program_id(1)
    own = clients + client * FIELDS
    if step < tl.load(own + 1):
        samples = tl.load(own).to(tl.int32)
        first_row = tl.load(own + 3).to(tl.int32)
        begin = tl.load(own + 4) + step.to(tl.int64) * samples
        place = tl.load(ends + step * (number + 1) + client)
        target = packed + step.to(tl.int64) * stride + rows
        for start in range(0, samples, B):
            j = start + tl.arange(0, B)
            inside = tl.load(chosen + begin + j, mask=j < samples, other=0).to(tl.int32)
            where = place + tl.cumsum(inside, axis=0) - inside
            tl.store(target + where, first_row + j, mask=inside > 0)
            tl.store(target + room + where, tl.zeros((B,), dtype=tl.int32) + client, mask=inside > 0)
            place += tl.sum(inside, axis=0)


DECIDE, LOWEST, PLACE = (triton.jit(f) for f in (_decide, _lowest, _place))
