"""Validation of user-given options, with one-line errors that name the key."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from hush.types import HushError, unknown


def wrong(key: str, text: str, at: int | None = None) -> HushError:
    """Return the error for a value of a key, or for entry `at` of its list."""
    return HushError(f"{key}: {text}" if at is None else f"{key}[{at}]: {text}", key)


def named(key: str, spec: object) -> tuple[str, dict[str, Any]]:
    """Split a spec, which is a name or a table with a `name`, into that name and its options."""
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping):
        raise wrong(key, f'found {spec!r}; accepted: a name or a table such as {{name = "..."}}')
    name = spec.get("name")
    if not isinstance(name, str):
        raise wrong(f"{key}.name", f"found {name!r}; accepted: a name in quotes")
    return name, {str(option): value for option, value in spec.items() if option != "name"}


def check_keys(
    key: str, name: str, options: Mapping[str, Any], required: Sequence[str], optional: Sequence[str] = ()
) -> None:
    """Raise a `HushError` for options that `name` does not have, and for missing required ones."""
    accepted = [*required, *optional]
    for option in options:
        if option not in accepted:
            raise unknown(f"{key}.{option}", f'option of "{name}"', option, accepted or ["none"])
    for option in required:
        if option not in options:
            raise wrong(f"{key}.{option}", f'missing; "{name}" needs it')


def number(
    key: str,
    value: object,
    *,
    low: float,
    high: float = math.inf,
    above: bool = False,
    at: int | None = None,
) -> float:
    """Return a finite number from `low` (excluded if `above`) to `high`."""
    wanted = f"a number {'above' if above else 'of at least'} {low:g}"
    wanted += "" if math.isinf(high) else f" and at most {high:g}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong(key, f"found {value!r}; accepted: {wanted}", at)
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found) or found < low or found > high or (above and found == low):
        raise wrong(key, f"found {found:g}; accepted: {wanted}", at)
    return found


def integer(key: str, value: object, *, low: int, at: int | None = None) -> int:
    """Return an integer of at least `low`; floats and bools are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < low:
        raise wrong(key, f"found {value!r}; accepted: an integer of at least {low}", at)
    return int(value)


def items(key: str, value: object) -> list[object]:
    """Return the entries of a list, tuple or array."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise wrong(key, f"found {value!r}; accepted: a list")
    return list(value)


def integers(key: str, value: object, *, low: int) -> list[int]:
    """Return a list of integers of at least `low`."""
    return [integer(key, entry, low=low, at=at) for at, entry in enumerate(items(key, value))]
