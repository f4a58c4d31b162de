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


def product(left: at, right: at, total: at, HOW: constexpr) -> at:
    """The total and a product, multiplied as HOW says."""
    if HOW == "bf16":
        out = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16), total)
    else:
        out = tl.dot(left, right, total, input_precision=HOW)
    return out


product = triton.jit(product)
