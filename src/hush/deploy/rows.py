"""A member's own data: CSV, Parquet, NumPy, IDX, or a loader of its own. Only the member's policy names a loader."""

from __future__ import annotations

import csv
import importlib
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hush.config import Config
from hush.data.datasets import Dataset, from_arrays
from hush.data.files import gunzip, read_bytes
from hush.data.idx import parse_idx
from hush.engines.federation import load as load_named
from hush.types import HushError

KINDS = ".npz (x, y), .csv, .parquet, a folder with IDX files (*images*, *labels*), or data.loader in the policy"
Pair = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]


def load(path: Path, *, label: str = "label", loader: str | None = None, classes: int | None = None) -> Dataset:
    """The rows in a file, checked: finite features, whole labels from 0."""
    if not path.exists():
        raise HushError(f"{path}: no such data; accepted: {KINDS}")
    x, y = _own(loader, path) if loader else _read(path, label)
    try:
        return from_arrays(x, y, path.name, classes)
    except HushError as error:
        raise HushError(f"{path}: {error}") from None


def public_test(
    path: Path | None, folder: Path, config: Config, *, label: str = "label", classes: int | None = None,
    root: str | None = None,
) -> Dataset:  # fmt: skip
    """The coordinator's public test set: a file that is named, `test.*` in its folder, or the config's own dataset."""
    beside = sorted(found for kind in (".npz", ".csv", ".parquet") for found in folder.glob(f"test{kind}"))
    if path is None and not beside:
        return load_named(config, root)
    return load(path or beside[0], label=label, classes=classes)


def check_schema(data: Dataset, shape: Sequence[int], classes: int) -> None:
    """Raise a `HushError` unless the rows are what a run is about. Says nothing about how many there are."""
    found = data.x.shape[1:]
    if tuple(found) != tuple(shape):
        raise HushError(f"schema: rows of shape {tuple(found)} here; the run is about {tuple(shape)}")
    if data.classes > classes:
        raise HushError(f"schema: a label here is outside 0 to {classes - 1}, which the run is about")


def _read(path: Path, label: str) -> Pair:
    readers: dict[str, Callable[[Path, str], Pair]] = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    if path.is_dir():
        return _idx(path)
    if path.suffix not in readers:
        raise HushError(f"{path}: unknown kind {path.suffix or 'of file'}; accepted: {KINDS}")
    return readers[path.suffix](path, label)


def _npz(path: Path, _: str) -> Pair:
    try:
        with np.load(path, allow_pickle=False) as held:
            if set(held.files) != {"x", "y"}:
                raise HushError(f"{path}: holds {', '.join(held.files)}; accepted: x and y")
            return held["x"], held["y"]
    except (OSError, ValueError, EOFError) as error:
        raise HushError(f"{path}: not a NumPy archive: {error}") from None


def _csv(path: Path, label: str) -> Pair:
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    lines = csv.reader(io.StringIO(text))
    names = next(lines, [])
    at = _label_at(path, names, label)
    features, labels = [], []
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        if len(line) != len(names):
            raise HushError(f"{path}:{number}: {len(line)} columns; accepted: {len(names)}, as in line 1")
        try:
            labels.append(int(line[at]))
            features.append([float(value) for i, value in enumerate(line) if i != at])
        except ValueError as error:
            raise HushError(f"{path}:{number}: {error}; accepted: numbers, and a whole number as {label}") from None
    return np.asarray(features, np.float64), np.asarray(labels, np.int64)


def _parquet(path: Path, label: str) -> Pair:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise HushError(f"{path}: reading Parquet needs pyarrow; install hush[deploy]") from None
    try:
        table = parquet.read_table(path)
        names = list(table.column_names)
        columns = [np.asarray(table.column(name).to_numpy()) for name in names]
    except (ArrowException, OSError) as error:
        raise HushError(f"{path}: not a Parquet file: {error}") from None
    at = _label_at(path, names, label)
    rest = [column for i, column in enumerate(columns) if i != at]
    if any(column.dtype.kind not in "biuf" for column in rest):
        raise HushError(f"{path}: a column holds no numbers; accepted: numbers, and whole numbers as {label}")
    return np.stack(rest, axis=1), columns[at]


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


def _label_at(path: Path, names: Sequence[str], label: str) -> int:
    if list(names).count(label) != 1 or len(names) < 2:
        raise HushError(
            f"{path}: columns {', '.join(names)[:200] or 'none'}; accepted: features, and one column {label!r}"
        )
    return list(names).index(label)


def _own(loader: str, path: Path) -> Pair:
    module, colon, function = loader.partition(":")
    if not colon:
        raise HushError(f"data.loader: found {loader!r}; accepted: module:function", "data.loader")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        call = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise HushError(f"data.loader: {loader}: {error}", "data.loader") from None
    try:
        x, y = call(path)
    except Exception as error:  # the member's own code may fail in any way, and is told so
        raise HushError(f"data.loader: {loader} failed: {error!r}", "data.loader") from None
    return np.asarray(x), np.asarray(y)
