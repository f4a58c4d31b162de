"""The data of all clients as one record, from arrays, DataFrames, torch and Hugging Face datasets, or files.

`clients` accepts common containers of data, and keeps the names of clients. Optional packages are never imported: their
objects are recognised by their interface. Rows are used as they are, or preprocessed by a schema
(`hush.data.preprocessing`). No statistic is computed from them, except for the list of classes if it is not declared,
which the record then reports.
"""

from __future__ import annotations

import glob
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from hush.data import client_rows
from hush.data import partition as partitions
from hush.data import schema as schemas
from hush.data.datasets import OWN_ARRAYS, Dataset
from hush.data.inputs import pack_inputs, stack_rows
from hush.data.preprocessing import preprocessed
from hush.data.schema import Schema
from hush.data.sizes import LEAST
from hush.data.tables import Table, frame_table, is_frame, is_nested, read_arrays, read_table, stacked
from hush.data.targets import CLASSES_FROM_ROWS, Targets, encode_targets
from hush.data.validation import integer, named
from hush.types import HushError, InputSpec, TargetKind, unknown

Array: TypeAlias = npt.NDArray[Any]
ACCEPTED = (
    "arrays x and y; a list or dict of (x, y) per client; a pandas or polars DataFrame, a torch or Hugging Face "
    "dataset, or a list or dict of these; CSV, Parquet or NPZ files"
)
_LONGEST_NAME = 80
_FILES = (".csv", ".parquet", ".npz")


