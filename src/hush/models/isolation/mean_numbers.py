"""Mean numbers: a mode in which PyTorch's random operations give the means of what they would draw.

A module with dropout can so be compared with its traced graph, which computes with the same means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


class MeanNumbers(TorchDispatchMode):
    """Inside, random masks are their probabilities, and uniform numbers one half."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the means of what is drawn; every other operation as it is."""
        given = dict(kwargs or {})
        if func is _aten.bernoulli_.float:
            return args[0].fill_(args[1] if len(args) > 1 else given.get("p", 0.5))
        if func is _aten.bernoulli.p:
            return torch.full_like(args[0], args[1])
        if func is _aten.bernoulli.default:
            return args[0].clone()
        if func is _aten.native_dropout.default:
            # With probability one PyTorch draws nothing, and the mean is no limit of those before.
            x, p = args[0], args[1]
            return (torch.zeros_like(x) if p == 1.0 else x.clone()), torch.ones_like(x, dtype=torch.bool)
        if func in (_aten.rand.default, _aten.rand_like.default):
            return func(*args, **given).fill_(0.5)
        if func is _aten.rrelu_with_noise.default:
            return _rrelu(*args)
        return func(*args, **given)


def _rrelu(x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, *_: Any) -> Tensor:
    # The backward pass multiplies by the noise.
    noise.copy_(torch.where(x > 0, 1.0, 0.5 * (lower + upper)))
    return x * noise
