"""Sensitivity of sums in floating point: how far one row can move one, and by how much the clip is reduced for it.

The accountant assumes that adding or removing a row moves a sum of clipped gradients by at most the clip. In floating
point the sum of the other rows is rounded as well, and differently so without that row. Let n rows be summed, at most b
of them in float32 before the partial sum goes on in float64. Every rounding of a partial sum of k rows is at most u k
clips long (u = 2^-24), whatever the order of addition, so the sum is within u n (b + 1) / 2 clips of the exact one, and
two sums of neighbouring rows are within 1 + u n (b + 1) clips of each other. Products over several positions of an
example may cancel; they are summed in float64, and the norm that the example is clipped by limits their length
(`hush.training.per_example.gradient_terms.OuterProductTerm`).

Guarantees:
    - Two such sums are within `1 + SLACK - RESERVE` clips of each other for every n up to `MOST_ROWS` (Theorem 8 of
      docs/proofs.md), by the choice of
      `PARTIAL_ROWS` and `partial_positions`. Clip factors are computed for the clip over `1 + SLACK`, so
      one row moves the computed sum by at most one clip, rounding included.
    - `RESERVE` is left for a row's own gradient, whose last digits may depend on the shape of the batch that it is
      computed in.

Edge cases:
    - Sums of discrete plans are integers, and exact.
"""

from __future__ import annotations

SLACK = 3 * 2.0**-10
RESERVE = 2.0**-11
FLOAT64_SLACK = 2.0**-20  # for sums in float64 alone
MOST_ROWS = 1 << 21

FLOAT32_ROWS = 1 << 15  # rows of a sum times rows of a partial sum in float32: 2^-9 clips
_FLOAT64 = 1 << 18  # the same in float64 for products over positions: 2^-12 clips
_WORTH = 8  # rows of a partial sum from which float32 is the faster one


def _partial_rows(rows: int) -> int:
    most = FLOAT32_ROWS // max(1, rows) - 1
    if most >= rows:
        return rows
    return max(0, most // _WORTH * _WORTH)


# Of a sum of so many rows, how many may be added in float32 at a time; 0 if all are to be added in float64. The last
# entry, which is 0, holds for all larger sums as well.
PARTIAL_ROWS = tuple(map(_partial_rows, range(FLOAT32_ROWS // (_WORTH + 1) + 2)))


def partial_positions(rows: int) -> int:
    """The same for gradients that are sums over positions, in float64."""
    return max(1, min(rows, _FLOAT64 // max(1, rows) - 1))