@dataclass(frozen=True)
class ClientData:
    """The rows of all clients.

    Attributes:
        dataset: All rows; `dataset.owner` is the client of each row, if rows belong to clients.
        names: The client names, by client number; empty if the config determines the number of clients.
        partition: How rows are divided among the clients, if they do not belong to clients.
    """

    dataset: Dataset
    names: tuple[str, ...] = ()
    partition: partitions.Spec | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The number of rows of each client by name, if rows belong to clients."""
        if self.dataset.owner is None:
            return {}
        counts = np.bincount(self.dataset.owner, minlength=len(self.names))
        return dict(zip(self.names, counts.tolist(), strict=True))

    @property
    def counts(self) -> list[int]:
        """What is divided, by client: the number of its rows, or of its persons where persons are known."""
        owner = self.dataset.owner
        if owner is None or self.dataset.person is None:
            return list(self.sizes.values())
        whose = [int(owner[rows[0]]) for rows in client_rows.persons_of(self.dataset)]
        return [int(count) for count in np.bincount(whose, minlength=len(self.names))]

    def __repr__(self) -> str:
        data = self.dataset
        sizes = ", ".join(f"{name}: {rows}" for name, rows in list(self.sizes.items())[:6])
        more = f" and {len(self.names) - 6} more" if len(self.names) > 6 else ""
        whose = (
            f"{len(self.names)} clients ({sizes}{more})" if sizes else f"{len(self.names) or 'any number of'} clients"
        )
        return f"ClientData({len(data.y)} rows, {whose}, {data.classes} classes, targets {data.targets})"


@dataclass(frozen=True)
class _Rows:
    """The rows of one source before they are joined: arrays with targets, or a table."""

    name: str
    x: Any = None
    y: Any = None
    table: Table | None = None

    @property
    def rows(self) -> int:
        return self.table.rows if self.table is not None else _length(self.y, self.name)


def clients(
    data: object,
    y: object = None,
    *,
    clients: object = None,
    partition: partitions.Spec | None = None,
    label: str | Sequence[str] | None = None,
    client: str | None = None,
    person: object = None,
    row_budgets: object = None,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
    classes: int | Sequence[object] | None = None,
    targets: TargetKind | None = None,
    name: str = OWN_ARRAYS,
) -> ClientData:
    """The data of all clients, from whatever holds it.

    Args:
        data: Inputs (n, ...) as an array, or a tuple or dict of arrays, with `y`; or a pair (x, y); or a list or dict
            of such pairs, of DataFrames or of datasets, one per client; or a DataFrame or Hugging Face dataset with
            the columns `label` and `client`; or a torch dataset of (x, y); or files: a path, a pattern such as
            "sites/*.parquet", or a list of paths, one per client unless `client` names a column.
        y: The targets, with inputs alone.
        clients: The client of each row (n,), or the number of clients that share all rows out by `partition`.
        partition: As `data.partition` in a config: a name such as "iid", or a table such as
            {"name": "dirichlet", "alpha": 0.3}.
        label: The column with the targets, by default "label"; several for several targets per row. In NPZ files the
            array, by default "y".
        client: The column with the names of the clients.
        person: The column with the key of the person that each row is about, which is no feature; or, for arrays, the
            keys themselves (n,), or a mapping from client names to the keys of each client's rows. The privacy
            guarantee then protects persons, with all their rows.
        row_budgets: The column with the epsilon of each row, which is no feature; or, for arrays, the epsilons (n,).
        schema: What columns may hold, declared in public (`hush.data.Schema`, a table, or the path of a TOML file).
            Without one, columns must be numbers without blanks.
        classes: The list of classes, or their number if they are 0 to K - 1; by default those found in the rows, which
            no epsilon covers.
        targets: "classes", "multilabel" or "continuous", where the values alone do not say it.
        name: What to call the data in results.

    Returns:
        A frozen record that `hush.simulate(..., dataset=...)` takes.

    Raises:
        HushError: Something else was given, or rows are ragged, columns missing, labels unknown, clients empty or named
            twice, files unreadable, or clients differ in their columns or inputs.
    """
    if isinstance(data, ClientData):
        if person is not None or row_budgets is not None:
            raise HushError("person, row_budgets: the data were read already; accepted: these where they are read")
        return data
    if isinstance(data, Dataset):
        known = data if person is None else with_persons(data, person)
        known = known if row_budgets is None else with_row_budgets(known, row_budgets)
        return _whole(known, clients, partition)
    apart = row_budgets if isinstance(row_budgets, str) else None
    _check_words(label, client, targets, name)
    column = person if isinstance(person, str) else None
    declared = _schema(schema)
    if declared is not None and declared.columns and label is None:
        label = declared.label
    if person is None and declared is not None and declared.person is not None:
        person = column = declared.person
    if classes is None and declared is not None:
        classes = declared.class_names or declared.classes
    read = partial(_read, label=label, name=name)
    if y is not None:
        parts, names = [_Rows(name, data, y)], None
    elif isinstance(data, str | Path) or _is_paths(data):
        parts, names = _files(data, read, label, client)
    elif isinstance(data, Mapping):
        parts, names = [read(each, name=f"client {key}") for key, each in data.items()], [str(key) for key in data]
    elif isinstance(data, list):
        parts = [read(each, name=f"client {at}") for at, each in enumerate(data)]
        names = [str(at) for at in range(len(data))]
    else:
        parts, names = [read(data)], None
    if not parts:
        raise HushError(f"data: no clients; accepted: {ACCEPTED}")
    if names is not None and (clients is not None or partition is not None or client is not None):
        raise HushError("clients, client, partition: the data has its clients already; accepted: none of these here")
    if names is not None:
        _check_names(names)
        for part, who in zip(parts, names, strict=True):
            if part.rows < LEAST:
                raise HushError(
                    f"client {who!r}: {part.rows} rows; accepted: at least {LEAST}, to train and to test on"
                )
        owner: Array | None = np.repeat(np.arange(len(parts)), [part.rows for part in parts])
    else:
        owner = None
    if client is not None:
        if parts[0].table is None:
            raise HushError("client: names a column, and arrays have none; accepted: clients=, the client of each row")
        if clients is not None:
            raise HushError("client, clients: accepted: one of them")
        parts[0].table.require([client])
        clients = parts[0].table.columns[client]
    if column is not None and parts[0].table is None:
        raise HushError("person: names a column, and arrays have none; accepted: person=, the key of each row's person")
    if apart is not None and parts[0].table is None:
        raise HushError("row_budgets: names a column, and arrays have none; accepted: row_budgets=, one for each row")
    dataset = _joined(parts, name, declared, label, client, classes, targets, column, apart)
    if row_budgets is not None and apart is None:
        dataset = with_row_budgets(dataset, row_budgets)
    if person is not None and column is None:
        keys = _in_order(person, names, parts) if isinstance(person, Mapping) else person
        dataset = with_persons(dataset, keys)
    if names is not None:
        return ClientData(replace(dataset, owner=owner), tuple(names))
    return _whole(dataset, clients, partition)


def _whole(dataset: Dataset, clients: object, partition: partitions.Spec | None) -> ClientData:
    """Rows that belong to no client: with a column of names, a number of clients and a partition, or neither."""
    if clients is None and partition is None:
        if dataset.owner is None:
            return ClientData(dataset)
        return ClientData(dataset, tuple(str(at) for at in range(int(dataset.owner.max()) + 1)))
    if clients is None or isinstance(clients, int | np.integer):
        if clients is None:
            raise HushError("clients: missing; partition needs the number of clients")
        count, spec = integer("clients", clients, low=1), "iid" if partition is None else partition
        if count > len(dataset.y) // LEAST:
            raise HushError(
                f"clients: {count} for {len(dataset.y)} rows; accepted: at least {LEAST} rows per client, to train and "
                "to test on"
            )
        kind, _ = named("partition", spec)
        if kind not in partitions.NAMES:
            raise unknown("partition", "name", kind, partitions.NAMES)
        return ClientData(dataset, tuple(str(at) for at in range(count)), spec)
    if partition is not None:
        raise HushError("clients, partition: each row has its client already; accepted: a number of clients with it")
    owner, names = _column(clients, len(dataset.y))
    return ClientData(replace(dataset, owner=owner), names)


def _column(clients: object, rows: int) -> tuple[Array, tuple[str, ...]]:
    """The client number of each row, and the names in order."""
    try:
        values = np.asarray(clients)
    except (RuntimeError, TypeError, ValueError) as error:
        raise HushError(
            f"clients: not a regular array ({error}); accepted: the client of each row, or a number"
        ) from None
    if values.ndim != 1 or len(values) != rows or isinstance(clients, str | Mapping):
        raise HushError(f"clients: shape {values.shape} for {rows} rows; accepted: ({rows},), the client of each row")
    if values.dtype.kind not in "biuUO":
        raise HushError(f"clients: {values.dtype}; accepted: names or integers")
    if values.dtype.kind == "O":
        kinds = {type(value) for value in values}
        if not kinds <= {str, int}:
            raise HushError(
                f"clients: found {', '.join(sorted(kind.__name__ for kind in kinds))}; accepted: a name per row"
            )
        values = values.astype(np.str_) if str in kinds else values.astype(np.int64)
    distinct, owner = np.unique(values, return_inverse=True)
    names = [str(value) for value in distinct.tolist()]
    _check_names(names)
    for who, count in zip(names, np.bincount(owner).tolist(), strict=True):
        if count < LEAST:
            raise HushError(f"client {who!r}: {count} row; accepted: at least {LEAST}, to train and to test on")
    return owner.astype(np.int64), tuple(names)


def with_persons(dataset: Dataset, keys: object, column: str | None = None) -> Dataset:
    """The dataset with the key of the person that each row is about: texts or integers, none of them blank."""
    try:
        values = np.asarray(keys)
    except (RuntimeError, TypeError, ValueError) as error:
        raise HushError(f"person: not a regular array ({error}); accepted: a key for each row") from None
    rows = len(dataset.y)
    if values.ndim != 1 or len(values) != rows or isinstance(keys, str | Mapping):
        raise HushError(f"person: shape {values.shape} for {rows} rows; accepted: ({rows},), a key for each row")
    if values.dtype.kind == "f" and np.isfinite(values).all() and (np.rint(values) == values).all():
        values = values.astype(np.int64)
    if values.dtype.kind == "O" and all(type(value) in (str, int) for value in values):
        values = values.astype(np.str_)
    if values.dtype.kind not in "iuUT":
        raise HushError(f"person: found {values.dtype} or blanks; accepted: texts or integers, one for each row")
    values = values.astype(np.int64 if values.dtype.kind in "iu" else np.str_)
    if values.dtype.kind == "U" and (np.char.str_len(np.char.strip(values)) == 0).any():
        raise HushError("person: a blank key; accepted: a key for each row, since a row without one protects nobody")
    return replace(dataset, person=values, person_column=column)


def with_row_budgets(dataset: Dataset, epsilons: object) -> Dataset:
    """The dataset with an epsilon for each row."""
    try:
        values = np.asarray(epsilons, dtype=np.float64)
    except (RuntimeError, TypeError, ValueError) as error:
        raise HushError(f"row_budgets: {error}; accepted: an epsilon for each row") from None
    if values.shape != dataset.y.shape[:1] or not (np.isfinite(values) & (values > 0)).all():
        raise HushError(
            f"row_budgets: shape {values.shape} for {len(dataset.y)} rows, or not all are positive numbers; accepted: "
            "an epsilon for each row"
        )
    return replace(dataset, row_budget=values)


def _in_order(keys: Mapping[Any, Any], names: Sequence[str] | None, parts: Sequence[_Rows]) -> Array:
    """The keys of a mapping by client, as the clients' rows are joined."""
    given = {str(name): np.asarray(each) for name, each in keys.items()}
    if names is None or set(given) != set(names):
        raise HushError(
            f"person: a mapping of {', '.join(given)[:200]}; accepted: the names of the clients in the data"
        )
    for name, part in zip(names, parts, strict=True):
        if given[name].shape != (part.rows,):
            raise HushError(f"person: client {name!r}: shape {given[name].shape}; accepted: ({part.rows},)")
    return np.concatenate([given[name] for name in names])


