"""A randomised check that the rows of an output depend on their own examples alone: the second line behind the proof.

It compares rows computed together with rows computed alone, and looks at the derivative of each row with respect to the
other examples. It proves nothing, and sees what a proof of the wrong thing would miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from hush.seeds import rng

Forward = Callable[[Tensor, Tensor], Tensor]
_RELATIVE = 1e-3
_NUDGE = 2.0**-20  # a relative change of parameters, some times the rounding of float32
_AMPLIFIED = 10.0
_SCALES = (1.0, 30.0, 0.01)  # of inputs, and how far parameters lie from where they start
_BATCHES = (2, 5, 8)


def rows_differ(forward: Forward, start: Tensor, x: Tensor) -> str | None:
    """Return how rows were seen to depend on each other, or none.

    Args:
        forward: The output for a flat parameter vector and a batch.
        start: The parameters before training.
        x: At least two examples.
    """
    for vector, rows in _draws(start, x):
        try:
            found = depends_on_batch(forward, vector, rows) or _cross_derivative(forward, vector, rows)
        except (RuntimeError, IndexError, ValueError):
            continue  # inputs drawn at random need not be inputs that the module takes
        if found is not None:
            return found
    return None


@torch.no_grad()
def depends_on_batch(forward: Forward, vector: Tensor, rows: Tensor) -> str | None:
    """Return how a row's output among the others differs from its output alone, or none.

    Batches of different sizes are rounded differently, and a recurrent network with large weights amplifies that: what
    a change of the parameters in their last digits does to an output is no sign of the other examples.
    """
    together = forward(vector, rows)
    nudged = forward(vector * (1.0 + _NUDGE * _signs(vector)), rows)
    amplified = (together - nudged).abs().nan_to_num(0.0, posinf=0.0).max()
    alone = torch.cat([forward(vector, row[None]) for row in rows])
    gap = (together - alone).abs()
    tolerance = _RELATIVE * (1.0 + together.nan_to_num(posinf=0.0, neginf=0.0).abs().max()) + _AMPLIFIED * amplified
    same = (gap <= tolerance) | (together.isnan() & alone.isnan()) | (together == alone)
    return None if bool(same.all()) else "the output for an example depends on the other examples of its batch"


def _cross_derivative(forward: Forward, vector: Tensor, rows: Tensor) -> str | None:
    if not rows.is_floating_point():
        return None
    with torch.enable_grad():
        x = rows.detach().clone().requires_grad_()
        out = forward(vector, x)
        if not out.requires_grad:
            return None
        for number in range(len(rows)):
            (slopes,) = torch.autograd.grad(out[number].sum(), x, retain_graph=True)
            slopes[number] = 0.0
            # Not a number: an infinite derivative times no gradient at all.
            if bool((slopes.nan_to_num(0.0) != 0).any()):
                return "the derivative of the output for an example with respect to another example is not zero"
    return None


def _signs(vector: Tensor) -> Tensor:
    return torch.from_numpy(rng(0, "nudge").choice([-1.0, 1.0], size=tuple(vector.shape))).to(vector)


def _draws(start: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield parameters (as they are, moved, scaled) and batches of several sizes."""
    for number, scale in enumerate(_SCALES):
        generator = rng(0, "isolation", number)
        moved = start + scale * torch.from_numpy(generator.normal(size=start.shape)).to(start)
        for size in _BATCHES:
            rows = x[torch.from_numpy(generator.integers(0, len(x), size))]
            if rows.is_floating_point():
                rows = rows + torch.from_numpy(generator.normal(size=rows.shape)).to(rows)
            yield (start if size == _BATCHES[0] else moved), (rows * scale).to(x.dtype)
            yield moved, x[:size]
