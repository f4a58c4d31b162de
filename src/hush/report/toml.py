"""Write a config as TOML, for reproducing a run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any


def toml(config: Mapping[str, Any]) -> str:
    """Return a nested mapping as TOML: plain keys first, then one table per nested mapping."""
    lines = [f"{_key(key)} = {_value(value)}" for key, value in _given(config) if not isinstance(value, Mapping)]
    for name, table in _given(config):
        if isinstance(table, Mapping):
            lines += ["", f"[{_key(name)}]", *(f"{_key(key)} = {_value(value)}" for key, value in _given(table))]
    return "\n".join(lines).strip() + "\n"


def inline(value: Any) -> str:
    """Return one value as TOML."""
    return _value(value)


def _given(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in table.items() if value is not None]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in _given(value)) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    """Return a TOML string: JSON escapes, and DEL, which TOML requires to be escaped as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
