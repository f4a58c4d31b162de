"""The update rule of a step as one kernel: the mean gradient and its noise are added and applied in one pass.

Guarantees:
    - It computes `hush.training.update_rule.UpdateRule.step` in float64, number by number.

Edge cases:
    - This module can be imported only where Triton is installed.
    - A client whose step size is zero is not touched.
"""

from __future__ import annotations

from torch import Tensor

from hush.training.gpu.triton_language import at, constexpr, tl, triton

_BLOCK = 1024


def _update(
    vectors: at, sums: at, noise: at, drift: at, start: at, scales: at, size: at, clients: at,
    DRIFT: constexpr, B: constexpr,
) -> None:  # fmt: skip
    client = tl.program_id(1)
    rate = tl.load(scales + 2 * clients + client)
    if rate != 0:
        i = tl.program_id(0) * B + tl.arange(0, B)
        own = i < size
        place = client.to(tl.int64) * size + i
        now = tl.load(vectors + place, mask=own, other=0.0).to(tl.float64)
        mean = tl.load(scales + client)
        deviation = tl.load(scales + clients + client)
        step = mean * tl.load(sums + place, mask=own, other=0.0)
        step += deviation * tl.load(noise + place, mask=own, other=0.0).to(tl.float64)
        if DRIFT:
            step += tl.load(drift + place, mask=own, other=0.0).to(tl.float64)
            pull = tl.load(scales + 3 * clients + client)
            step += pull * (now - tl.load(start + place, mask=own, other=0.0).to(tl.float64))
        tl.store(vectors + place, (now - rate * step).to(tl.float32), mask=own)


UPDATE = triton.jit(_update)


def update(vectors: Tensor, sums: Tensor, noise: Tensor, drift: Tensor, start: Tensor, scales: Tensor) -> None:
    """Move all clients by one step, in place.

    Args:
        vectors: Parameters, clients x p, float32.
        sums: Clipped sums, clients x p, float64.
        noise: Standard normal numbers, clients x p.
        drift: Added to every step, clients x p; without rows if there is none.
        start: Where the clients began, clients x p; likewise.
        scales: As `hush.training.gpu.graph_step.GraphStep` has them, 4 x clients x 1.
    """
    clients, size = vectors.shape
    corrected = bool(len(drift))
    given = (drift, start) if corrected else (vectors, vectors)
    grid = (-(-size // _BLOCK), clients)
    UPDATE[grid](vectors, sums, noise, *given, scales, size, clients, DRIFT=corrected, B=_BLOCK, num_warps=4)
