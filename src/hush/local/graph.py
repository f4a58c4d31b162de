"""A step of training as a record that an accelerator replays by itself.

Guarantees:
    - Clients stay where they are while their step is recorded.
    - Records share no memory with one another but within a pool, so that those of different pools may run at once.

Edge cases:
    - PyTorch keeps one workspace for matrix products by the stream on which they are recorded, and all records are made
      on the same: two of them, replayed at once, would spoil each other's sums. It is dropped before and after a
      recording, so that each record has a workspace of its own in its pool.
    - A step with code that cannot be recorded gives no record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def recorded(run: Callable[[], None], scales: Tensor, pool: Any = None) -> torch.cuda.CUDAGraph | None:
    """The step as a record, if it can be one; with zeros for its scales, a step moves nobody."""
    before = scales.clone()
    scales.zero_()
    graph = torch.cuda.CUDAGraph()
    try:
        for _ in range(2):  # the first times, libraries set themselves up
            run()
        torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.graph(graph, pool=pool):
            run()
    except RuntimeError:
        return None
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        scales.copy_(before)
    return graph
