"""How many examples to hold at a time, and what to say when even those are too many.

Guarantees:
    - The number changes what is held in memory and nothing else: sums do not depend on it beyond rounding.

Edge cases:
    - Half of what an accelerator has free is used: what layers hold is estimated, not known.
    - A processor's memory is taken as ample, its cache is not: `hush.local.per_example.piece` cuts convolutions more.
    - Work that runs out of memory is not tried again in smaller pieces, since its draws are spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hush.models import Model
from hush.types import HushError

KEY = "engine.physical_batch"
_CACHED = 4096
_LEAN = 1 << 14  # for models that never hold more than inputs and outputs
MOST = 1 << 16
_NUMBER = 16  # bytes for each parameter of an example: its gradient and what it is made of
_LEAST = 1 << 20  # bytes of an example in the smallest model
_STATE = 32  # bytes for each parameter of a client: vectors, sums, noise and what is made of them


def physical_batch(model: Model, device: torch.device, clients: int) -> int:
    """Examples to work on at a time, of all clients together: a power of two that the free memory has room for."""
    size = model.layout.size
    if device.type != "cuda":
        lean = not any(value.ndim > 2 for value in model.module.parameters()) and len(model.layout.names) <= 2
        return _LEAN if lean else _CACHED
    return examples(_free(device), size, clients)


def examples(free: int, size: int, clients: int) -> int:
    """How many examples of a model of that size fit, besides the clients' own vectors."""
    room = free // 2 - _STATE * size * clients
    fitting = max(1, room // max(_LEAST, _NUMBER * size))
    return int(min(MOST, 1 << (fitting.bit_length() - 1)))


@contextmanager
def explained(number: int) -> Iterator[None]:
    """Turns running out of memory into an error that says what to set."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _too_many(number) from error
    except RuntimeError as error:
        # What PyTorch raises where a processor's memory ends has no class of its own.
        if "can't allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        raise _too_many(number) from error


def _too_many(number: int) -> HushError:
    smaller = max(1, number // 4)
    return HushError(
        f"{KEY}: {number} examples at a time do not fit in memory; accepted: fewer, such as {smaller}", KEY
    )


def _free(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
