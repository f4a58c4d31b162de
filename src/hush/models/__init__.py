"""Models by name, and any `nn.Module` whose output for an example depends on that example alone."""

from hush.models.model import Model, unflatten
from hush.models.user_module import from_module, from_user
from hush.models.validation import check_memory, gibibytes, memory, validate
from hush.models.zoo import adapters_of, build_model, given_weights, names, parameters

__all__ = [
    "Model",
    "adapters_of",
    "build_model",
    "check_memory",
    "from_module",
    "from_user",
    "gibibytes",
    "given_weights",
    "memory",
    "names",
    "parameters",
    "unflatten",
    "validate",
]
