"""Tables with named columns, from CSV and Parquet files, pandas and polars DataFrames, and Hugging Face datasets.

pandas, polars, pyarrow and datasets are optional: none of them is imported here unless a Parquet file is read. A
DataFrame is recognised by its interface, and its own methods convert it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from hush.data.files import read_bytes
from hush.types import HushError

Values: TypeAlias = Sequence[Any] | npt.NDArray[Any]
KINDS = ".csv, .parquet or .npz"


@runtime_checkable
class Frame(Protocol):
    """A pandas or polars DataFrame."""

    columns: Any

    def __getitem__(self, name: Any, /) -> Any:
        """A column."""

    def to_numpy(self) -> Any:
        """All values."""


@runtime_checkable
class ColumnDataset(Protocol):
    """A Hugging Face `datasets.Dataset`."""

    column_names: Any

    def __getitem__(self, name: Any, /) -> Any:
        """A column."""

    def __len__(self) -> int:
        """The number of rows."""


class Columns:
    """A mapping from names to columns, with the interface of a dataset with named columns."""

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        plain = {str(name): _plain(values) for name, values in columns.items()}
        if len({len(values) for values in plain.values()}) > 1:
            raise HushError("rows: columns of different lengths; accepted: as many values in each column")
        self.column_names = list(plain)
        self._columns = plain

    def joined(self, name: str, values: object) -> Columns:
        """The same with a column more."""
        return Columns({**self._columns, name: values})

    def __getitem__(self, name: str, /) -> Any:
        return self._columns[name]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))


@dataclass(frozen=True)
class Source:
    """The origin of some rows of a table; `lines` are line numbers in a text file."""

    name: str
    rows: int
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """Named columns of equal length."""

    columns: Mapping[str, Values]
    sources: tuple[Source, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(source.rows for source in self.sources)

    def place(self, row: int) -> str:
        """The position of a row, for messages."""
        for source in self.sources:
            if row < source.rows:
                return f"{source.name}:{source.lines[row]}" if source.lines else f"{source.name}: row {row}"
            row -= source.rows
        raise IndexError(row)

    def require(self, names: Iterable[str]) -> None:
        """Raise a `HushError` unless there are columns of these names, and at least one other."""
        wanted = list(names)
        lacking = [name for name in wanted if name not in self.columns]
        if lacking or len(self.columns) <= len(wanted):
            raise HushError(
                f"{self.sources[0].name}: columns {', '.join(self.columns)[:200] or 'none'}; accepted: features, and "
                f"one column {' and one '.join(map(repr, wanted))}"
            )

    def without(self, names: Iterable[str]) -> Table:
        """The table without some of its columns."""
        dropped = set(names)
        return Table({name: values for name, values in self.columns.items() if name not in dropped}, self.sources)


def read_table(path: object) -> Table:
    """Read the table in a CSV or Parquet file."""
    if not isinstance(path, str | Path):
        raise HushError(f"table: found {type(path).__name__}; accepted: the path of a CSV or Parquet file, a DataFrame")
    file = Path(path)
    if not file.is_file():
        raise HushError(f"{file}: no such file; accepted: {KINDS}")
    readers = {".csv": _csv, ".parquet": _parquet}
    if file.suffix.lower() not in readers:
        raise HushError(f"{file}: unknown kind {file.suffix or 'of file'}; accepted: {KINDS}")
    return readers[file.suffix.lower()](file)


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays in an `.npz` file, by name. Pickled objects are refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
        raise HushError(f"{path}: not a NumPy archive: {error}") from None


def is_frame(data: object) -> bool:
    """Return whether an object is a DataFrame, or a dataset with named columns."""
    return isinstance(data, Frame | ColumnDataset) and not isinstance(data, np.ndarray | type)


def frame_table(frame: Any, name: str) -> Table:
    """Return the columns of a DataFrame or of a Hugging Face dataset."""
    if isinstance(frame, ColumnDataset):
        names, rows = list(frame.column_names), len(frame)
        columns = {str(column): _listed(frame[column]) for column in names}
    else:
        names, rows = list(frame.columns), len(frame)
        if len(set(names)) != len(names):
            raise HushError(f"{name}: two columns have one name; accepted: different names")
        columns = {str(column): _series(frame[column]) for column in names}
    return Table(_checked(columns, name), (Source(name, rows),))


def is_nested(table: Table) -> bool:
    """Whether a column holds sequences, such as token numbers, in place of single values."""
    firsts = (values[0] for values in table.columns.values() if len(values))
    return any(isinstance(first, list | tuple | np.ndarray) for first in firsts)


def stacked(tables: Sequence[Table]) -> Table:
    """Return one table with the rows of several, whose columns must be the same, in any order."""
    first = tables[0]
    for table in tables[1:]:
        if set(table.columns) != set(first.columns):
            apart = sorted(set(table.columns) ^ set(first.columns))
            raise HushError(
                f"{table.sources[0].name}: other columns than {first.sources[0].name}: {', '.join(apart)[:200]} in one "
                "alone; accepted: the same columns everywhere"
            )
    columns = {name: _joined(name, tables) for name in first.columns}
    return Table(columns, tuple(source for table in tables for source in table.sources))


def blanks(values: Values) -> npt.NDArray[np.bool_]:
    """Return which values are missing: None, NaN, not-a-time, or a text of spaces."""
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        if values.dtype.kind in "fM":
            return np.asarray(np.isnat(values) if values.dtype.kind == "M" else np.isnan(values), bool)
        return np.char.str_len(np.char.strip(values)) == 0 if values.dtype.kind == "U" else np.zeros(len(values), bool)
    return np.fromiter((_blank(value) for value in values), bool, len(values))


def _blank(value: object) -> bool:
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def _csv(path: Path) -> Table:
    """Read columns of texts."""
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    lines = csv.reader(io.StringIO(text))
    try:
        names = next(lines, [])
        found, numbers = [], []
        for number, line in enumerate(lines, 2):
            if not line:
                continue
            if len(line) != len(names):
                raise HushError(f"{path}:{number}: {len(line)} columns; accepted: {len(names)}, as in line 1")
            found.append(line)
            numbers.append(number)
    except csv.Error as error:
        raise HushError(f"{path}: not a CSV file: {error}") from None
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise HushError(f"{path}: columns {', '.join(twice)[:200]} stand twice in line 1; accepted: different names")
    columns: list[Values] = [list(column) for column in zip(*found, strict=True)] or [[] for _ in names]
    return Table(dict(zip(names, columns, strict=True)), (Source(str(path), len(numbers), tuple(numbers)),))


def _parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise HushError(f"{path}: reading Parquet needs pyarrow; pip install pyarrow") from None
    try:
        table = parquet.read_table(path)
        # pandas writes its index as an additional column.
        names = [name for name in table.column_names if not name.startswith("__index_level_")]
        columns = {str(name): _arrow(table.column(name)) for name in names}
    except (ArrowException, OSError) as error:
        raise HushError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None
    return Table(columns, (Source(str(path), table.num_rows),))


def _arrow(column: Any) -> Values:
    found = np.asarray(column.to_numpy())
    # Nested values and nullable booleans are returned as objects.
    return column.to_pylist() if found.dtype.kind == "O" else found


def _series(series: Any) -> Values:
    """Convert a DataFrame column: numbers, times and booleans to an array, others to a list with None for blanks."""
    found = np.asarray(series.to_numpy())
    if found.dtype.kind in "biufM" and found.ndim == 1:
        return found
    values = list(series.to_list())
    # pandas has its own marker for blanks, whose comparisons have no truth value.
    return [None if type(value).__name__ in ("NAType", "NaTType") else value for value in values]


def _plain(column: Any) -> list[Any]:
    """The values of a column, as Python has them but for times."""
    if hasattr(column, "to_numpy") and hasattr(column, "to_list"):
        column = _series(column)
    found = column if isinstance(column, list) else np.asarray(column)
    if isinstance(found, np.ndarray):
        if not found.ndim:
            raise HushError("rows: a column is a single value; accepted: a list of values for each column")
        return list(found) if found.dtype.kind == "M" else list(found.tolist())
    return [value.item() if isinstance(value, np.number | np.bool_) else value for value in found]


def _listed(column: Any) -> Values:
    found = list(column)
    if found and all(isinstance(value, bool | int | float) for value in found):
        return np.asarray(found)
    return found


def _checked(columns: dict[str, Values], name: str) -> dict[str, Values]:
    for column, values in columns.items():
        if isinstance(values, np.ndarray) and values.dtype.kind not in "biufMO":
            raise HushError(f"{name}: column {column!r} is {values.dtype}; accepted: numbers, texts, dates, booleans")
    return columns


def _joined(name: str, tables: Sequence[Table]) -> Values:
    """Join the values of one column of all tables; a `HushError` if it has numbers in one and texts in another."""
    columns = [table.columns[name] for table in tables]
    kinds = [_kind(values) for values in columns]
    for table, kind in zip(tables, kinds, strict=True):
        if kind != kinds[0] and "empty" not in (kind, kinds[0]):
            raise HushError(
                f"{table.sources[0].name}: column {name!r} holds {kind}, in {tables[0].sources[0].name} {kinds[0]}; "
                "accepted: the same kind everywhere"
            )
    if all(isinstance(values, np.ndarray) for values in columns):
        return np.concatenate([np.asarray(values) for values in columns])
    return [value for values in columns for value in values]


def _kind(values: Values) -> str:
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return {"M": "dates", "b": "booleans"}.get(values.dtype.kind, "numbers")
    first = next((value for value in values if not _blank(value)), None)
    if first is None:
        return "empty"
    if isinstance(first, bool | np.bool_):
        return "booleans"
    return "numbers" if isinstance(first, int | float | np.number) else "texts" if isinstance(first, str) else "values"
