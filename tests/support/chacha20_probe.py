"""A kernel that makes normal numbers of chosen words, to look at the tails. It needs Triton to be imported."""

from __future__ import annotations

from hush.privacy.chacha20_kernels import pair
from hush.triton_types import at, constexpr, tl, triton


def _pairs(out: at, words: at, SIZE: constexpr) -> None:
    i = tl.arange(0, SIZE)
    high = tl.load(words + i).to(tl.uint32, bitcast=True)
    low = tl.load(words + SIZE + i).to(tl.uint32, bitcast=True)
    turn = tl.load(words + 2 * SIZE + i).to(tl.uint32, bitcast=True)
    one, other = pair(high, low, turn)
    tl.store(out + i, one)
    tl.store(out + SIZE + i, other)


PAIRS = triton.jit(_pairs)
