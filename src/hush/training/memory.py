"""Memory: how many examples to compute at a time.

Guarantees:
    - The number changes what is in memory and nothing else: sums do not depend on it beyond rounding.

Edge cases:
    - Half of a GPU's free memory is used: what layers need is estimated from what one example leaves behind.
    - A CPU's memory is taken as ample, its cache is not: `hush.training.per_example.sums.micro_batch_size` cuts
      convolutions further.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import nn

from hush.models import Model

_CACHED = 4096
LINEAR_EXAMPLES = 1 << 14  # for models that need no more than inputs and outputs
MOST = 1 << 16
_NUMBER = 16  # bytes for each number that an example leaves: its gradients and what they are made of
_LEAST = 1 << 20  # bytes of an example in the smallest model
_STATE = 32  # bytes for each parameter of a client: vectors, sums, noise and what is made of them


def physical_batch(model: Model, device: torch.device, clients: int, numbers: int | None = None) -> int:
    """Return how many examples of all clients to process at a time: a power of two that fits into free memory.

    An example leaves so many `numbers` behind, or a gradient for every parameter if none are given.
    """
    size = model.layout.size
    if device.type != "cuda":
        lean = not any(value.ndim > 2 for value in model.module.parameters()) and len(model.layout.names) <= 2
        return LINEAR_EXAMPLES if lean else _CACHED
    # Kept from round to round: captured steps hold memory of their own, and are captured anew for another number.
    kept, key = _KEPT.setdefault(model.module, {}), (device, clients, numbers)
    if key not in kept:
        kept[key] = examples(_free(device), size, clients, size if numbers is None else numbers)
    return kept[key]


_KEPT: WeakKeyDictionary[nn.Module, dict[tuple[torch.device, int, int | None], int]] = WeakKeyDictionary()


def examples(free: int, size: int, clients: int, numbers: int) -> int:
    """Return how many examples of that many numbers fit, besides the clients' vectors for a model of that size."""
    room = free // 2 - _STATE * size * clients
    fitting = max(1, room // max(_LEAST, _NUMBER * numbers))
    return int(min(MOST, 1 << (fitting.bit_length() - 1)))


def _free(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
