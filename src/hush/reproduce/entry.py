"""One table of a paper, as its file gives it: a config for every cell, and what the paper prints there.

A file has a `title`, the `metric`, the `printed` table, a base `config`, `columns` and `algorithms`, each with the keys
of the config that it sets. `rates` names the table with the paper's learning rates. `extends` takes everything from
another file first. `ours` are algorithms that the paper does not have.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from hush.config import Config, overridden, parse
from hush.types import HushError, unknown

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Printed:
    """A number as the paper prints it; none where it prints no number."""

    value: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class Cell:
    """One algorithm under one column's setting.

    Attributes:
        algorithm: Its name here, such as robust-hdp.
        column: Its column here, such as dist6.
        settings: The keys of the config that the two set.
        printed: What the paper prints, by measure.
        own: Whether the paper does not have this algorithm.
    """

    algorithm: str
    column: str
    settings: Settings
    printed: Mapping[str, Printed]
    own: bool = False

    @property
    def name(self) -> str:
        """As `--cells` takes it."""
        return f"{self.algorithm}:{self.column}"


@dataclass(frozen=True)
class Entry:
    """A table or a figure."""

    name: str
    title: str
    metric: str
    seeds: int
    config: Settings
    cells: tuple[Cell, ...]
    modes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    doubt: str = ""
    options: Settings = field(default_factory=dict)

    def configured(self, cell: Cell, mode: str, changes: Sequence[str] = ()) -> Config:
        """The whole config of a cell. Algorithms of our own are always sound."""
        raw = dict(self.config) | {"mode": "sound" if cell.own else mode}
        return parse(overridden(_set(raw, cell.settings), changes))

    def chosen(self, names: Sequence[str]) -> tuple[Cell, ...]:
        """The cells of these names; all of them if there are none. `algorithm:` and `:column` stand for several."""
        if not names:
            return self.cells
        found: dict[str, Cell] = {}
        for name in names:
            algorithm, colon, column = name.partition(":")
            matching = [
                cell for cell in self.cells if cell.algorithm == (algorithm or cell.algorithm)
                and cell.column == (column or cell.column)
            ]  # fmt: skip
            if not colon or not matching:
                raise unknown("--cells", f"cell of {self.name}", name, [cell.name for cell in self.cells])
            found |= {cell.name: cell for cell in matching}
        return tuple(found.values())


def entries() -> list[str]:
    """The names of all of them, in order."""
    return sorted(
        _files(), key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    )


def entry(name: str) -> Entry:
    """One of them by name, such as robust-hdp/table-12."""
    files = _files()
    if name not in files:
        raise unknown("reproduce", "entry", name, entries())
    raw = _read(name)
    table = _printed().get(raw.get("printed", ""), {"rows": []})
    rates = {
        (row["algorithm"], row["column"]): row["value"]
        for row in _printed().get(raw.get("rates", ""), {"rows": []})["rows"]
    }
    cells = [
        Cell(
            slug(values.get("as", algorithm)), slug(column),
            {
                **({"local.lr": rates[algorithm, column]} if (algorithm, column) in rates else {}),
                **{key: value for key, value in settings.items() if key != "as"},
                **{key: value for key, value in values.items() if key != "as"},
            },
            _cell(table["rows"], values.get("row", algorithm), column), own,
        )
        for own, listed in ((False, raw["algorithms"]), (True, raw.get("ours", {})))
        for algorithm, values in listed.items()
        for column, settings in raw["columns"].items()
    ]  # fmt: skip
    return Entry(
        name, raw["title"], raw["metric"], raw.get("seeds", 3), raw["config"], tuple(cells),
        tuple(raw.get("modes", ("faithful", "sound"))), tuple(raw.get("notes", ())), tuple(raw.get("orders", ())),
        table.get("doubt", ""), raw.get("options", {}),
    )  # fmt: skip


def slug(name: str) -> str:
    """A name as the command line takes it."""
    return re.sub(r"[^a-z0-9.=]+", "-", name.lower()).strip("-")


def _cell(rows: Sequence[Mapping[str, Any]], algorithm: str, column: str) -> dict[str, Printed]:
    return {
        str(row.get("metric", "")): Printed(row["value"], row.get("std"))
        for row in rows
        if row["algorithm"] == algorithm and row["column"] == column
    }


def _set(raw: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A nested mapping with dotted keys set in it."""
    out = json.loads(json.dumps(raw))
    for key, value in settings.items():
        *tables, last = key.split(".")
        place = out
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = value
    found: dict[str, Any] = out
    return found


def _read(name: str) -> dict[str, Any]:
    raw = tomllib.loads(_files()[name].read_text(encoding="utf-8"))
    if "extends" not in raw:
        return raw
    base = _read(raw["extends"])
    merged = {**base, **raw, "config": _set(base["config"], raw.get("config", {}))}
    if "rates" in raw and not raw["rates"]:
        del merged["rates"]
    return merged


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


def check_seeds(seeds: int | None) -> None:
    """Refuse a number of seeds that makes no sense."""
    if seeds is not None and seeds < 1:
        raise HushError(f"--seeds: expected 1 or more, found {seeds}")
