"""Federated learning in which every participant sets its own privacy budget."""

from hush.api import compare, outlook, plan, simulate
from hush.types import HushError, RunResult

__version__ = "0.1.0"
__all__ = ["HushError", "RunResult", "__version__", "compare", "outlook", "plan", "simulate"]
