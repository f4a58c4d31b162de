"""Outputs of a user's module: the tensor of logits in what it returns."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

ACCEPTED = (
    'a tensor, a tuple that starts with one, a dict with the key "logits" or with a single tensor, or an object with '
    ".logits"
)


def logits_of(output: object) -> Tensor | None:
    """Return the tensor of logits in an output, as `ACCEPTED` says; none where it is not clear which that is."""
    found: object = output
    if isinstance(getattr(output, "logits", None), Tensor):
        found = getattr(output, "logits")  # noqa: B009
    elif isinstance(output, Mapping):
        tensors = [value for value in output.values() if isinstance(value, Tensor)]
        found = output["logits"] if "logits" in output else tensors[0] if len(tensors) == 1 else None
    elif isinstance(output, tuple | list):
        found = output[0] if output else None
    return found if isinstance(found, Tensor) else None


def describe_output(output: object) -> str:
    """Describe the output of a module, for a message."""
    if isinstance(output, Mapping):
        return f"a dict with the keys {', '.join(map(str, output))}" if output else "an empty dict"
    return f"a {type(output).__name__}" + (f" of {len(output)}" if isinstance(output, tuple | list) else "")
