"""Preprocessing of tables by a schema alone: bounds and categories are declared, and no statistic is taken from rows.

A column goes through two steps. `encoded` reads the values of a file as numbers: a category becomes its place in the
list, a date the days since 1970-01-01, a blank NaN. `features` makes of these what a model gets: numbers scaled from
their bounds, categories one-hot, blanks as the schema says. In a federation, `mapped` brings rows from the schema of a
member to that of a run in between.

Guarantees:
    - Each row of the result depends on one row and the schema alone, so that neighbouring data stay neighbouring and
      preprocessing costs no privacy.
    - `features` returns as many rows as it gets. With the defaults of a schema it returns them as they are.

Edge cases:
    - A value outside the bounds of a column is clipped to them; so is a label beyond the run's classes, which a member
      rules out by declaring its own number of classes.
    - The place of an unknown category is after the listed ones; that of a blank, if it has one, after that.
    - `infer_schema` is the one function that looks at values. What it returns is as public as its file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from hush.data.schema import INDICATOR, REFUSE, Column, Schema
from hush.data.tables import Table, Values, blanks, frame_table, is_frame, read_table
from hush.data.targets import class_values
from hush.types import HushError

Rows = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
_BOOLEANS = {
    "true": 1.0,
    "yes": 1.0,
    "t": 1.0,
    "y": 1.0,
    "1": 1.0,
    "false": 0.0,
    "no": 0.0,
    "f": 0.0,
    "n": 0.0,
    "0": 0.0,
}
_MOST_CATEGORIES = 100


def preprocessed(table: Table, schema: Schema | None) -> Rows:
    """Return the columns of a table as the inputs of a model; without a schema all of them must be numeric, without
    blanks.

    Raises:
        HushError: A column is missing, is not in the schema, or contains what the schema does not allow.
    """
    names = list(table.columns)
    if schema is None:
        return _numbers(table)
    if set(names) != set(schema.names):
        missing, more = sorted(set(schema.names) - set(names)), sorted(set(names) - set(schema.names))
        raise HushError(
            f"schema: columns that the data lacks: {_listed(missing)}; columns that the schema lacks: {_listed(more)}; "
            "accepted: the same columns, in any order"
        )
    raw = [encoded(column, table.columns[column.name], table.place) for column in schema.columns]
    return features(np.stack(raw, axis=1), schema)


def features(x: npt.NDArray[Any], schema: Schema) -> Rows:
    """Return the model inputs (n, *schema.input_shape) of encoded rows (n, columns)."""
    changed = schema.scale != "none" or schema.encoding != "index" or any(c.missing != REFUSE for c in schema.columns)
    if not schema.columns or not changed:
        return x.astype(np.float32, copy=False)
    made = [part for at, column in enumerate(schema.columns) for part in _features(x[:, at], column, schema)]
    return np.stack(made, axis=1).astype(np.float32)


def mapped(x: Rows, y: Labels, own: Schema, run: Schema) -> tuple[Rows, Labels]:
    """Map encoded rows of a member to a run's model inputs: columns by name, values clipped to the run's bounds."""
    if run.columns:
        x = np.stack(
            [_values(x[:, own.names.index(column.name)], own, column) for column in run.columns], axis=1
        ).astype(np.float32)
        x = features(x, run)
    return x, y if run.classes is None else y.clip(0, run.classes - 1)


def encoded(column: Column, values: Values, where: Callable[[int], str]) -> Numbers:
    """Encode a column of a file as numbers, within its own bounds, with NaN for a blank that the column allows.

    `where` describes the position of a row in the file. Raises a `HushError` if a value is not of the column's kind.
    """
    blank = blanks(values)
    if blank.any() and column.missing == REFUSE:
        row = int(np.argmax(blank))
        raise HushError(
            f'{where(row)}: {column.name} is blank; accepted: a value, or missing = "{INDICATOR}" in a schema'
        )
    read = {"category": _category, "boolean": _boolean, "date": _date}.get(column.kind, _number)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and read is _number:
        numbers = values.astype(np.float64)
    else:
        numbers = np.full(len(values), math.nan)
        places = {category: float(at) for at, category in enumerate(column.categories)}
        for row in np.flatnonzero(~blank).tolist():
            try:
                numbers[row] = read(values[row], column, places)
            except (TypeError, ValueError, OverflowError) as error:
                raise HushError(f"{where(row)}: {column.name}: {error}") from None
    if column.kind == "integer" and (uneven := np.flatnonzero(~blank & (numbers != np.rint(numbers)))).size:
        raise HushError(f"{where(int(uneven[0]))}: {column.name}: not an integer, in a column of kind integer")
    return _clipped(column, numbers)


def infer_schema(
    public: object, *, label: str | None = None, client: str | None = None, name: str = "public file"
) -> Schema:
    """Infer the schema of a public table: bounds, categories and blanks as they are in it.

    Never use private rows: the minimum and the maximum of a column are values of individual rows.

    Args:
        public: The path of a CSV or Parquet file, or a DataFrame.
        label: The label column; by default "label".
        client: The column with the client names, which is not a feature.
        name: The name of a DataFrame in messages.

    Returns:
        A schema with `scale = "signed"`, `encoding = "one-hot"`, and an unknown category for each categorical column.
    """
    table = frame_table(public, name) if is_frame(public) else read_table(public)
    label = label or "label"
    table.require([label] if client is None else [label, client])
    rest = table.without([label] if client is None else [label, client])
    columns = tuple(_inferred(column, values, rest.place) for column, values in rest.columns.items())
    found = class_values(table.columns[label])
    return Schema(
        shape=(len(columns),),
        classes=None if found is None else len(found),
        columns=columns,
        label=label,
        scale="signed",
        encoding="one-hot",
        class_names=() if found is None else tuple(map(str, found)),
    )


def _numbers(table: Table) -> Rows:
    """Convert a numeric table; for others the error shows a schema to write, based on column names and types alone."""
    wanted: dict[str, str] = {}
    made = []
    for name, values in table.columns.items():
        numbers = _as_numbers(values)
        if numbers is None:
            dated = isinstance(values, np.ndarray) and values.dtype.kind == "M"
            wanted[name] = (
                'kind = "date", low = ..., high = ...' if dated else 'categories = ["...", "..."], unknown = true'
            )
        elif np.isnan(numbers).any():
            wanted[name] = f'low = ..., high = ..., missing = "{INDICATOR}"'
        else:
            made.append(numbers)
    if wanted:
        shown = ", ".join(f"{_key(name)} = {{{words}}}" for name, words in list(wanted.items())[:8])
        rest = ", ".join(_key(name) for name in table.columns if name not in wanted)
        raise HushError(
            f"columns {_listed(list(wanted))} hold texts, dates or blanks, and no schema says what they may be; write "
            f'[data.schema] with scale = "signed", encoding = "one-hot", columns = {{{shown}}}'
            + (f", and low and high for {rest[:200]}" if rest else "")
        )
    return np.stack(made, axis=1).astype(np.float32)


def _as_numbers(values: Values) -> Numbers | None:
    """Return the values as numbers, with NaN for blanks; None if some are not numbers."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        return None
    numbers = np.full(len(values), math.nan)
    filled = np.flatnonzero(~blanks(values))
    try:
        numbers[filled] = np.array([float(values[row]) for row in filled.tolist()])
    except (TypeError, ValueError):
        return None
    return numbers


