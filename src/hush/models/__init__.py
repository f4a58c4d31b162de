"""Models by name, and any `nn.Module` whose output for an example depends on that example alone."""

from hush.models.model import Model, unflatten
from hush.models.user_module import from_module, from_user
from hush.models.validation import check_memory, gibibytes, memory, validate
from hush.models.zoo import build_model, names, parameters

__all__ = [
    "Model",
    "build_model",
    "check_memory",
    "from_module",
    "from_user",
    "gibibytes",
    "memory",
    "names",
    "parameters",
    "unflatten",
    "validate",
]
