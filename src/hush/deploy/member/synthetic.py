"""Synthetic rows of a schema, for dry runs: random values within the declared bounds and categories, and random labels.

They depend on the schema and on a number of rows, and on no row of anybody.
"""

from __future__ import annotations

import csv
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from hush.data.datasets import Dataset
from hush.data.schema import REFUSE, Column, Schema
from hush.seeds import rng

NAME = "synthetic rows"
_BLANK = 0.05  # of the values, in columns that allow blanks


def synthetic_rows(schema: Schema, number: int, classes: int, seed: int = 0) -> Dataset:
    """Return as many random rows of that schema, encoded as a file with such rows would be."""
    drawn = rng(seed, NAME)
    x = drawn.normal(size=(number, *schema.shape)).astype(np.float32)
    for at, column in enumerate(schema.columns):
        if column.kind == "category":
            x[:, at] = drawn.integers(0, len(column.categories), number)
        elif column.kind == "boolean":
            x[:, at] = drawn.integers(0, 2, number)
        elif column.low is not None and column.high is not None:
            x[:, at] = drawn.uniform(column.low, column.high, number)
        if column.kind in ("integer", "date"):
            x[:, at] = np.rint(x[:, at])
        if column.missing != REFUSE:
            x[drawn.random(number) < _BLANK, at] = np.nan
    return Dataset(name=NAME, x=x, y=drawn.integers(0, classes, number), classes=classes, schema=schema)


def write_rows(path: Path, rows: Dataset) -> Path:
    """Write rows as a file of their schema: a table with its columns, or arrays; return its path."""
    schema = rows.schema
    if schema is None or not schema.columns:
        file = path.with_suffix(".npz")
        np.savez(file, x=rows.x, y=rows.y)
        return file
    file = path.with_suffix(".csv")
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow([*schema.names, schema.label])
        for row, label in zip(rows.x.tolist(), rows.y.tolist(), strict=True):
            values = [_text(column, value) for column, value in zip(schema.columns, row, strict=True)]
            writer.writerow([*values, schema.class_names[label] if schema.class_names else label])
    return file


def _text(column: Column, value: float) -> object:
    if np.isnan(value):
        return ""
    if column.kind == "category":
        return column.categories[int(value)]
    if column.kind == "date":
        return (date(1970, 1, 1) + timedelta(int(value))).isoformat()
    if column.kind == "boolean":
        return "true" if value else "false"
    return int(value) if column.kind == "integer" else value