def _check_words(label: object, client: object, targets: object, name: object) -> None:
    """Raise a `HushError` for column names that are not strings, and for an unknown kind of target."""
    several = label if isinstance(label, list | tuple) and label else [label]
    for key, values in (("label", several), ("client", [client]), ("name", [name])):
        if not all(value is None or isinstance(value, str) for value in values):
            raise HushError(f"{key}: found {values!r:.80}; accepted: a string; columns have strings for names")
    if targets is not None and (not isinstance(targets, str) or targets not in get_args(TargetKind)):
        raise unknown("targets", "kind", targets, get_args(TargetKind))


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise HushError(f"clients: {', '.join(twice)[:200]} named twice; accepted: different names")
    for name in names:
        if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise HushError(f"clients: name {name!r:.100}; accepted: 1 to {_LONGEST_NAME} printable characters")


def _read(data: object, *, label: str | Sequence[str] | None, name: str) -> _Rows:
    """Read the rows of one client, or of all of them."""
    if isinstance(data, Dataset):
        return _Rows(name, data.x, data.y)
    if is_frame(data):
        return _Rows(name, table=frame_table(data, name))
    if _is_torch_dataset(data):
        return _Rows(name, *_torch_rows(data, name))
    if isinstance(data, tuple) and len(data) == 2:
        return _Rows(name, *data)
    if isinstance(data, str | Path):
        return _read_file(Path(data), label)
    found = f"{type(data).__name__} of {len(data)}" if isinstance(data, tuple) else type(data).__name__
    raise HushError(f"{name}: found {found}; accepted: {ACCEPTED}")