def _features(values: npt.NDArray[Any], column: Column, schema: Schema) -> list[npt.NDArray[Any]]:
    blank = np.isnan(values)
    if column.kind == "category":
        size = len(column.categories)
        fill = size + int(column.unknown)
        if column.missing not in (REFUSE, INDICATOR):
            fill = column.categories.index(str(column.missing))
        places = np.where(blank, fill, values).astype(np.int64)
        if schema.encoding == "index":
            return [places]
        return [places == at for at in range(column.width("one-hot"))]
    fill_value = 0.0 if column.missing in (REFUSE, INDICATOR) else float(column.missing)
    numbers = _clipped(column, np.where(blank, fill_value, values.astype(np.float64)))
    low, high = (0.0, 1.0) if column.kind == "boolean" else (column.low, column.high)
    if schema.scale != "none" and low is not None and high is not None:
        numbers = (numbers - low) / (high - low)
        numbers = 2 * numbers - 1 if schema.scale == "signed" else numbers
    if column.missing != INDICATOR:
        return [numbers]
    return [np.where(blank, 0.0, numbers), blank]


def _values(values: Rows, own: Schema, column: Column) -> npt.NDArray[Any]:
    if column.kind != "category":
        return _clipped(column, values)
    categories = own.columns[own.names.index(column.name)].categories
    places = np.array([*(column.categories.index(each) for each in categories), len(column.categories)], np.float32)
    blank = np.isnan(values)
    return np.where(blank, math.nan, places[np.where(blank, 0, values).astype(np.int64)])


