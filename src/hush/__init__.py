"""Federated learning in which every participant sets its own privacy budget."""

from hush.api import audit, compare, measure, outlook, plan, simulate, sweep
from hush.types import HushError, RunResult

__version__ = "0.1.0"
__all__ = [
    "HushError",
    "RunResult",
    "__version__",
    "audit",
    "compare",
    "measure",
    "outlook",
    "plan",
    "simulate",
    "sweep",
]
