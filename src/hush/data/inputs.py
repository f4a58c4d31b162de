"""Inputs of a model as they are stored: rows of float32, with a specification of what a row unpacks into.

A single array of real numbers is stored unchanged. Integers, booleans, and several arrays (a tuple or a dict, such as
tokens with a padding mask) are stored as float32 too, concatenated in one matrix (n, numbers per row);
`hush.models.inputs` unpacks rows before the user's module, with the shapes and types of the specification.

Guarantees:
    - Integers and booleans are recovered exactly: integers of 2^24 or more, which float32 cannot represent, are
      refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hush.types import HushError, InputPart, InputSpec, InputType

_EXACT = 1 << 24


def pack_inputs(inputs: object, where: str) -> tuple[npt.NDArray[np.float32], InputSpec | None]:
    """Store an array, or a tuple or dict of arrays with equally many rows; real numbers need no specification.

    Raises:
        HushError: The rows are ragged, differ in number, contain no numbers, or are not exact in float32.
    """
    if isinstance(inputs, Mapping):
        if not inputs or not all(isinstance(name, str) for name in inputs):
            raise HushError(f"{where}: inputs named {list(inputs)!r:.80}; accepted: texts, one per input")
        named = list(inputs.items())
    elif isinstance(inputs, tuple):
        if not inputs:
            raise HushError(f"{where}: an empty tuple; accepted: at least one input")
        named = [("", value) for value in inputs]
    else:
        values, kind = _array(inputs, f"{where}: x")
        if values.ndim < 2:
            raise HushError(f"{where}: x has shape {values.shape}; accepted: (n, ...), with at least one number a row")
        part = InputPart("", values.shape[1:], kind)
        return _stored(values, f"{where}: x"), None if kind == "float32" else InputSpec("array", (part,))
    made, parts = [], []
    for at, (name, value) in enumerate(named):
        what = f"{where}: input {name or at}"
        values, kind = _array(value, what)
        if not values.ndim:
            raise HushError(f"{what}: a single number; accepted: an array with a row for each example")
        parts.append(InputPart(name, values.shape[1:], kind))
        made.append(_stored(values, what).reshape(len(values), -1))
    if len({len(values) for values in made}) != 1:
        counts = ", ".join(str(len(values)) for values in made)
        raise HushError(f"{where}: inputs of {counts} rows; accepted: as many rows in each")
    return np.concatenate(made, axis=1), InputSpec("dict" if isinstance(inputs, Mapping) else "tuple", tuple(parts))


def stack_rows(rows: list[Any], where: str) -> Any:
    """Stack the inputs of single rows, as a torch dataset returns them; rows can be arrays, tuples or dicts."""
    first = rows[0]
    try:
        if isinstance(first, Mapping):
            return {name: _stacked([row[name] for row in rows]) for name in first}
        if isinstance(first, tuple | list) and not np.isscalar(first[0] if first else 0):
            return tuple(_stacked([row[at] for row in rows]) for at in range(len(first)))
        return _stacked(rows)
    except (ValueError, RuntimeError, TypeError, KeyError, IndexError) as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise HushError(
            f"{where}: rows do not have one shape ({text}); accepted: equal shapes, padded where needed"
        ) from None


def _stacked(rows: list[Any]) -> npt.NDArray[Any]:
    return np.stack([np.asarray(row) for row in rows])


def _array(values: object, what: str) -> tuple[npt.NDArray[Any], InputType]:
    try:
        found = np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        text = str(error).splitlines()[0]
        raise HushError(
            f"{what}: not a regular array ({text}); accepted: rows of one shape, padded where needed"
        ) from None
    if found.dtype.kind not in "biuf":
        raise HushError(
            f"{what}: {found.dtype}; accepted: rows of numbers of one shape; for texts, a table with a schema"
        )
    if not found.size:
        raise HushError(f"{what}: shape {found.shape} holds no numbers; accepted: at least one row")
    kinds: dict[str, InputType] = {"b": "bool", "i": "int64", "u": "int64", "f": "float32"}
    return found, kinds[found.dtype.kind]


def _stored(values: npt.NDArray[Any], what: str) -> npt.NDArray[np.float32]:
    if values.dtype.kind in "iu" and (int(values.max()) >= _EXACT or int(values.min()) <= -_EXACT):
        raise HushError(
            f"{what}: an integer of 2^24 or more, which float32 does not hold exactly; accepted: smaller ones"
        )
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32)
    if not np.isfinite(stored).all():
        row = int(np.argmin(np.isfinite(stored).reshape(len(stored), -1).all(axis=1)))
        raise HushError(f"{what}: row {row} contains NaN or infinity (or exceeds float32); accepted: finite numbers")
    return stored
