"""The files shipped with the package: one TOML file per entry, and the published values."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any


def names() -> list[str]:
    """Return the names of all entries, in order."""
    return sorted(
        _files(), key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    )


def read(name: str) -> dict[str, Any]:
    """Read an entry's file, merged into the one that it extends."""
    raw = tomllib.loads(_files()[name].read_text(encoding="utf-8"))
    if "extends" not in raw:
        return raw
    base = read(raw["extends"])
    merged = {**base, **raw, "config": with_keys(base["config"], raw.get("config", {}))}
    if "rates" in raw and not raw["rates"]:
        del merged["rates"]
    return merged


def printed(table: str) -> dict[str, Any]:
    """Return a table as published; one without rows if there is none of that name."""
    found: dict[str, Any] = _printed().get(table, {"rows": []})
    return found


def with_keys(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested mapping with dotted keys set."""
    out: dict[str, Any] = json.loads(json.dumps(raw))
    for key, value in settings.items():
        *tables, last = key.split(".")
        place = out
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = value
    return out


@cache
def _files() -> dict[str, Traversable]:
    root = resources.files("hush.reproduce").joinpath("tables")
    return {
        f"{paper.name}/{file.name.removesuffix('.toml')}": file
        for paper in root.iterdir()
        if paper.is_dir()
        for file in paper.iterdir()
        if file.name.endswith(".toml")
    }


@cache
def _printed() -> dict[str, Any]:
    text = resources.files("hush.reproduce").joinpath("printed.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
