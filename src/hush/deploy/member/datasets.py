"""A member's own datasets: CSV, Parquet, NumPy, IDX, or a custom loader, which only the member's policy can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hush.config import Config
from hush.data.client_data import with_persons
from hush.data.client_rows import persons_of
from hush.data.datasets import Dataset, from_arrays
from hush.data.files import gunzip, read_bytes
from hush.data.idx import parse_idx
from hush.data.preprocessing import encoded, features
from hush.data.schema import INDICATOR, REFUSE, Schema, from_header
from hush.data.schema import read as read_schema
from hush.data.tables import Values, read_arrays, read_table
from hush.data.targets import encode_targets
from hush.engines.setup import load as load_named
from hush.types import HushError
from hush.user_code import user_code

KINDS = ".npz (x, y), .csv, .parquet, a directory of IDX files (*images*, *labels*), or data.loader in the policy"
SCHEMA = "schema.toml"
Array = npt.NDArray[Any]
Pair = tuple[Array, Array]


def load(
    path: Path, *, label: str = "label", loader: str | None = None, classes: int | None = None,
    declared: Schema | None = None, columns: Sequence[str] = (), person: str | None = None,
) -> Dataset:  # fmt: skip
    """Load the rows in a file with their schema: features are finite, labels are integers from 0, columns are as
    `declared`.

    If `columns` are given, all others of a table are left out. Without a declared schema, a table has the columns of
    its header, all of them numeric, and arrays have only a shape. The column `person`, or the one that the schema
    names, has the keys of the rows' persons, which then lie one after the other.
    """
    if not path.exists():
        raise HushError(f"{path}: not found; accepted: {KINDS}")
    label = declared.label if declared is not None and declared.columns else label
    classes = declared.classes if declared is not None and declared.classes is not None else classes
    person = declared.person if person is None and declared is not None else person
    names, x, y, keys = (None, *_own(loader, path), None) if loader else _read(path, label, declared, columns, person)
    try:
        if declared is not None and declared.columns and names is None:
            x = _checked_columns(np.asarray(x), declared)
        if classes is None and np.asarray(y).dtype.kind in "iu" and np.size(y):
            # A member may lack rows of some classes, including the first ones.
            classes = max(1, int(np.max(y)) + 1)
        # Blanks that the schema allows stay NaN until the run specifies how they are encoded.
        blank = np.isnan(x) if declared is not None and declared.columns else None
        found = from_arrays(x if blank is None else np.where(blank, 0.0, x), y, path.name, classes)
        if blank is not None:
            found.x[blank] = np.nan
        schema = declared or (from_header(names, label) if names else Schema(shape=found.x.shape[1:]))
        if schema.shape != found.x.shape[1:]:
            raise HushError(f"rows of shape {found.x.shape[1:]}; the schema has {schema.shape}")
        found = replace(found, schema=schema)
        return found if keys is None else _by_person(with_persons(found, keys, person))
    except HushError as error:
        raise HushError(f"{path}: {error}") from None


def _by_person(data: Dataset) -> Dataset:
    """The rows, one person after the other."""
    order = np.concatenate(persons_of(data))
    assert data.person is not None
    return replace(data, x=data.x[order], y=data.y[order], person=data.person[order])


def _checked_columns(x: npt.NDArray[Any], declared: Schema) -> npt.NDArray[Any]:
    """Treat an array without column names as the columns of a schema, in order; categories are list indices."""
    if x.ndim != 2 or x.shape[1:] != declared.shape:
        raise HushError(f"rows of shape {x.shape[1:]}; the schema has {len(declared.columns)} columns")
    places = [
        replace(
            column,
            categories=tuple(str(float(at)) for at in range(len(column.categories))),
            missing=REFUSE if column.missing == REFUSE else INDICATOR,
        )
        for column in declared.columns
    ]
    return np.stack([encoded(column, x[:, at].astype(np.float64), _row) for at, column in enumerate(places)], axis=1)


def _row(at: int) -> str:
    return f"row {at}"


def public_test(
    path: Path | None, folder: Path, config: Config, *, label: str = "label", classes: int | None = None,
    root: str | None = None,
) -> Dataset:  # fmt: skip
    """Return the coordinator's public test set: a given file, `test.*` in its folder, or the config's own dataset.

    `schema.toml` in the folder declares the columns; without it, the header of the file does.
    """
    beside = sorted(found for kind in (".npz", ".csv", ".parquet") for found in folder.glob(f"test{kind}"))
    if path is None and not beside:
        return load_named(config, root).dataset
    found = load(path or beside[0], label=label, classes=classes, declared=declared(folder))
    if found.schema is None:
        return found
    names, labels = found.schema.class_names, (found.schema.label,) if found.schema.columns else ()
    inputs = features(found.x, found.schema)
    return replace(found, x=inputs, class_names=names, class_values=names, label_columns=labels)


def declared(folder: Path) -> Schema | None:
    """Return the schema in a folder, if there is one."""
    return read_schema(folder / SCHEMA) if (folder / SCHEMA).exists() else None


def schema_of(data: Dataset) -> Schema:
    """Return the schema of a run over such rows, with the number of classes."""
    return replace(data.schema or Schema(shape=data.x.shape[1:]), classes=data.classes)


def _read(
    path: Path, label: str, declared: Schema | None, only: Sequence[str], person: str | None
) -> tuple[list[str] | None, Array, Array, Values | None]:
    """Read column names, if there are any, encoded features, labels, and the keys of persons if they have a column."""
    if only and path.suffix not in (".csv", ".parquet"):
        raise HushError(f"{path}: has no column names; data.columns is accepted for .csv and .parquet", "data.columns")
    if path.is_dir():
        return (None, *_idx(path), None)
    if path.suffix == ".npz":
        arrays = read_arrays(path)
        if {"x", "y"} != set(arrays) - {person}:
            raise HushError(f"{path}: holds {', '.join(arrays)}; accepted: x and y")
        return None, arrays["x"], arrays["y"], arrays.get(person) if person else None
    if path.suffix not in (".csv", ".parquet"):
        raise HushError(f"{path}: unknown file type {path.suffix or '(none)'}; accepted: {KINDS}")
    table = read_table(path)
    table.require([label])
    if only:
        if lacking := sorted(set(only) - set(table.columns)):
            raise HushError(
                f"{path}: no columns {', '.join(lacking)[:200]}, which data.columns lists; accepted: some of "
                f"{', '.join(table.columns)[:200]}",
                "data.columns",
            )
        table = table.without([name for name in table.columns if name not in (*only, label, person)])
    # A public file without the column has no persons; a member that protects them is refused without it.
    keys = None if person is None else table.columns.get(person)
    others = [label] if keys is None else [label, str(person)]
    rest, names = table.without(others), [name for name in table.columns if name not in others]
    if declared is None or not declared.columns:
        wanted = from_header(names, label).columns
    else:
        wanted = declared.columns
        if set(names) != set(declared.names):
            found, accepted = (", ".join(sorted(each))[:200] for each in (names, declared.names))
            raise HushError(f"{path}: columns {found}; the schema has {accepted}")
    features = [encoded(column, rest.columns[column.name], table.place) for column in wanted]
    return names, np.stack(features, axis=1), _labels(table.columns[label], label, declared, table.place), keys


def _labels(values: Any, label: str, declared: Schema | None, where: Callable[[int], str]) -> Array:
    if declared is not None and declared.class_names:
        return encode_targets(values, declared.class_names, where, "classes").values
    if isinstance(values, np.ndarray):
        return values
    found = np.empty(len(values), np.int64)
    for row, value in enumerate(values):
        try:
            found[row] = int(value)
        except (ValueError, OverflowError) as error:
            raise HushError(f"{where(row)}: {label}: {error}; accepted: an integer") from None
    return found


def _idx(path: Path) -> Pair:
    found = {}
    for what, dimensions in (("images", 3), ("labels", 1)):
        files = sorted(path.glob(f"*{what}*"))
        if len(files) != 1:
            raise HushError(f"{path}: {len(files)} files named *{what}*; accepted: one")
        content = read_bytes(files[0])
        content = gunzip(content, files[0]) if files[0].suffix == ".gz" else content
        found[what] = parse_idx(content, files[0], dimensions)
    return found["images"][:, None].astype(np.float32) / 255.0, found["labels"].astype(np.int64)


def _own(loader: str, path: Path) -> Pair:
    if ":" not in loader:
        raise HushError(f"data.loader: found {loader!r}; accepted: module:function", "data.loader")
    try:
        call = user_code(loader)
    except (ImportError, AttributeError) as error:
        raise HushError(f"data.loader: {loader}: {error}", "data.loader") from None
    try:
        x, y = call(path)
    except Exception as error:  # the member's own code can raise anything; the error says so
        raise HushError(f"data.loader: {loader} failed: {error!r}", "data.loader") from None
    return np.asarray(x), np.asarray(y)
