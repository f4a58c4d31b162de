"""Targets of a dataset: class labels as 0 to K - 1 with their original values, multiple labels, or real numbers.

The list of classes is public if it is declared (`classes=`, or in a schema). If it is taken from the rows, it reveals
that some row has each class, which no accountant covers; `from_rows` records that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hush.data.tables import Values, blanks
from hush.data.validation import integer
from hush.types import HushError, TargetKind

_MOST_CLASSES = 1_000_000
CLASSES_FROM_ROWS = "classes: taken from the labels of the rows; declare them with classes= or in a schema"
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The values to predict, one value or one array of values per row.

    Attributes:
        values: int64 (n,) for classes, float32 (n, k) of zeros and ones for multiple labels, float32 (n,) or (n, k) for
            real numbers.
        kind: The kind of target.
        classes: The number of classes or of labels; 0 for real numbers.
        class_names: The names of the classes, in order; empty if they are 0 to K - 1.
        from_rows: Whether the classes were taken from the rows.
        class_values: The classes in order, of the type that the labels of the rows have.
    """

    values: npt.NDArray[Any]
    kind: TargetKind
    classes: int
    class_names: tuple[str, ...] = ()
    from_rows: bool = False
    class_values: tuple[Any, ...] = ()


def encode_targets(
    values: object, classes: int | Sequence[object] | None, where: Callable[[int], str], kind: TargetKind | None = None
) -> Targets:
    """Encode the targets in an array or in a column of a file.

    Args:
        values: Integers, booleans or texts are classes; real numbers are continuous, unless `classes` is given; arrays
            of zeros and ones (n, k) are multiple labels per row.
        classes: The number of classes, if they are 0 to K - 1, or the list of them.
        where: Describes the position of a row, for messages.
        kind: The kind of target, if the values are ambiguous: integers may be amounts, and 0.0 and 1.0 classes.
    """
    found = _array(values)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim not in (1, 2) or not found.size:
        raise HushError(f"labels: shape {found.shape}; accepted: (n,), or (n, k) for several labels per row")
    blank = blanks(found.ravel())
    if blank.any():
        row = int(np.argmax(blank)) // (found.shape[1] if found.ndim == 2 else 1)
        raise HushError(f"{where(row)}: the label is blank; accepted: a label in every row")
    if kind is None:
        kind = _kind(found, classes)
    if kind == "continuous":
        return Targets(values=_real(found, where), kind=kind, classes=0)
    if kind == "multilabel":
        if found.ndim != 2 or not np.isin(found, (0, 1)).all():
            raise HushError("labels: several labels per row are an array (n, k) of zeros and ones")
        return Targets(values=found.astype(np.float32), kind=kind, classes=found.shape[1])
    if found.ndim != 1:
        raise HushError(f"labels: shape {found.shape} for classes; accepted: (n,), one class per row")
    return _classes(found, classes, where)


def class_values(values: Values) -> list[Any] | None:
    """Return the distinct labels in a public column, in order; None if they are real numbers."""
    found = _array(values)
    if found.dtype.kind == "f":
        return None
    return _distinct(found)


def _array(values: object) -> npt.NDArray[Any]:
    """Return an array of integers, booleans, real numbers or texts. Numeric texts, as in CSV, become numbers."""
    try:
        found = np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        raise HushError(f"labels: not a regular array ({error})") from None
    if found.dtype.kind == "O" and found.ndim == 1 and all(isinstance(value, str) for value in found):
        found = found.astype(np.str_)
    if found.dtype.kind == "U":
        for kind in (np.int64, np.float64):
            try:
                return found.astype(kind)
            except ValueError:
                continue
        return found
    if found.dtype.kind not in "biufO":
        raise HushError(f"labels: {found.dtype}; accepted: integers, booleans, texts, or real numbers")
    if found.dtype.kind == "O" and not all(isinstance(value, bool | int | float | str) for value in found.ravel()):
        blank = [
            value for value in found.ravel() if value is not None and not isinstance(value, bool | int | float | str)
        ]
        if blank:
            raise HushError(
                f"labels: found {type(blank[0]).__name__}; accepted: integers, booleans, texts, real numbers"
            )
    return found


def _kind(found: npt.NDArray[Any], classes: int | Sequence[object] | None) -> TargetKind:
    if found.ndim == 2:
        return "multilabel" if found.dtype.kind in "biu" and np.isin(found, (0, 1)).all() else "continuous"
    return "continuous" if found.dtype.kind == "f" and classes is None else "classes"


def _real(found: npt.NDArray[Any], where: Callable[[int], str]) -> npt.NDArray[np.float32]:
    try:
        values = found.astype(np.float32)
    except (TypeError, ValueError):
        raise HushError("labels: texts; accepted: real numbers for continuous targets") from None
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not finite.all():
        raise HushError(f"{where(int(np.argmin(finite)))}: the target is infinite; accepted: finite numbers")
    return values


def _classes(found: npt.NDArray[Any], classes: int | Sequence[object] | None, where: Callable[[int], str]) -> Targets:
    if isinstance(classes, str) or (classes is not None and not isinstance(classes, int | Sequence | np.ndarray)):
        raise HushError(f"classes: found {classes!r:.80}; accepted: their number, or a list of them")
    if isinstance(classes, int):
        count = integer("classes", classes, low=1)
        if count > _MOST_CLASSES:
            raise HushError(f"classes: found {count}; accepted: at most {_MOST_CLASSES}")
        named: list[Any] = list(range(count))
    else:
        named = _distinct(found) if classes is None else list(classes)
    texts = [_text(value) for value in named]
    if not named or len(set(texts)) != len(texts):
        raise HushError(f"classes: {', '.join(texts)[:200] or 'none'}; accepted: different values")
    places = {text: at for at, text in enumerate(texts)}
    distinct, inverse = np.unique(found.astype(np.str_) if found.dtype.kind == "O" else found, return_inverse=True)
    at = np.array([places.get(_text(value), -1) for value in distinct.tolist()], np.int64)
    values = at[inverse]
    if (values < 0).any():
        row = int(np.argmax(values < 0))
        accepted = ", ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
        raise HushError(
            f"{where(row)}: label {_text(found[row])[:80]!r} is not one of the classes; accepted: {accepted}"
        )
    plain = texts == [str(number) for number in range(len(texts))]
    typed = _typed(texts, found.dtype.kind)
    return Targets(
        values=values,
        kind="classes",
        classes=len(texts),
        class_names=() if plain else tuple(texts),
        from_rows=classes is None,
        class_values=typed,
    )


def _typed(texts: Sequence[str], kind: str) -> tuple[Any, ...]:
    """Classes as the labels of the rows are: integers, booleans or real numbers where those are, else texts."""
    booleans = {"True": True, "False": False, "1": True, "0": False}
    types: dict[str, Callable[[str], Any]] = {"i": int, "u": int, "f": float, "b": booleans.__getitem__}
    try:
        return tuple(types.get(kind, str)(text) for text in texts)
    except (KeyError, ValueError):
        return tuple(texts)


def _distinct(found: npt.NDArray[Any]) -> list[Any]:
    comparable = found.astype(np.str_) if found.dtype.kind == "O" else found
    distinct: list[Any] = np.unique(comparable).tolist()
    return distinct


def _text(value: object) -> str:
    """Format a class: 1, 1.0 and "1" are the same class."""
    if isinstance(value, np.generic):
        value = value.item()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
