"""Read the "python version" of a CIFAR-10 batch without unpickling anything.

Such a file is a pickle, and loading a pickle runs whatever its author wrote. `pickletools.genops` only splits it into
opcodes. The interpreter below knows the few opcodes that these batches use; the three names that they refer to are
compared as text and never imported. Everything else is refused.
"""

from __future__ import annotations

import math
import pickletools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hush.types import HushError

RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
NDARRAY = "numpy ndarray"
DTYPE = "numpy dtype"
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = ("BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING", "BINUNICODE")
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Mark:
    """The start of a group of values on the stack."""


@dataclass(frozen=True)
class _Name:
    """A name in the file, kept as text."""

    text: str


@dataclass
class _Bytes:
    """The type `uint8`, the only one that a batch may contain."""


@dataclass
class _Array:
    """An array under construction."""

    value: npt.NDArray[np.uint8] | None = None


class _RefusedError(Exception):
    """The file contains something that no CIFAR-10 batch needs."""


def read_batch(content: bytes, path: Path | str) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Return the `data` array and the `labels` list of one batch file."""
    try:
        with warnings.catch_warnings():
            # A malicious file may contain an invalid escape; it is refused below, and Python's warning would not help
            # the user.
            warnings.simplefilter("ignore", DeprecationWarning)
            batch = _interpret(content)
    except _RefusedError as reason:
        raise HushError(f"data file {path}: refused: not allowed in a CIFAR-10 batch: {reason}") from None
    except (ValueError, IndexError, TypeError, KeyError) as error:
        raise HushError(f"data file {path}: not a complete CIFAR-10 python batch ({error})") from None
    data = batch.get("data") if isinstance(batch, dict) else None
    labels = batch.get("labels") if isinstance(batch, dict) else None
    if not isinstance(data, _Array) or data.value is None or not isinstance(labels, list):
        raise HushError(f'data file {path}: expected a table with an array "data" and a list "labels"')
    if not all(type(label) is int for label in labels):
        raise HushError(f"data file {path}: labels must be integers")
    return data.value, labels


def _interpret(content: bytes) -> object:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name == "PROTO":
            continue
        if name == "STOP":
            return stack.pop()
        if name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in LITERALS:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[_whole(argument)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[_whole(argument)])
        elif name == "GLOBAL":
            stack.append(_name(str(argument)))
        else:
            _structure(name, stack)
    raise ValueError("no end")


def _structure(name: str, stack: list[Any]) -> None:
    if name == "MARK":
        stack.append(_Mark())
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_TUPLE":
        stack.append(())
    elif name in TUPLES:
        count = TUPLES[name]
        stack[-count:] = [tuple(stack[-count:])]
    elif name == "TUPLE":
        stack.append(tuple(_group(stack)))
    elif name in ("APPEND", "APPENDS"):
        values = _group(stack) if name == "APPENDS" else [stack.pop()]
        _kind(stack[-1], list).extend(values)
    elif name in ("SETITEM", "SETITEMS"):
        values = _group(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        # Keys must be text: hashing a tuple nested a million levels deep would overflow the stack of the process.
        if not all(type(key) is str for key in values[::2]):
            raise _RefusedError("key other than text")
        _kind(stack[-1], dict).update(zip(values[::2], values[1::2], strict=True))
    elif name == "REDUCE":
        arguments = stack.pop()
        stack.append(_call(stack.pop(), arguments))
    elif name == "BUILD":
        state = stack.pop()
        _build(stack[-1], state)
    else:
        raise _RefusedError(f"opcode {name}")


def _name(text: str) -> _Name:
    if text not in (*RECONSTRUCT, NDARRAY, DTYPE):
        raise _RefusedError(f'reference to "{text.replace(" ", ".")}"')
    return _Name(text)


def _call(function: object, arguments: object) -> _Array | _Bytes:
    if isinstance(function, _Name) and isinstance(arguments, tuple):
        if function.text in RECONSTRUCT and arguments[:1] == (_Name(NDARRAY),):
            return _Array()
        if function.text == DTYPE and arguments[:1] == ("u1",):
            return _Bytes()
    raise _RefusedError("call beyond an array of bytes")


def _build(target: object, state: object) -> None:
    if isinstance(target, _Bytes):
        return
    if not isinstance(target, _Array) or not isinstance(state, tuple) or len(state) != 5:
        raise _RefusedError(f"state of {type(target).__name__}")
    _, shape, kind, fortran, raw = state
    if not isinstance(kind, _Bytes) or not isinstance(raw, str) or not isinstance(shape, tuple):
        raise _RefusedError("array other than of bytes")
    sizes = tuple(_whole(size) for size in shape)
    if min(sizes, default=0) < 0 or math.prod(sizes) != len(raw):
        raise ValueError(f"{len(raw)} bytes for an array of shape {sizes}")
    flat = np.frombuffer(raw.encode("latin-1"), np.uint8)
    target.value = flat.reshape(sizes, order="F" if fortran else "C")


def _group(stack: list[Any]) -> list[Any]:
    for at in range(len(stack) - 1, -1, -1):
        if isinstance(stack[at], _Mark):
            values = stack[at + 1 :]
            del stack[at:]
            return values
    raise ValueError("a group without a start")


def _kind(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise _RefusedError(f"change of a {type(value).__name__}")
    return value


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{type(value).__name__} where an integer is due")
    return value
