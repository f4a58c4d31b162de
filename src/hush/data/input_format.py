"""The input format of a trained model: how new rows are read and preprocessed, as its training rows were.

Columns are matched by name, in any order; the columns with labels and clients are ignored where they are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hush.data import schema as schemas
from hush.data import transforms
from hush.data.datasets import Dataset
from hush.data.inputs import pack_inputs, stack_rows
from hush.data.preprocessing import preprocessed
from hush.data.schema import Schema
from hush.data.tables import Columns, Table, frame_table, is_frame, is_nested, read_arrays, read_table
from hush.types import HushError, InputPart, InputSpec

Stored = npt.NDArray[np.float32]
_ARRAYS = ".npz"


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """What a row of the training data looked like.

    Attributes:
        shape: Of a row as it is stored.
        inputs: What a stored row unpacks into, where that is not one array of real numbers.
        schema: What the columns may hold, where one was declared.
        columns: The names of the features, in the order in which the model gets them; none for arrays.
        label_columns: The columns or the array of a file with the targets, which new rows need not have.
        client_column: The column with the names of the clients, if there was one.
        rows: As `data.rows` of the config.
    """

    shape: tuple[int, ...]
    inputs: InputSpec | None = None
    schema: Schema | None = None
    columns: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()
    client_column: str | None = None
    rows: Literal["as-given", "unit-norm"] = "as-given"

    def stored(self, data: object) -> tuple[Stored, list[str] | None]:
        """Return new rows (n, *shape) as the model takes them, and the client of each if a column names it.

        Raises:
            HushError: The rows are not as those that the model was trained on.
        """
        names: list[str] | None = None
        if isinstance(data, str | Path):
            data = _read(Path(data))
            if isinstance(data, dict):
                for label in self.label_columns or ("y",):
                    data.pop(label, None)
                data = data["x"] if set(data) == {"x"} else data
        if is_frame(data):
            data = frame_table(data, "rows")
        elif isinstance(data, Mapping) and self.columns:
            data = frame_table(Columns(data), "rows")
        if isinstance(data, Table):
            names = self._clients(data)
            x = self._from_table(data)
        elif isinstance(data, Dataset):
            x = self._from_arrays(data.x, packed=True)
        else:
            x = self._from_arrays(data)
        return (transforms.unit_norm(x) if self.rows == "unit-norm" else x), names

    def record(self) -> dict[str, Any]:
        """Return the format as JSON values; `from_record` reads it."""
        return {**asdict(self), "schema": None if self.schema is None else self.schema.record()}

    def accepted(self) -> str:
        """Describe which rows are accepted."""
        if self.columns:
            shown = ", ".join(self.columns[:20]) + (" ..." if len(self.columns) > 20 else "")
            return f"a DataFrame, a CSV or Parquet file, or a dict of columns, with the columns {shown}"
        if self.inputs is None or self.inputs.kind == "array":
            kind = "numbers" if self.inputs is None else self.inputs.parts[0].dtype
            return f"an array of {kind} of shape (n, {', '.join(map(str, self.shape))})"
        parts = ", ".join(f"{part.name} {part.dtype} (n, ...) of {part.shape}".strip() for part in self.inputs.parts)
        return f"a {self.inputs.kind} of arrays: {parts}"

    def _clients(self, table: Table) -> list[str] | None:
        """Return the clients that a column names, where there is such a column."""
        if self.client_column is None or self.client_column not in table.columns:
            return None
        return [str(value) for value in np.asarray(table.columns[self.client_column]).tolist()]

    def _from_table(self, table: Table) -> Stored:
        others = {*self.label_columns, *([] if self.client_column is None else [self.client_column])}
        names = self.columns or (() if self.inputs is None else tuple(part.name for part in self.inputs.parts))
        if not names:
            raise HushError(f"{table.place(0) if table.rows else 'rows'}: a table; accepted: {self.accepted()}")
        missing = [name for name in names if name not in table.columns]
        more = [name for name in table.columns if name not in names and name not in others]
        if missing or more:
            raise HushError(
                f"{table.sources[0].name}: columns that it lacks: {_listed(missing)}; columns that the model does not "
                f"know: {_listed(more)}; accepted: {', '.join(names)[:200]}, in any order"
            )
        table = Table({name: table.columns[name] for name in names}, table.sources)
        if not table.rows:
            return np.zeros((0, *self.shape), np.float32)
        if self.inputs is not None or is_nested(table):
            inputs = {name: stack_rows(list(values), f"rows: {name}") for name, values in table.columns.items()}
            return self._from_arrays(inputs if len(inputs) > 1 else inputs[names[0]])
        x = preprocessed(table, self.schema if self.schema is not None and self.schema.columns else None)
        if not np.isfinite(x).all():
            row = int(np.argmin(np.isfinite(x).all(axis=1)))
            raise HushError(
                f"{table.place(row)}: a number that is infinite or exceeds float32; accepted: finite numbers"
            )
        return x

    def _from_arrays(self, given: object, packed: bool = False) -> Stored:
        if self.schema is not None and self.schema.columns:
            raise HushError(f"rows: {_described(given)}; accepted: {self.accepted()}")
        given = _arrays(given)
        spec = self.inputs
        if isinstance(given, dict) and spec is not None and spec.kind == "dict":
            if set(given) != {part.name for part in spec.parts}:
                raise HushError(f"rows: inputs {_listed(list(given))}; accepted: {self.accepted()}")
            given = {part.name: given[part.name] for part in spec.parts}
        elif isinstance(given, np.ndarray) and given.shape == self.shape and given.ndim:
            given = given[None]  # one row
        if isinstance(given, np.ndarray) and given.ndim and not len(given) and given.shape[1:] == self.shape:
            return np.zeros((0, *self.shape), np.float32)
        x, found = pack_inputs(given, "rows")
        if x.shape[1:] != self.shape or not (packed or _fits(found, spec)):
            raise HushError(f"rows: {_described(given)}; accepted: {self.accepted()}")
        return x


def format_of(dataset: Dataset, rows: Literal["as-given", "unit-norm"]) -> InputFormat:
    """Return the input format of a model that was trained on these rows; `rows` is `data.rows` of the config."""
    return InputFormat(
        shape=tuple(dataset.x.shape[1:]),
        inputs=dataset.inputs,
        schema=dataset.schema,
        columns=dataset.schema.names if dataset.schema is not None and dataset.schema.columns else dataset.columns,
        label_columns=dataset.label_columns,
        client_column=dataset.client_column,
        rows=rows if dataset.inputs is None else "as-given",
    )


def from_record(raw: Mapping[str, Any]) -> InputFormat:
    """Return the input format that `InputFormat.record` described."""
    inputs = raw["inputs"]
    if inputs is not None:
        parts = tuple(InputPart(part["name"], tuple(part["shape"]), part["dtype"]) for part in inputs["parts"])
        inputs = InputSpec(inputs["kind"], parts)
    listed = {key: tuple(raw[key]) for key in ("shape", "columns", "label_columns")}
    schema = None if raw["schema"] is None else schemas.from_record(raw["schema"])
    return InputFormat(**{**raw, **listed, "inputs": inputs, "schema": schema})


def _read(path: Path) -> Table | dict[str, Any]:
    return read_arrays(path) if path.suffix.lower() == _ARRAYS and path.is_file() else read_table(path)


def _arrays(given: object) -> Any:
    """Convert tensors and lists to arrays; tuples and dicts of them likewise."""
    if isinstance(given, Mapping):
        return {str(name): _arrays(value) for name, value in given.items()}
    if isinstance(given, tuple):
        return tuple(_arrays(value) for value in given)
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    try:
        return np.asarray(given)
    except (RuntimeError, TypeError, ValueError) as error:
        raise HushError(
            f"rows: not a regular array ({str(error).splitlines()[0]}); accepted: rows of one shape"
        ) from None


def _fits(found: InputSpec | None, wanted: InputSpec | None) -> bool:
    """Return whether inputs of one kind are accepted as the other: integers may stand for real numbers."""
    if wanted is None:
        return found is None or found.kind == "array"
    if found is None or found.kind != wanted.kind or len(found.parts) != len(wanted.parts):
        return False
    return all(
        have.name == want.name and have.shape == want.shape and want.dtype in ("float32", have.dtype)
        for have, want in zip(found.parts, wanted.parts, strict=True)
    )


def _described(given: object) -> str:
    if isinstance(given, np.ndarray):
        return f"found an array of {given.dtype} of shape {given.shape}"
    if isinstance(given, Mapping):
        return f"found a dict with {_listed([str(key) for key in given])}"
    return f"found {type(given).__name__}" + (f" of {len(given)}" if isinstance(given, tuple) else "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)[:200] or "none"
