"""Datasets by name, loaded as validated arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hush.data import cifar, cifar100, images, imdb
from hush.data import synthetic as made
from hush.data.files import data_root
from hush.data.schema import Schema
from hush.data.validation import check_keys, integer, number, wrong
from hush.types import HushError, InputSpec, TargetKind, unknown
from hush.user_code import user_code

NAMES = (
    "digits",
    "synthetic",
    "dp-scaffold-users",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "emnist47",
    "imdb",
)
SYNTHETIC = ("synthetic", "dp-scaffold-users")
PARTS = ("train", "test", "all")
OWN_ARRAYS = "own arrays"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Rows and labels: images are (n, channels, height, width), tables (n, features).

    Attributes `owner`: the natural client of each row, if there is one. `schema`: the declared columns of a file.
    `own`: whether the user passed the arrays, whatever `name` is. `inputs`: what a row unpacks into, if not one array
    of real numbers. `targets`: what `y` contains: int64 classes, or float32 for the other kinds. `class_names`: the
    values of the classes, if they are not 0 to K - 1. `not_covered`: what reading the data revealed that no accountant
    covers. `class_values`: the classes as the labels of the rows have them (texts, integers, ...). `columns`: the names
    of the features in order. `label_columns` and `client_column`: the names of the other columns of a table or archive.
    `given`: the rows before a setting changed them, to which ledgers are bound. `person`: the key of the person that
    each row is about, if it is known, and `person_column` the column that it is from. `row_budget`: the epsilon of each
    row, where rows have budgets of their own.
    """

    name: str
    x: npt.NDArray[np.float32]
    y: npt.NDArray[Any]
    classes: int
    owner: npt.NDArray[np.int64] | None = None
    schema: Schema | None = None
    own: bool = False
    inputs: InputSpec | None = None
    targets: TargetKind = "classes"
    class_names: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    class_values: tuple[Any, ...] = ()
    columns: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()
    client_column: str | None = None
    given: npt.NDArray[np.float32] | None = None
    person: npt.NDArray[Any] | None = None
    person_column: str | None = None
    row_budget: npt.NDArray[np.float64] | None = None

    @property
    def title(self) -> str:
        """The name in results: custom arrays are never confused with a built-in dataset of the same name."""
        return f"{self.name} ({OWN_ARRAYS})" if self.own and self.name != OWN_ARRAYS else self.name


def load(
    name: str, *, root: str | None, part: str = "train", seed: int = 0, clients: int = 0, **options: object
) -> Dataset:
    """Load a dataset by name.

    Args:
        name: One of `NAMES`, or `module:function` for your own, where function() returns a `Dataset`.
        root: The data directory; None means the environment variable HUSH_DATA. Not used by digits and by `SYNTHETIC`.
        part: "train", "test" or "all" (train then test). Digits, those in `SYNTHETIC` and your own have "train" alone.
        seed: Used by synthetic only.
        clients: The number of users of those in `SYNTHETIC`.
        **options: Of those in `SYNTHETIC`: `alpha`, `beta` (default 0) and `samples` a user (default 5,000).
    """
    if name not in NAMES and ":" not in name:
        raise unknown("data.name", "dataset", name, NAMES, ", or module:function for your own")
    if part not in PARTS:
        raise unknown("data.part", "part", part, PARTS)
    check_keys("data", name, options, (), ("alpha", "beta", "samples") if name in SYNTHETIC else ())
    if name == "digits" or name in SYNTHETIC or ":" in name:
        if part == "test":
            raise wrong("data.part", f'"{name}" has no test part; accepted: train, all')
        dataset = _own(name) if ":" in name else _digits() if name == "digits" else _users(name, clients, seed, options)
    else:
        parts = ("train", "test") if part == "all" else (part,)
        dataset = _from_files(name, data_root(root, name), parts)
    check_finite(dataset)
    return dataset


def from_arrays(x: npt.ArrayLike, y: npt.ArrayLike, name: str = OWN_ARRAYS, classes: int | None = None) -> Dataset:
    """Return a dataset from your own arrays: x (n, ...) of real numbers, y (n,) integers from 0; `clients` takes more.

    The arrays are copied. `classes` defaults to the largest label plus one; it must be given if class 0 has no rows,
    because such labels cannot be distinguished from labels that count from 1.
    """
    try:
        features, labels = np.asarray(x), np.asarray(y)
    except (RuntimeError, TypeError, ValueError) as error:
        raise HushError(f'dataset "{name}": not a regular array ({error})') from None
    if features.dtype.kind not in "biuf" or labels.dtype.kind not in "iu":
        raise HushError(
            f'dataset "{name}": x is {features.dtype}, y is {labels.dtype}; accepted: x of numbers, y of integers'
        )
    if features.ndim < 2 or not features.size or labels.shape != features.shape[:1]:
        raise HushError(
            f'dataset "{name}": shapes {features.shape} of x, {labels.shape} of y;'
            " accepted: (n, ...) for x, such as (n, features) or (n, channels, height, width), and (n,) for y"
        )
    if classes is None and int(labels.min()) > 0:
        raise HushError(
            f'dataset "{name}": labels run from {labels.min()} to {labels.max()}; accepted: integers from 0, such '
            f"as y - {labels.min()}, or classes = {int(labels.max()) + 1} where the first classes have no rows"
        )
    count = int(labels.max()) + 1 if classes is None else integer("classes", classes, low=1)
    with np.errstate(over="ignore"):
        dataset = Dataset(name=name, x=features.astype(np.float32), y=labels.astype(np.int64), classes=count)
    check_finite(dataset)
    return dataset


