"""The Triton language that the kernels are written in, and the product that all of them share.

Guarantees:
    - `product` multiplies as HOW says: "ieee" in float32, "tf32x3" with three short products for nearly that, "tf32"
      with one, "bf16" with rounded factors; its sums are float32.

Edge cases:
    - This module can be imported only where Triton is installed.
"""

from __future__ import annotations

from hush.triton_types import at, constexpr, tl, triton

__all__ = ["at", "constexpr", "product", "tl", "triton"]


def _rounded(value: at) -> at:
    """The nearest number that tf32 can represent; less than the value by what tf32 can represent with one bit lost."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


def product(left: at, right: at, total: at, HOW: constexpr) -> at:
    """The total and a product, multiplied as HOW says."""
    if HOW == "bf16":
        out = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16), total)
    elif HOW == "tf32x3":
        # By hand: what Triton makes of "tf32x3" takes three times the instructions, for numbers that are not finite.
        long_left, long_right = _rounded(left), _rounded(right)
        out = tl.dot(left - long_left, long_right, total, input_precision="tf32")
        out = tl.dot(long_left, right - long_right, out, input_precision="tf32")
        out = tl.dot(long_left, long_right, out, input_precision="tf32")
    else:
        out = tl.dot(left, right, total, input_precision=HOW)
    return out


_rounded, product = (triton.jit(f) for f in (_rounded, product))