def _is_torch_dataset(data: object) -> bool:
    # Torch datasets are only passed by callers that have imported torch.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.utils.data.Dataset)


def _torch_rows(data: Any, name: str) -> tuple[Any, Any]:
    """Inputs and targets of a torch dataset: rows (x, y), or (a, b, y) for the inputs (a, b)."""
    from torch.utils.data import IterableDataset, TensorDataset

    if isinstance(data, IterableDataset):
        raise HushError(f"{name}: an IterableDataset has no rows by number; accepted: a dataset with __len__")
    if isinstance(data, TensorDataset):
        *inputs, target = (tensor.detach().cpu().numpy() for tensor in data.tensors)
    else:
        try:
            rows = [data[at] for at in range(len(data))]
        except Exception as error:  # the dataset is the user's own code
            raise HushError(f"{name}: the dataset fails: {error!r:.200}; accepted: rows (x, y) by number") from None
        if not rows or not all(isinstance(row, tuple | list) and len(row) == len(rows[0]) >= 2 for row in rows):
            raise HushError(f"{name}: accepted: a dataset whose rows are tuples (x, y)")
        inputs = [stack_rows([row[at] for row in rows], name) for at in range(len(rows[0]) - 1)]
        target = stack_rows([row[-1] for row in rows], name)
    if not inputs:
        raise HushError(f"{name}: a TensorDataset of one tensor; accepted: inputs and targets")
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), target


