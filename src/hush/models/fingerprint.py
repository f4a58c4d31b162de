"""Fingerprints of modules: structure, weights, and Python code as far as it is available.

A fingerprint is a SHA-256.
"""

from __future__ import annotations

import hashlib
import re
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from hush.models.inputs import UnpackedInputs

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def module_fingerprint(module: nn.Module) -> dict[str, str]:
    """Return the fingerprints of a module's structure, of its tensors and of its code."""
    return {
        "structure": digest(structure(module)),
        "weights": weights_fingerprint(module),
        "code": digest(code(module)),
    }


def weights_fingerprint(module: nn.Module) -> str:
    """Return the fingerprint of a module's parameters and buffers, which is the same on every machine."""
    tensors = sorted([*module.named_parameters(), *module.named_buffers()])
    return digest(part for name, value in tensors for part in (name, *tensor_parts(value)))


def structure(module: nn.Module) -> Iterator[object]:
    """Yield types, settings and parameters of every submodule."""
    for path, part in module.named_modules():
        yield from (path, type(part).__qualname__, part.training, _without_addresses(part.extra_repr()))
        for name, value in sorted(vars(part).items()):
            if not name.startswith("_") and is_plain(value):
                yield from (name, value)
            elif isinstance(value, types.BuiltinFunctionType | types.FunctionType) and _is_pytorch(value):
                yield from (name, value.__module__, value.__qualname__)
    for name, value in module.named_parameters():
        yield from (name, tuple(value.shape), str(value.dtype))


def code(module: nn.Module) -> Iterator[object]:
    """Return the bytecode of every user-defined class among the submodules, and of functions in the submodules."""
    seen: set[int] = set()
    parts = list(module.modules())
    for part in (*parts, *(part.own for part in parts if isinstance(part, UnpackedInputs))):
        for base in type(part).__mro__:
            if not base.__module__.startswith(("torch.", "builtins")) and id(base) not in seen:
                seen.add(id(base))
                for name, value in sorted(vars(base).items()):
                    if is_plain(value) and not name.startswith("__"):
                        yield from (name, value)
                    yield from functions_of(value, seen)
        hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
        for value in (*(value for _, value in sorted(vars(part).items())), *hooks):
            yield from functions_of(value, seen)


def functions_of(value: object, seen: set[int]) -> Iterator[object]:
    """Return the bytecode of a function, its closure, and the functions, classes and constants that it names: those of
    its own file, and of other files that belong to no installed package.
    """
    inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    if isinstance(inner, type) and id(inner) not in seen and not _installed(inner.__module__):
        seen.add(id(inner))
        for name, each in sorted(vars(inner).items()):
            yield from ((name, each) if is_plain(each) and not name.startswith("__") else functions_of(each, seen))
    if not isinstance(inner, types.FunctionType) or id(inner) in seen:
        return
    if _is_pytorch(inner):
        return  # named in the structure
    seen.add(id(inner))
    yield from (inner.__qualname__, *_constants(inner.__code__))
    yield from (each for each in (*(inner.__defaults__ or ()), *(inner.__kwdefaults__ or {}).values()))
    captured = [cell.cell_contents for cell in inner.__closure__ or () if _filled(cell)]
    names = _names(inner.__code__)
    named = [inner.__globals__[name] for name in names if name in inner.__globals__]
    for each in (*captured, *named):
        if is_plain(each):
            yield each
        elif isinstance(each, types.ModuleType):
            # What is named of another file, as in `helpers.scaled(x)`.
            for name in names if not _installed(each.__name__) else ():
                found = vars(each).get(name)
                yield from ((name, found) if is_plain(found) else functions_of(found, seen))
        elif getattr(each, "__module__", None) == inner.__module__ or not _installed(getattr(each, "__module__", None)):
            yield from functions_of(each, seen)


def _installed(name: str | None) -> bool:
    """Whether a module belongs to Python, to Hush or to an installed package, and not to the user."""
    root = (name or "builtins").partition(".")[0]
    path = getattr(sys.modules.get(name or ""), "__file__", None) or ""
    library = {"site-packages", "dist-packages"} & set(Path(path).parts)
    return root == "hush" or root in sys.stdlib_module_names - {"__main__"} or bool(library)


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


def is_plain(value: object) -> bool:
    """Return whether a value is a number, a text or nothing, or a sequence of these."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN)


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def tensor_parts(value: Tensor) -> tuple[object, ...]:
    """Return the shape, type and bytes of a tensor."""
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tuple(value.shape), str(value.dtype), flat.numpy().data


def digest(parts: Iterable[object]) -> str:
    """Return the SHA-256 of a sequence of values, each preceded by its length, so that the encoding is unambiguous."""
    found = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes | memoryview) else _without_addresses(repr(part)).encode()
        found.update(len(content).to_bytes(8, "little"))
        found.update(content)
    return found.hexdigest()
