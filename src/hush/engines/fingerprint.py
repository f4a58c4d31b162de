"""Fingerprints of a run's data and model, which a resumed run must match.

A fingerprint is a SHA-256. It is stored in the manifest of a simulation, together with results without noise.
"""

from __future__ import annotations

import functools
import hashlib
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hush.data.client_rows import Clients
from hush.data.datasets import Dataset
from hush.engines.objective import own_code
from hush.engines.setup import Federation
from hush.models import Model
from hush.models.inputs import UnpackedInputs

Hashes = dict[int, dict[str, str]]
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def identity(federation: Federation, known: Hashes | None = None) -> dict[str, Any]:
    """Return name and fingerprint of model and data, for the manifest.

    `known` caches the hashes of the arrays of each dataset, for runs in one process that share them.
    """
    data, memory = federation.data, {} if known is None else known
    names = tuple(member.name for member in federation.members)
    key = id(data.dataset)
    if key not in memory:
        memory[key] = arrays_fingerprint(data.dataset)
    return {
        "data": {
            "name": data.dataset.title,
            "own": data.dataset.own,
            "fingerprint": {**memory[key], "partition": partition_fingerprint(data, names)},
        },
        "model": {
            "name": federation.model.name,
            "own": federation.own_module,
            "fingerprint": model_fingerprint(federation.model),
        },
        **_objective(federation),
    }


def _objective(federation: Federation) -> dict[str, Any]:
    """Return the user's own functions among loss and metrics; the config's hash covers those given by name."""
    found = own_code(federation.config.objective)
    if not found:
        return {}
    codes = {name: _digest(_callable(each)) for name, each in found.items()}
    return {"objective": {"name": ", ".join(codes), "own": True, "fingerprint": codes}}


def _callable(given: Any) -> Iterator[object]:
    """Yield what identifies a function or module of the user's own, as far as it can be inspected."""
    if isinstance(given, nn.Module):
        yield from (*_structure(given), *_code(given))
        for name, value in sorted([*given.named_parameters(), *given.named_buffers()]):
            yield from (name, *_tensor(value))
        return
    seen: set[int] = set()
    if isinstance(given, functools.partial):
        yield from (repr(given.args), repr(sorted(given.keywords.items())))
        given = given.func
    if not isinstance(given, types.FunctionType | types.MethodType):
        held = getattr(given, "__dict__", {})
        yield from (type(given).__qualname__, *sorted((k, repr(v)) for k, v in held.items() if _is_plain(v)))
        given = type(given).__call__
    yield getattr(given, "__qualname__", "")
    yield from _functions(given, seen)


def arrays_fingerprint(dataset: Dataset) -> dict[str, str]:
    """Return the fingerprint of the rows and labels, with their shapes and types."""
    spec = () if dataset.inputs is None else (dataset.inputs,)
    found = {"inputs": _digest([*_array(dataset.x), *spec]), "labels": _digest([*_array(dataset.y), dataset.classes])}
    if dataset.person is None:
        return found
    return {**found, "persons": _digest(_array(np.unique(dataset.person, return_inverse=True)[1]))}


def partition_fingerprint(clients: Clients, names: Sequence[str] = ()) -> str:
    """Return the fingerprint of the assignment of rows to clients, of their transforms and of their names."""

    def parts() -> Iterator[object]:
        yield from (clients.seed, *(name for name in names if name))
        for share, train, test in zip(clients.shares, clients.train, clients.test, strict=True):
            yield from (share.group, share.rotate, share.flip, share.salt, *_array(train), *_array(test))

    return _digest(parts())


def model_fingerprint(model: Model) -> dict[str, str]:
    """Return the fingerprint of a model: structure, initial weights, and Python code as far as it is available."""
    module = model.module if model.source is None else model.source
    tensors = sorted([*module.named_parameters(), *module.named_buffers()])
    return {
        "structure": _digest([model.layout.names, *_structure(module)]),
        "initial_weights": _digest(part for name, value in tensors for part in (name, *_tensor(value))),
        "code": _digest(_code(module)),
    }


def _structure(module: nn.Module) -> Iterator[object]:
    """Yield types, settings and parameters of every submodule."""
    for path, part in module.named_modules():
        yield from (path, type(part).__qualname__, part.training, _without_addresses(part.extra_repr()))
        for name, value in sorted(vars(part).items()):
            if not name.startswith("_") and _is_plain(value):
                yield from (name, value)
            elif isinstance(value, types.BuiltinFunctionType | types.FunctionType) and _is_pytorch(value):
                yield from (name, value.__module__, value.__qualname__)
    for name, value in module.named_parameters():
        yield from (name, tuple(value.shape), str(value.dtype))


def _code(module: nn.Module) -> Iterator[object]:
    """Return the bytecode of every user-defined class among the submodules, and of functions in the submodules."""
    seen: set[int] = set()
    parts = list(module.modules())
    for part in (*parts, *(part.own for part in parts if isinstance(part, UnpackedInputs))):
        for base in type(part).__mro__:
            if not base.__module__.startswith(("torch.", "builtins")) and id(base) not in seen:
                seen.add(id(base))
                for name, value in sorted(vars(base).items()):
                    if _is_plain(value) and not name.startswith("__"):
                        yield from (name, value)
                    yield from _functions(value, seen)
        hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
        for value in (*(value for _, value in sorted(vars(part).items())), *hooks):
            yield from _functions(value, seen)


def _functions(value: object, seen: set[int]) -> Iterator[object]:
    """Return the bytecode of a function, its closure, and the functions and constants of its own file that it names."""
    inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    if not isinstance(inner, types.FunctionType) or id(inner) in seen:
        return
    if _is_pytorch(inner):
        return  # named in the structure
    seen.add(id(inner))
    yield from (inner.__qualname__, *_constants(inner.__code__))
    yield from (each for each in (*(inner.__defaults__ or ()), *(inner.__kwdefaults__ or {}).values()))
    held = [cell.cell_contents for cell in inner.__closure__ or () if _filled(cell)]
    named = [inner.__globals__[name] for name in _names(inner.__code__) if name in inner.__globals__]
    for each in (*held, *named):
        if _is_plain(each):
            yield each
        elif getattr(each, "__module__", None) == inner.__module__:
            yield from _functions(each, seen)


def _is_pytorch(function: types.BuiltinFunctionType | types.FunctionType) -> bool:
    return (function.__module__ or "torch").partition(".")[0] == "torch"


def _constants(code: types.CodeType) -> Iterator[object]:
    yield from (code.co_code, code.co_names, code.co_varnames)
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _constants(value)
        else:
            yield sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _names(code: types.CodeType) -> list[str]:
    inner = (name for value in code.co_consts if isinstance(value, types.CodeType) for name in _names(value))
    return [*code.co_names, *inner]


def _filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _array(values: np.ndarray) -> tuple[object, ...]:
    return values.shape, str(values.dtype), np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _tensor(value: Tensor) -> tuple[object, ...]:
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tuple(value.shape), str(value.dtype), flat.numpy().data


def _digest(parts: Iterable[object]) -> str:
    """Return the SHA-256 of a sequence of values, each preceded by its length, so that the encoding is unambiguous."""
    found = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes | memoryview) else _without_addresses(repr(part)).encode()
        found.update(len(content).to_bytes(8, "little"))
        found.update(content)
    return found.hexdigest()
