"""State that a module keeps between calls: attributes that change, hooks, draws from global random generators."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_DEPTH = 4  # of nested containers that are looked into


def snapshot(module: nn.Module) -> dict[str, Any]:
    """Return the state of the module tree, by path: values of plain objects, identity and version of tensors."""
    found: dict[str, Any] = {}
    for name, part in _parts(module):
        for key, value in vars(part).items():
            if key != "_modules":
                _note(found, f"{name}.{key}".strip("."), value, _DEPTH)
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return the first path that differs between two snapshots, if any."""
    different = sorted(key for key in before.keys() | after.keys() if before.get(key, ...) != after.get(key, ...))
    return different[0] if different else None


def random_state() -> tuple[Any, ...]:
    """Return the state of the global random generators, as values that can be compared."""
    state: Any = np.random.get_state()
    kind, keys, position, *rest = state
    return random.getstate(), (kind, bytes(keys), position, *rest), bytes(torch.get_rng_state().numpy())


def restore_random_state(state: tuple[Any, ...]) -> None:
    """Set the global random generators back."""
    python, (kind, keys, *rest), generator = state
    random.setstate(python)
    np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(torch.frombuffer(bytearray(generator), dtype=torch.uint8))


def backward_hook(module: nn.Module) -> str | None:
    """Return the first module or parameter with a hook on its backward pass, if any: hooks see whole batches."""
    for name, part in _parts(module):
        if any(getattr(part, hooks, None) for hooks in _BACKWARD_HOOKS):
            return name or "(top)"
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return name
    return None


def _parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return all modules of a tree by path, and those behind a wrapper that shares their tables of parameters."""
    for name, part in module.named_modules():
        while isinstance(part, nn.Module):
            yield name, part
            part = part.__dict__.get("_own")


def _note(found: dict[str, Any], path: str, value: Any, depth: int) -> None:
    if isinstance(value, Tensor):
        found[path] = (id(value), value._version)
    elif isinstance(value, str | bytes | bool | int | float | complex | type(None)):
        found[path] = (type(value), repr(value))
    elif isinstance(value, np.ndarray):
        found[path] = (id(value), value.tobytes())
    elif isinstance(value, Mapping) and depth:
        found[path] = (type(value), len(value))
        for key, each in value.items():
            _note(found, f"{path}[{key!r}]", each, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth:
        found[path] = (type(value), len(value))
        for number, each in enumerate(value):
            _note(found, f"{path}[{number}]", each, depth - 1)
    elif not isinstance(value, nn.Module):
        found[path] = id(value)
        if depth and hasattr(value, "__dict__") and not callable(value):
            _note(found, f"{path}.__dict__", vars(value), depth - 1)
