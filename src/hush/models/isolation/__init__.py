"""Isolation: each row of a user's module depends on its own example alone, by construction.

`hush.models.isolation.isolate` is imported where it is used: PyTorch's exporter takes seconds to load.
"""

from hush.models.isolation.check import depends_on_batch
from hush.models.isolation.traced_module import TracedModule, quiet_vmap

__all__ = ["TracedModule", "depends_on_batch", "quiet_vmap"]
