"""Partition of rows among clients, and how their data differ: pure functions of labels, counts and a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hush.data import splitters
from hush.data.sizes import counts, holdout
from hush.data.validation import check_keys, integer, integers, items, named, number, wrong
from hush.seeds import rng
from hush.types import unknown

__all__ = ["NAMES", "Share", "counts", "holdout", "overlaps", "split"]

KEY = "data.partition"
DIVISIONS = ("iid", "dirichlet", "shards", "similarity", "owner")
TWISTS = ("rotation", "label-flip", "quality")
_BY_CLASS = ("dirichlet", "shards", "similarity", "label-flip")
NAMES = DIVISIONS + TWISTS

Rows = npt.NDArray[np.int64]
Spec = str | Mapping[str, Any]


@dataclass(frozen=True)
class Share:
    """One client's share: its rows, and the transform applied to them.

    Attributes:
        rows: Row numbers, without repeats within a client, nor between clients unless the division says `overlap`.
        group: The cluster or quality group of the client, for reports and oracles.
        rotate: Quarter turns of every image.
        flip: Labels become (y + flip) mod classes.
        salt: When salt-and-pepper noise changes, as pairs (from round, density), in order.
    """

    rows: Rows
    group: int = 0
    rotate: int = 0
    flip: int = 0
    salt: tuple[tuple[int, float], ...] = ()


def split(
    spec: Spec, labels: npt.ArrayLike, counts: Sequence[int], seed: int, classes: int, owner: Rows | None = None
) -> list[Share]:
    """Divide rows among clients, from `data.partition`.

    Args:
        spec: A name or a table with a name: "iid" (with overlap = true, clients may have rows in common), "owner",
            dirichlet (alpha), shards (classes), similarity (gamma), rotation (clusters), label-flip (clusters),
            quality (groups, density, and change_at with density_after).
            The last three take a `base`, one of the others, for the division of rows.
        labels: The label of every row, or its targets of another kind.
        counts: The rows of each client.
        seed: Of the draw.
        classes: The number of classes.
        owner: The natural client of every row, for "owner".
    """
    given = np.asarray(labels)
    _check_labels(spec, given)
    y = given.astype(np.int64) if given.ndim == 1 and given.dtype.kind in "biu" else np.zeros(len(given), np.int64)
    sizes = integers("data.sizes", list(counts), low=1)
    needed = max(sizes, default=0) if overlaps(spec) else sum(sizes)
    if not sizes or needed > len(y):
        raise wrong(
            "data.sizes",
            f"{needed} rows for {len(sizes)} clients, but the dataset has {len(y)}; accepted: at most {len(y)}",
        )
    name, options = named(KEY, spec)
    if name in DIVISIONS:
        return [Share(rows) for rows in _divide(KEY, name, options, y, sizes, seed, classes, owner)]
    if name not in TWISTS:
        raise unknown(KEY, "name", name, NAMES)
    base, base_options = named(f"{KEY}.base", options.pop("base", "iid"))
    if base not in DIVISIONS:
        raise unknown(f"{KEY}.base", "name", base, DIVISIONS)
    twists = _quality(options, len(sizes)) if name == "quality" else _clusters(name, options, len(sizes), classes)
    divided = _divide(f"{KEY}.base", base, base_options, y, sizes, seed, classes, owner)
    return [replace(twist, rows=rows) for twist, rows in zip(twists, divided, strict=True)]


def _check_labels(spec: Spec, labels: npt.NDArray[Any]) -> None:
    """Refuse a division by classes of rows that have none."""
    if labels.ndim == 1 and labels.dtype.kind in "biu":
        return
    name, options = named(KEY, spec)
    asked = [name, named(f"{KEY}.base", options.get("base", "iid"))[0]]
    if by_class := [each for each in asked if each in _BY_CLASS]:
        raise wrong(KEY, f'"{by_class[0]}" divides rows by their classes, and these have none; accepted: iid, owner')


def overlaps(spec: Spec) -> bool:
    """Whether clients may have rows in common."""
    name, options = named(KEY, spec)
    if name in TWISTS:
        name, options = named(f"{KEY}.base", options.get("base", "iid"))
    return name == "iid" and options.get("overlap") is True


def _divide(
    key: str,
    name: str,
    options: Mapping[str, Any],
    labels: Rows,
    sizes: Sequence[int],
    seed: int,
    classes: int,
    owner: Rows | None,
) -> list[Rows]:
    required = {"dirichlet": ("alpha",), "shards": ("classes",), "similarity": ("gamma",)}.get(name, ())
    check_keys(key, name, options, required, ("overlap",) if name == "iid" else ())
    if not isinstance(overlap := options.get("overlap", False), bool):
        raise wrong(f"{key}.overlap", f"found {overlap!r}; accepted: true or false")
    gen = rng(seed, "partition", name)
    if name == "dirichlet":
        alpha = number(f"{key}.alpha", options["alpha"], low=0.0, above=True)
        return splitters.dirichlet(labels, sizes, gen, classes, alpha)
    if name == "shards":
        limit = integer(f"{key}.classes", options["classes"], low=1)
        return splitters.shards(labels, sizes, gen, classes, limit, f"{key}.classes")
    if name == "similarity":
        return splitters.similarity(labels, sizes, gen, number(f"{key}.gamma", options["gamma"], low=0.0, high=1.0))
    if name == "owner":
        return splitters.by_owner(owner, sizes, gen)
    return (splitters.shared if overlap else splitters.iid)(len(labels), sizes, gen)


def _clusters(name: str, options: Mapping[str, Any], clients: int, classes: int) -> list[Share]:
    """Return clients in consecutive clusters; cluster k is rotated by k quarter turns, or its labels shifted by k."""
    check_keys(KEY, name, options, ("clusters",))
    members = _members(f"{KEY}.clusters", options["clusters"], clients)
    most = 4 if name == "rotation" else classes
    if len(members) > most:
        raise wrong(f"{KEY}.clusters", f'{len(members)} clusters of "{name}"; accepted: at most {most}')
    groups = [group for group, count in enumerate(members) for _ in range(count)]
    turned = name == "rotation"
    return [Share(_EMPTY, group, rotate=group if turned else 0, flip=0 if turned else group) for group in groups]


def _quality(options: Mapping[str, Any], clients: int) -> list[Share]:
    """Consecutive clients in groups of equal data quality, which may change at a round."""
    check_keys(KEY, "quality", options, ("groups", "density"), ("change_at", "density_after"))
    members = _members(f"{KEY}.groups", options["groups"], clients)
    schedule = [(0, _densities("density", options["density"], len(members)))]
    if ("change_at" in options) != ("density_after" in options):
        lacking = "density_after" if "change_at" in options else "change_at"
        raise wrong(f"{KEY}.{lacking}", 'missing; "quality" needs change_at and density_after together')
    if "change_at" in options:
        change = integer(f"{KEY}.change_at", options["change_at"], low=1)
        schedule.append((change, _densities("density_after", options["density_after"], len(members))))
    salts = [tuple((start, density[group]) for start, density in schedule) for group in range(len(members))]
    return [Share(_EMPTY, group, salt=salts[group]) for group, count in enumerate(members) for _ in range(count)]


def _members(key: str, value: object, clients: int) -> list[int]:
    members = integers(key, value, low=1)
    if sum(members) != clients:
        raise wrong(key, f"{members} sum to {sum(members)} clients; accepted: a sum of {clients} (data.clients)")
    return members


def _densities(option: str, value: object, groups: int) -> list[float]:
    key = f"{KEY}.{option}"
    found = [number(key, entry, low=0.0, high=1.0, at=at) for at, entry in enumerate(items(key, value))]
    if len(found) != groups:
        raise wrong(key, f"{len(found)} numbers for {groups} groups; accepted: one per group")
    return found


_EMPTY: Rows = np.empty(0, np.int64)
