"""Held-out rows of a member: a fixed fraction, chosen once by a keyed hash of each row's content.

A row is held out or not because of what it contains and a key in the kit, and of nothing else. It is therefore on the
same side in every run, whatever rows come or go beside it, and equal rows are on the same side. A change of one row of
the data changes the training rows or the held-out rows by one, never both. Where rows name their persons, all rows of a
person are on one side.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hush.data.datasets import Dataset
from hush.deploy.admin import keys
from hush.types import HushError

FILE = "held-out.json"


def split(kit: Path, data: Dataset, fraction: float, *, spent: bool) -> tuple[Dataset, Dataset]:
    """Return the rows for training and the held-out rows.

    Args:
        kit: The member's kit, which holds the key.
        data: All rows.
        fraction: The fraction to hold out.
        spent: Whether a ledger exists already: rows that were trained on must not be held out later.

    Raises:
        HushError: The fraction differs from that of the first split, or the key is missing.
    """
    path = kit / FILE
    if not path.exists():
        if spent and fraction > 0:
            raise HushError(
                f"{path}: missing, although this member has a ledger; rows that were used for training would be held "
                "out now; restore the file, or set data.held_out = 0"
            )
        content = json.dumps({"fraction": fraction, "key": keys.new_secret()})
        keys.write_secret(path, content.encode())
    kept = _read(path)
    if kept[0] != fraction:
        raise HushError(
            f"data.held_out: {fraction:g}, and the rows of this member were split at {kept[0]:g} ({path}); rows must "
            f"not move between training and evaluation; accepted: {kept[0]:g}",
            "data.held_out",
        )
    chosen_rows = chosen(data, fraction, kept[1])
    if fraction and (chosen_rows.all() or not chosen_rows.any()):
        raise HushError(
            f"data.held_out: {int(chosen_rows.sum())} of {len(chosen_rows)} are held out; accepted: more rows, or 0"
        )
    return _only(data, ~chosen_rows), _only(data, chosen_rows)


def chosen(data: Dataset, fraction: float, key: bytes) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is held out."""
    if fraction == 0:
        return np.zeros(len(data.y), bool)
    if data.person is None:
        rows, labels = np.ascontiguousarray(data.x), np.ascontiguousarray(data.y)
        contents = [row.tobytes() + b"\0" + label.tobytes() for row, label in zip(rows, labels, strict=True)]
    else:
        contents = [str(person).encode() for person in data.person.tolist()]
    limit = int(fraction * 2**64)
    found = [int.from_bytes(hmac.digest(key, each, hashlib.sha256)[:8], "big") < limit for each in contents]
    return np.array(found, bool)


def _only(data: Dataset, rows: npt.NDArray[np.bool_]) -> Dataset:
    person = None if data.person is None else data.person[rows]
    return replace(data, x=data.x[rows], y=data.y[rows], person=person)


def _read(path: Path) -> tuple[float, bytes]:
    try:
        raw = json.loads(keys.read(path, "the split of this member's rows"))
        return float(raw["fraction"]), bytes.fromhex(raw["key"])
    except (ValueError, KeyError, TypeError):
        raise HushError(f"{path}: not written by hush; restore it, or start with new data and a new ledger") from None