def _is_paths(data: object) -> bool:
    return isinstance(data, list) and bool(data) and all(isinstance(each, str | Path) for each in data)


def _files(
    data: Any, read: Callable[..., _Rows], label: str | Sequence[str] | None, client: str | None
) -> tuple[list[_Rows], list[str] | None]:
    """The rows of files, and client names unless a column has them: one file has all clients, several one each."""
    paths = _paths(data)
    parts = [_read_file(path, label) for path in paths]
    if client is not None:
        if any(part.table is None for part in parts):
            raise HushError(f"client: names a column, and NPZ files have none; accepted: {_FILES[0]} and {_FILES[1]}")
        whole = stacked([part.table for part in parts if part.table is not None])
        return [_Rows(parts[0].name, table=whole)], None
    if len(paths) == 1 and not _is_pattern(data) and not isinstance(data, list):
        return parts, None
    return parts, [path.stem for path in paths]


def _paths(data: Any) -> list[Path]:
    if isinstance(data, list):
        return [Path(each) for each in data]
    if _is_pattern(data):
        # Path.glob does not accept absolute patterns.
        found = sorted(Path(each) for each in glob.glob(str(data), recursive=True) if Path(each).is_file())  # noqa: PTH207
        if not found:
            raise HushError(f"{data}: no file matches; accepted: a pattern such as sites/*.parquet")
        return found
    path = Path(data)
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.suffix.lower() in _FILES)
        hint = f", such as {path / '*.csv'}" if not found else f", such as {path / ('*' + found[0].suffix)}"
        raise HushError(f"{path}: a directory; accepted: a file, or a pattern{hint}")
    return [path]


def _is_pattern(data: object) -> bool:
    return isinstance(data, str | Path) and glob.has_magic(str(data)) and not Path(data).exists()


def _read_file(path: Path, label: str | Sequence[str] | None) -> _Rows:
    if path.suffix.lower() != ".npz" or not path.is_file():
        return _Rows(str(path), table=read_table(path))
    arrays = read_arrays(path)
    target = label if isinstance(label, str) else "y"
    if target not in arrays or len(arrays) < 2:
        raise HushError(
            f"{path}: holds {', '.join(arrays)[:200] or 'nothing'}; accepted: x, or several inputs, and {target}"
        )
    y = arrays.pop(target)
    return _Rows(str(path), arrays["x"] if set(arrays) == {"x"} else arrays, y)