def as_own(dataset: object) -> Dataset:
    """Return a validated dataset from the user, marked as custom."""
    if not isinstance(dataset, Dataset):
        raise HushError(f"dataset: found {type(dataset).__name__}; accepted: hush.data.from_arrays(x, y)")
    x, y = dataset.x, dataset.y
    arrays = isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
    wanted = np.int64 if dataset.targets == "classes" else np.float32
    fits = arrays and x.dtype == np.float32 and y.dtype == wanted and len(x) == len(y) and x.size
    if not fits or y.ndim not in ((1,) if dataset.targets == "classes" else (1, 2)):
        raise HushError(
            f'dataset "{dataset.name}": not float32 rows with int64 labels (float32 for other targets); use '
            "hush.data.from_arrays(x, y)"
        )
    check_finite(dataset)
    return replace(dataset, own=True)


def check_finite(dataset: Dataset) -> None:
    """Raise a `HushError` for NaN or infinite features and targets, and for labels outside 0..classes-1."""
    # A float64 sum is finite exactly if every float32 term is, and it needs no mask as large as the data.
    with np.errstate(invalid="ignore"):
        total = dataset.x.sum(dtype=np.float64)
    if not np.isfinite(total):
        row = next(at for at, row in enumerate(dataset.x) if not np.isfinite(row).all())
        raise HushError(f'dataset "{dataset.name}": row {row} of x contains NaN or infinity (or exceeds float32)')
    if dataset.targets != "classes":
        finite = np.isfinite(dataset.y).reshape(len(dataset.y), -1).all(axis=1)
        if not finite.all():
            raise HushError(f'dataset "{dataset.name}": target of row {int(np.argmin(finite))} is not finite')
        return
    if dataset.y.min() < 0 or dataset.y.max() >= dataset.classes:
        row = int(np.argmax((dataset.y < 0) | (dataset.y >= dataset.classes)))
        raise HushError(
            f'dataset "{dataset.name}": label {dataset.y[row]} of row {row}; accepted: 0 to {dataset.classes - 1}'
        )


def _own(name: str) -> Dataset:
    """Return the result of a user's function, under the name that the config has for it."""
    return replace(as_own(from_function(name)), name=name, own=False)


def from_function(name: str) -> object:
    """Call the user's function `module:function`; a `HushError` if it fails."""
    try:
        return user_code(name)()
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        wanted = "expected module:function, where function() returns hush.data.from_arrays(x, y)"
        raise HushError(f"data.name: {name!r} cannot be used: {reason}; {wanted}", "data.name") from None


def _digits() -> Dataset:
    x, y = made.digits()
    return Dataset(name="digits", x=x, y=y, classes=10)


def _users(name: str, clients: int, seed: int, options: dict[str, object]) -> Dataset:
    users = integer("data.clients", clients, low=1)
    samples = integer("data.samples", options.get("samples", 5000), low=1)
    alpha = number("data.alpha", options.get("alpha", 0.0), low=0.0)
    beta = number("data.beta", options.get("beta", 0.0), low=0.0)
    if name == "synthetic":
        x, y, owner = made.synthetic_users(users, samples, alpha, beta, seed)
    else:
        x, y, owner = made.published_users(users, samples, alpha, beta)
    return Dataset(name=name, x=x, y=y, classes=made.CLASSES, owner=owner)


def _from_files(name: str, root: Path, parts: Sequence[str]) -> Dataset:
    if name == "imdb":
        pairs = [imdb.read_reviews(root, part) for part in parts]
        x = imdb.featurise([text for texts, _ in pairs for text in texts])
        return Dataset(
            name=name, x=x, y=np.array([label for _, labels in pairs for label in labels], np.int64), classes=2
        )
    if name == "cifar10":
        pixels, labels = _stack([cifar.read_cifar10(root, part) for part in parts])
        return _coloured(name, pixels, labels, 10, cifar.MEAN, cifar.STD)
    if name == "cifar100":
        pixels, labels = _stack([cifar100.read_cifar100(root, part) for part in parts])
        return _coloured(name, pixels, labels, cifar100.CLASSES, cifar100.MEAN, cifar100.STD)
    spec = {"mnist": images.MNIST, "fashion-mnist": images.FASHION_MNIST}.get(name) or next(
        (spec for spec in images.EMNIST47 if images.present(spec, root)), images.EMNIST47[0]
    )
    pixels, labels = _stack([images.read_images(spec, root, part) for part in parts])
    return Dataset(
        name=spec.title,
        x=images.normalise(pixels, spec.mean, spec.std),
        y=labels.astype(np.int64),
        classes=spec.classes,
    )


def _coloured(
    name: str, pixels: images.Pixels, labels: images.Pixels, classes: int, means: Sequence[float], stds: Sequence[float]
) -> Dataset:
    x = np.empty(pixels.shape, np.float32)
    for channel, (mean, std) in enumerate(zip(means, stds, strict=True)):
        x[:, channel] = images.normalise(pixels[:, channel], mean, std)
    return Dataset(name=name, x=x, y=labels.astype(np.int64), classes=classes)


def _stack(pairs: Sequence[tuple[images.Pixels, images.Pixels]]) -> tuple[images.Pixels, images.Pixels]:
    if len(pairs) == 1:
        return pairs[0]
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])
