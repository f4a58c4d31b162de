"""Models by name, and any `nn.Module` whose output for an example depends on that example alone."""

from hush.models.adopt import adopt
from hush.models.build import build, names
from hush.models.model import Model, unflatten

__all__ = ["Model", "adopt", "build", "names", "unflatten"]