def _joined(
    parts: Sequence[_Rows], name: str, schema: Schema | None, label: str | Sequence[str] | None, client: str | None,
    classes: int | Sequence[object] | None, kind: TargetKind | None, person: str | None = None,
    row_budgets: str | None = None,
) -> Dataset:  # fmt: skip
    """Join all rows into one dataset. Clients must have the same columns, or inputs of the same shapes and types."""
    if len({part.table is None for part in parts}) > 1:
        raise HushError("clients: some have tables, others arrays; accepted: the same everywhere")
    tables = [part.table for part in parts if part.table is not None]
    if tables:
        table = stacked(tables)
        labels = [label or "label"] if label is None or isinstance(label, str) else list(label)
        others = [*labels, *([] if client is None else [client]), *([] if person is None else [person])]
        others += [] if row_budgets is None else [row_budgets]
        table.require(others)
        columns = [table.columns[each] for each in labels]
        y: Any = columns[0] if len(columns) == 1 else np.stack([np.asarray(each) for each in columns], axis=1)
        found = encode_targets(y, classes, table.place, kind)
        features = table.without(others)
        x, spec = _table_inputs(features, schema, name)
        named = replace(_dataset(name, x, spec, found, schema), columns=tuple(features.columns))
        named = replace(named, label_columns=tuple(labels), client_column=client)
        named = named if row_budgets is None else with_row_budgets(named, table.columns[row_budgets])
        return named if person is None else with_persons(named, table.columns[person], person)
    if schema is not None and schema.columns:
        raise HushError("schema: names columns, and arrays have none; accepted: a table (DataFrame, CSV, Parquet)")
    packed = [pack_inputs(part.x, part.name) for part in parts]
    for part, (x, spec) in zip(parts, packed, strict=True):
        if part.rows != len(x):
            raise HushError(f"{part.name}: {len(x)} rows of x, {part.rows} of y; accepted: as many")
        if spec != packed[0][1] or x.shape[1:] != packed[0][0].shape[1:]:
            raise HushError(
                f"{part.name}: inputs {_shown(x, spec)}, {parts[0].name} has {_shown(*packed[0])}; accepted: the same "
                "shapes and types everywhere"
            )
    ys = [np.asarray(part.y) for part in parts]
    if len({(each.dtype.kind in "OU", each.shape[1:]) for each in ys}) > 1:
        raise HushError("labels: clients differ in the kind or shape of their labels; accepted: the same everywhere")
    found = encode_targets(np.concatenate(ys), classes, _place(parts), kind)
    made = _dataset(name, np.concatenate([x for x, _ in packed]), packed[0][1], found, schema)
    return replace(made, label_columns=(label,) if isinstance(label, str) else ())


def _table_inputs(table: Table, schema: Schema | None, name: str) -> tuple[npt.NDArray[np.float32], InputSpec | None]:
    """Columns of single values are features; columns of sequences, such as token numbers, are inputs by name."""
    if schema is None or not schema.columns:
        if is_nested(table):
            inputs = {key: stack_rows(list(values), f"{name}: {key}") for key, values in table.columns.items()}
            return pack_inputs(inputs if len(inputs) > 1 else next(iter(inputs.values())), name)
        schema = None
    x = preprocessed(table, schema)
    if not np.isfinite(x).all():
        row = int(np.argmin(np.isfinite(x).all(axis=1)))
        raise HushError(f"{table.place(row)}: a number that is infinite or exceeds float32; accepted: finite numbers")
    return x, None


def _dataset(
    name: str, x: npt.NDArray[np.float32], inputs: InputSpec | None, found: Targets, schema: Schema | None
) -> Dataset:
    return Dataset(
        name=name, x=x, y=found.values, classes=found.classes, schema=schema, own=True, inputs=inputs,
        targets=found.kind, class_names=found.class_names, class_values=found.class_values,
        not_covered=(CLASSES_FROM_ROWS,) if found.from_rows else (),
    )  # fmt: skip


def _schema(given: Schema | Mapping[str, Any] | str | Path | None) -> Schema | None:
    if given is None or isinstance(given, Schema):
        return given
    return schemas.read(Path(given)) if isinstance(given, str | Path) else schemas.from_table(given)


def _place(parts: Sequence[_Rows]) -> Callable[[int], str]:
    def place(row: int) -> str:
        for part in parts:
            if row < part.rows:
                return f"{part.name}: row {row}"
            row -= part.rows
        raise IndexError(row)

    return place


def _shown(x: Array, spec: InputSpec | None) -> str:
    if spec is None:
        return f"float32 {x.shape[1:]}"
    return ", ".join(f"{part.name} {part.dtype} {part.shape}".strip() for part in spec.parts)


def _length(values: object, name: str) -> int:
    try:
        return len(values)  # type: ignore[arg-type]
    except TypeError:
        raise HushError(f"{name}: y is {type(values).__name__}; accepted: an array, one target per row") from None
