"""An entry: one table of a paper as its file defines it, with a config for every cell and the published values.

A file has a `title`, the `metric`, the `printed` table, a base `config`, and `columns` and `algorithms`, each with the
config keys that it sets. `rates` names the table with the paper's learning rates. `extends` includes another file. An
algorithm's `as` is its name here; `row` and `column` say where its numbers are printed, if not under these names.
`ours` are algorithms that the paper does not have. Settings for faithful mode only are under an algorithm's `faithful`.
A `tradeoff` replaces columns and algorithms. `orders` are the claims that the paper makes about its results in words.
`first_seed` is where the seeds start. `fitted` names the settings that were chosen by looking at the published values,
each with the algorithms that it concerns (none: all).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hush.config import Config, overridden, parse
from hush.reproduce import files, tradeoff
from hush.types import HushError, unknown

Settings = Mapping[str, Any]
_MARKS = ("as", "row", "column", "faithful")


@dataclass(frozen=True)
class Printed:
    """A published value; None if the paper gives no number."""

    value: float | None = None
    std: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One algorithm under one column's setting.

    Attributes:
        algorithm: Its name here, such as robust-hdp.
        column: Its column here, such as dist6.
        settings: The config keys that the two set.
        printed: The published values, by measure.
        own: Whether the paper does not have this algorithm.
        faithful: The config keys that are set in faithful mode only.
        facts: Values that are known without a run, by measure.
    """

    algorithm: str
    column: str
    settings: Settings
    printed: Mapping[str, Printed]
    own: bool = False
    faithful: Settings = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name that `--cells` accepts."""
        return f"{self.algorithm}:{self.column}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A table or a figure. `seeds` is how many there are, consecutive from `first_seed` on.

    `fitted`: settings that were chosen by looking at the published values, with the algorithms that each concerns.
    """

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
    first_seed: int = 0
    fitted: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """Return the notes, followed by known inconsistencies of the published values."""
        return [*self.notes, *([f"Published values: {self.doubt}"] if self.doubt else [])]

    def best_in_print(self) -> tuple[str, ...]:
        """Return a claim for each column in which one of several published accuracies is the highest."""
        columns: dict[str, dict[str, float]] = {}
        for cell in self.cells:
            value = cell.printed.get("")
            if value is not None and value.value is not None and not cell.own and self.metric == "accuracy":
                columns.setdefault(cell.column, {})[cell.algorithm] = value.value
        found = []
        for column, values in columns.items():
            first, *others = sorted(values, key=lambda name: -values[name])
            if others and values[first] > values[others[0]]:
                found.append(f"{first} best @ {column}")
        return tuple(found)

    def configured(self, cell: Cell, mode: str, changes: Sequence[str] = ()) -> Config:
        """Return the full config of a cell. Our own algorithms are always sound."""
        how = "sound" if cell.own else mode
        settings = {**cell.settings, **(cell.faithful if how == "faithful" else {})}
        raw = files.with_keys({**self.config, "mode": how}, settings)
        return parse(overridden(raw, changes))

    def chosen(self, names: Sequence[str]) -> tuple[Cell, ...]:
        """Return the cells of these names, or all cells. `algorithm:` and `:column` select several."""
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
    """Return the names of all entries, in order."""
    return files.names()


def entry(name: str) -> Entry:
    """Return an entry by name, such as robust-hdp/table-12."""
    if name not in entries():
        raise unknown("reproduce", "entry", name, entries())
    raw = files.read(name)
    table = files.printed(raw.get("printed", ""))
    cells = _traded(raw["tradeoff"], table["rows"]) if "tradeoff" in raw else _crossed(raw, table["rows"])
    return Entry(
        name=name,
        title=raw["title"],
        metric=raw["metric"],
        seeds=raw.get("seeds", 3),
        config=raw["config"],
        cells=tuple(cells),
        modes=tuple(raw.get("modes", ("faithful", "sound"))),
        notes=tuple(raw.get("notes", ())),
        orders=tuple(raw.get("orders", ())),
        doubt=table.get("doubt", ""),
        options=raw.get("options", {}),
        first_seed=raw.get("first_seed", 0),
        fitted=raw.get("fitted", {}),
    )


def _crossed(raw: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Return a cell for every algorithm and column."""
    listed = files.printed(raw.get("rates", ""))["rows"]
    rates = {(row["algorithm"], row["column"]): row["value"] for row in listed}
    return [
        Cell(
            algorithm=slug(values.get("as", algorithm)),
            column=slug(column),
            settings={
                **({"local.lr": rates[algorithm, column]} if (algorithm, column) in rates else {}),
                **{key: value for key, value in settings.items() if key not in _MARKS},
                **{key: value for key, value in values.items() if key not in _MARKS},
            },
            printed=_cell(rows, values.get("row", algorithm), values.get("column", column)),
            own=own,
            faithful=values.get("faithful", {}),
        )
        for own, algorithms in ((False, raw["algorithms"]), (True, raw.get("ours", {})))
        for algorithm, values in algorithms.items()
        for column, settings in raw["columns"].items()
    ]


def _traded(table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Return a row per noise level and a column per number of local steps."""
    found = []
    for row, column, printed, settings, rounds in tradeoff.cells(table):
        values = _cell(rows, table["row"], printed)
        known = [Printed(float(each["T"])) for each in rows if each["column"] == printed]
        values |= {tradeoff.ROUNDS: known[0]} if known else {}
        found.append(
            Cell(
                algorithm=slug(row),
                column=slug(column),
                settings=settings,
                printed=values,
                facts={tradeoff.ROUNDS: float(rounds)},
            )
        )
    return found


def slug(name: str) -> str:
    """Return a name in the form used on the command line."""
    return re.sub(r"[^a-z0-9.=]+", "-", name.lower()).strip("-")


def _cell(rows: Sequence[Mapping[str, Any]], algorithm: str, column: str) -> dict[str, Printed]:
    return {
        str(row.get("metric", "")): Printed(row["value"], row.get("std"))
        for row in rows
        if row["algorithm"] == algorithm and row["column"] == column
    }


def check_seeds(seeds: int | None, first: int | None) -> None:
    """Raise a `HushError` for an invalid number of seeds, or an invalid first one."""
    if seeds is not None and seeds < 1:
        raise HushError(f"--seeds: expected 1 or more, found {seeds}")
    if first is not None and first < 0:
        raise HushError(f"--first-seed: expected 0 or more, found {first}")