def _clipped(column: Column, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    low, high = (-math.inf if column.low is None else column.low), (math.inf if column.high is None else column.high)
    return values.clip(low, high)


def _number(value: Any, column: Column, _: dict[str, float]) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{error}; accepted: a number, or a category that schema.toml lists") from None


def _category(value: Any, column: Column, places: dict[str, float]) -> float:
    text = str(value)
    if text not in places and isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if text in places:
        return places[text]
    if column.unknown:
        return float(len(places))
    raise ValueError(
        f"found {text[:80]!r}; accepted: {', '.join(column.categories)[:200]}, or unknown = true in the schema"
    )


def _boolean(value: Any, column: Column, _: dict[str, float]) -> float:
    found = _BOOLEANS.get(str(value).strip().lower().removesuffix(".0"))
    if found is None:
        raise ValueError(f"found {str(value)[:80]!r}; accepted: true, false, yes, no, 1, 0")
    return found


def _date(value: Any, column: Column, _: dict[str, float]) -> float:
    if isinstance(value, np.datetime64):
        return float(value.astype("datetime64[D]").astype(np.int64))
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(f"found {value[:40]!r}; accepted: a date such as 2024-12-31") from None
    if isinstance(value, datetime):
        value = value.date()
    if not isinstance(value, date):
        raise ValueError(f"found {type(value).__name__}; accepted: a date such as 2024-12-31")
    return float((value - date(1970, 1, 1)).days)


def _inferred(name: str, values: Values, where: Callable[[int], str]) -> Column:
    """Return the narrowest column that allows these public values."""
    blank = blanks(values)
    missing = INDICATOR if blank.any() else REFUSE
    known = [values[row] for row in np.flatnonzero(~blank).tolist()]
    if not known:
        raise HushError(f"schema: column {name!r:.80} is blank in every row, so nothing says what it may hold")
    if all(isinstance(value, bool | np.bool_) for value in known):
        return Column(name=name, kind="boolean", missing=missing)
    numbers = _as_numbers(values)
    if numbers is not None:
        low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        if not math.isfinite(low) or not math.isfinite(high):
            raise HushError(f"schema: column {name!r:.80} holds infinity; accepted: finite numbers")
        return Column(name=name, kind="number", low=low, high=high if high > low else low + 1.0, missing=missing)
    try:
        days = [_date(value, Column(name=name, kind="date"), {}) for value in known]
    except ValueError:
        found = sorted({str(value) for value in known})
        if len(found) > _MOST_CATEGORIES:
            raise HushError(
                f"schema: column {name!r:.80} has {len(found)} different texts; accepted: up to {_MOST_CATEGORIES} "
                "categories; leave such a column out"
            ) from None
        return Column(name=name, kind="category", categories=tuple(found), missing=missing, unknown=True)
    return Column(name=name, kind="date", low=min(days), high=max(max(days), min(days) + 1.0), missing=missing)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)[:200] or "none"


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else f'"{name}"'
