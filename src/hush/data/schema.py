"""The schema of a run's rows: columns by name, their types, the values they may take, and the label.

    label = "outcome"
    classes = 2

    [columns.age]
    low = 0
    high = 120

    [columns.sex]
    categories = ["F", "M"]
    missing = "indicator"

`person = "patient"` beside `label` names the column with the key of each row's person, which is no feature and which no
other machine sees.

All of it is declared, never estimated from private rows: bounds and categories are public knowledge, so preprocessing
with them (`hush.data.preprocessing`) costs no privacy. `infer_schema` reads them from a file that is public.

In a federation a member declares the schema of its own file, a run brings its own, and columns are matched by name, in
any order. Only declarations are compared: whether a run is refused says nothing about any row.

Guarantees:
    - `check_fits` looks at two schemas and at no row.

Edge cases:
    - Arrays without names (images, `.npz`) are matched by their shape. Rows with names fit a run with names alone.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from hush.types import HushError

Kind = Literal["number", "integer", "category", "boolean", "date"]
Scale = Literal["none", "signed", "unit"]
Encoding = Literal["index", "one-hot"]
REFUSE, INDICATOR = "refuse", "indicator"
_MOST = 1 << 31
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One feature.

    Attributes:
        name: The name in the header of a file.
        kind: `number`, `integer`, `category`, `boolean` or `date`.
        low: The lower bound, or None. Values outside the bounds are clipped to them. For a date, days since 1970-01-01;
            a TOML file has the date itself.
        high: The upper bound.
        categories: The values of a category, as in the file.
        missing: What a blank becomes: `"refuse"` is an error, `"indicator"` a zero with an additional indicator column,
            and any other value (a number, a category) replaces it.
        unknown: Whether unlisted categories form a category of their own; otherwise they are an error.
    """

    name: str
    kind: Kind = "number"
    low: float | None = None
    high: float | None = None
    categories: tuple[str, ...] = ()
    missing: str | float = REFUSE
    unknown: bool = False

    def __post_init__(self) -> None:
        where = f"schema: column {self.name!r:.80}"
        if not isinstance(self.name, str) or not self.name:
            raise HushError(f"{where}; accepted: a name")
        if self.kind not in get_args(Kind):
            raise HushError(f"{where}: kind {self.kind!r:.40}; accepted: {', '.join(get_args(Kind))}")
        for bound in (self.low, self.high):
            if bound is not None and (not _number(bound) or self.kind in ("category", "boolean")):
                raise HushError(f"{where}: bound {bound!r:.40}; accepted: a number, for numeric columns")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise HushError(f"{where}: low {self.low:g} is above high {self.high:g}")
        if (self.kind == "category") != bool(self.categories) or len(set(self.categories)) != len(self.categories):
            raise HushError(
                f"{where}: {len(self.categories)} categories; accepted: distinct categories, for a column of kind "
                "category"
            )
        if not all(isinstance(each, str) for each in self.categories):
            raise HushError(f"{where}: categories must be strings")
        if type(self.unknown) is not bool or (self.unknown and self.kind != "category"):
            raise HushError(f"{where}: unknown {self.unknown!r:.40}; accepted: true, for a column of kind category")
        filled = self.missing in self.categories if self.kind == "category" else _number(self.missing)
        if not filled and self.missing not in (REFUSE, INDICATOR):
            value = "one of its categories" if self.kind == "category" else "a number"
            raise HushError(f"{where}: missing {self.missing!r:.40}; accepted: {REFUSE}, {INDICATOR} or {value}")

    def width(self, encoding: Encoding) -> int:
        """The number of model inputs that the column produces."""
        indicator = int(self.missing == INDICATOR)
        if self.kind != "category":
            return 1 + indicator
        return len(self.categories) + int(self.unknown) + indicator if encoding == "one-hot" else 1


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The rows of a file or of a run.

    Attributes:
        shape: The shape of one row.
        classes: The number of classes, or None if it is not declared.
        columns: The features, in the order of the model's inputs; empty for arrays without names.
        label: The label column, if columns have names.
        scale: Numbers and dates unchanged (`none`), or rescaled from their bounds to [-1, 1] (`signed`) or [0, 1]
            (`unit`).
        encoding: A category as its index in the list (`index`), or one-hot encoded (`one-hot`).
        class_names: The labels as in the file, in order; empty if they are 0 to classes - 1.
        person: The column with the key of each row's person, which is no feature, if rows have one.
    """

    shape: tuple[int, ...]
    classes: int | None = None
    columns: tuple[Column, ...] = ()
    label: str = "label"
    scale: Scale = "none"
    encoding: Encoding = "index"
    class_names: tuple[str, ...] = ()
    person: str | None = None

    def __post_init__(self) -> None:
        if not self.shape or not all(type(side) is int and 0 < side < _MOST for side in self.shape):
            raise HushError(f"schema: shape {self.shape!r:.80}; accepted: positive integers")
        if self.classes is not None and not (type(self.classes) is int and 0 < self.classes < _MOST):
            raise HushError(f"schema: classes {self.classes!r:.40}; accepted: a positive integer")
        if not isinstance(self.label, str) or self.label in self.names or len(set(self.names)) != len(self.columns):
            raise HushError("schema: accepted: columns with different names, none of them the label's")
        if self.person is not None and (
            not isinstance(self.person, str) or not self.person or self.person in (*self.names, self.label)
        ):
            raise HushError("schema: person: accepted: a column that is neither a feature nor the label")
        if self.columns and self.shape != (len(self.columns),):
            raise HushError(f"schema: {len(self.columns)} columns in rows of shape {self.shape}")
        for key, value, kinds in (("scale", self.scale, Scale), ("encoding", self.encoding, Encoding)):
            if value not in get_args(kinds):
                raise HushError(f"schema: {key} {value!r:.40}; accepted: {', '.join(get_args(kinds))}")
        for column in self.columns if self.scale != "none" else ():
            if column.kind in ("number", "integer", "date") and not _bounded(column):
                raise HushError(
                    f'schema: column {column.name!r:.80} has no low and high, which scale = "{self.scale}" needs; '
                    "accepted: public bounds, low below high"
                )
        if self.class_names and (not _texts(self.class_names) or len(set(self.class_names)) != self.classes):
            raise HushError(
                f"schema: {len(self.class_names)} class names for {self.classes} classes; accepted: different strings, "
                "one per class"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The column names."""
        return tuple(column.name for column in self.columns)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row as input of the model, after preprocessing."""
        return (sum(column.width(self.encoding) for column in self.columns),) if self.columns else self.shape

    def record(self) -> dict[str, Any]:
        """The schema as a JSON record; `from_record` reads it."""
        return asdict(self)


def from_record(raw: Any) -> Schema:
    """Parse the schema in a message, or raise a `HushError`."""
    known = set(Schema.__dataclass_fields__)
    if not isinstance(raw, Mapping) or not {"shape"} <= set(raw) <= known or not isinstance(raw["shape"], Sequence):
        raise HushError(f"schema: accepted: {', '.join(sorted(known))}")
    columns = raw.get("columns", ())
    if not isinstance(columns, Sequence) or not isinstance(raw.get("label", ""), str):
        raise HushError("schema: columns must be a list and label a string")
    names = raw.get("class_names", ())
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise HushError("schema: class_names must be a list of strings")
    rest = {key: raw[key] for key in ("classes", "label", "scale", "encoding", "person") if key in raw}
    return Schema(
        shape=tuple(raw["shape"]), columns=tuple(_column(each) for each in columns), class_names=tuple(names), **rest
    )


def read(path: Path) -> Schema:
    """Read the schema in a TOML file, with columns in the order of the file."""
    try:
        # Editors on Windows begin a file with a byte-order mark.
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise HushError(f"{path}: the schema cannot be read: {error}") from None
    try:
        return from_table(raw)
    except HushError as error:
        raise HushError(f"{path}: {error}") from None


def from_table(table: Mapping[str, Any]) -> Schema:
    """Parse the schema in a table such as `[data.schema]`: `classes` is their number or the list of their names."""
    if not isinstance(table, Mapping):
        raise HushError(f"schema: found {type(table).__name__}; accepted: a table, a Schema or the path of a TOML file")
    raw = {str(key): value for key, value in table.items()}
    columns, rest = raw.pop("columns", {}), set(raw) - {"label", "classes", "shape", "scale", "encoding", "person"}
    if rest or not isinstance(columns, Mapping) or bool(columns) == ("shape" in raw):
        raise HushError(
            f"schema: found {', '.join(sorted([*raw, 'columns'] if columns else raw)) or 'nothing'}; accepted: label, "
            "person, classes, scale, encoding, and a table for each column, or the shape of arrays without names"
        )
    made = [_column({"name": name, **_table(name, each)}) for name, each in columns.items()]
    classes = raw.get("classes")
    if isinstance(classes, list | tuple):
        raw |= {"classes": len(classes), "class_names": tuple(map(str, classes))}
    shape = raw.pop("shape", [len(made)])
    return from_record({"shape": shape, "columns": [asdict(column) for column in made], **raw})


def toml(schema: Schema) -> str:
    """Serialise the schema as TOML, which `read` reads."""
    lines = [f"label = {json.dumps(schema.label)}", f'scale = "{schema.scale}"', f'encoding = "{schema.encoding}"']
    if schema.person is not None:
        lines.append(f"person = {json.dumps(schema.person, ensure_ascii=False)}")
    if schema.classes is not None:
        lines.append(f"classes = {json.dumps(list(schema.class_names) if schema.class_names else schema.classes)}")
    for column in schema.columns:
        lines += ["", f"[columns.{json.dumps(column.name, ensure_ascii=False)}]", f'kind = "{column.kind}"']
        for key, bound in (("low", column.low), ("high", column.high)):
            if bound is not None:
                shown = str(_EPOCH + timedelta(int(bound))) if column.kind == "date" else json.dumps(bound)
                lines.append(f"{key} = {shown}")
        if column.categories:
            lines.append(f"categories = {json.dumps(column.categories, ensure_ascii=False)}")
        if column.missing != REFUSE:
            lines.append(f"missing = {json.dumps(column.missing)}")
        if column.unknown:
            lines.append("unknown = true")
    return "\n".join(lines) + "\n"


def from_header(names: Sequence[str], label: str) -> Schema:
    """Return the schema of a header without declaration: numeric columns."""
    return Schema(shape=(len(names),), classes=None, columns=tuple(Column(name=name) for name in names), label=label)


def check_fits(own: Schema, run: Schema) -> None:
    """Raise a `HushError` unless rows of one schema can be mapped to the other."""
    if run.classes is None:
        raise HushError("schema: the run does not declare the number of classes")
    if own.classes is not None and own.classes > run.classes:
        raise HushError(
            f"schema: this member declares labels 0 to {own.classes - 1}; the run has 0 to {run.classes - 1}"
        )
    if own.shape != run.shape or bool(own.columns) != bool(run.columns):
        raise HushError(
            f"schema: this member's rows have shape {own.shape} {'with' if own.columns else 'without'} column "
            "names; the "
            f"run's have {run.shape[:8]} {'with' if run.columns else 'without'} (schema.toml names the columns of "
            "arrays)"
        )
    if own.class_names and own.class_names != run.class_names:
        raise HushError("schema: this member's class names are not those of the run, in its order")
    if own.columns and own.label != run.label:
        raise HushError(f"schema: this member's label column is {own.label!r}; the run's is {run.label[:80]!r}")
    mine, theirs = ({column.name: column for column in schema.columns} for schema in (own, run))
    if set(mine) != set(theirs):
        more, fewer = sorted(set(mine) - set(theirs)), sorted(set(theirs) - set(mine))
        raise HushError(
            f"schema: columns only at this member: {', '.join(more)[:200] or 'none'}; only in the run: "
            f"{', '.join(fewer)[:200]}"
        )
    for name, column in mine.items():
        if column.kind != theirs[name].kind:
            raise HushError(
                f"schema: column {name} has kind {column.kind} at this member and {theirs[name].kind} in the run"
            )
        if not set(column.categories) <= set(theirs[name].categories):
            raise HushError(f"schema: column {name} has categories at this member that the run does not have")
        if column.unknown and not theirs[name].unknown:
            raise HushError(f"schema: column {name} allows unknown categories at this member; the run refuses them")
        if column.missing != REFUSE and theirs[name].missing == REFUSE:
            raise HushError(f"schema: column {name} may have blanks at this member; the run refuses them")


def _column(raw: Any) -> Column:
    if not isinstance(raw, Mapping) or not {"name"} <= set(raw) <= set(Column.__dataclass_fields__):
        raise HushError(f"schema: a column {raw!r:.80}; accepted: {', '.join(Column.__dataclass_fields__)}")
    categories = raw.get("categories", ())
    if not isinstance(categories, Sequence) or isinstance(categories, str):
        raise HushError("schema: categories must be a list of strings")
    kind = raw.get("kind", "category" if categories else "number")
    low, high, missing = (raw.get(key) for key in ("low", "high", "missing"))
    if kind == "date":
        low, high, missing = (_days(value) for value in (low, high, missing))
    return Column(
        name=raw["name"],
        kind=kind,
        low=low,
        high=high,
        categories=tuple(categories),
        missing=REFUSE if missing is None else missing,
        unknown=raw.get("unknown", False),
    )


def _days(value: Any) -> Any:
    """Convert a date to days since 1970-01-01; anything else is left for the checks of a column."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(value, datetime):
        value = value.date()
    return float((value - _EPOCH).days) if isinstance(value, date) else value


def _table(name: str, raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping) or "name" in raw:
        raise HushError(f"schema: column {name} must be a table with kind, low, high, categories, missing and unknown")
    return raw


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _bounded(column: Column) -> bool:
    return column.low is not None and column.high is not None and column.low < column.high


def _texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)
