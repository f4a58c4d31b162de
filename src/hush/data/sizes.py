"""Sizes of clients: the number of rows of each client, and the split into training and test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hush.data.validation import check_keys, integer, integers, named, number, wrong
from hush.seeds import rng
from hush.types import unknown

KEY = "data.sizes"
NAMES = ("equal", "lognormal", "zipf")
# A client needs one row to train on and one to test on.
LEAST = 2

Rows = npt.NDArray[np.int64]


def counts(
    spec: str | int | Sequence[int] | Mapping[str, object], clients: int, total: int, seed: int, overlap: bool = False
) -> list[int]:
    """Return the number of rows of each client, from `data.sizes`.

    Args:
        spec: "equal", one number for all, a list with one number per client, {name="lognormal", sigma=...} or
            {name="zipf", exponent=...}. The last two distribute all rows, at least two per client.
        clients: The number of clients.
        total: The number of available rows.
        seed: The seed of the last two.
        overlap: Whether clients may have rows in common: then each may have up to `total` rows.
    """
    integer("data.clients", clients, low=1)
    if clients > total:
        raise wrong("data.clients", f"{clients} clients for {total} rows; accepted: at most {total}")
    if isinstance(spec, (str, Mapping)):
        name, options = named(KEY, spec)
        found = _by_name(name, options, clients, total, seed)
    elif isinstance(spec, int):
        found = [integer(KEY, spec, low=1)] * clients
    elif isinstance(spec, float):
        raise wrong(KEY, f'found {spec}; accepted: "equal", an integer, a list of them, or a table with a name')
    else:
        found = integers(KEY, spec, low=1)
        if len(found) != clients:
            raise wrong(KEY, f"{len(found)} numbers for {clients} clients; accepted: one number per client")
    if overlap and max(found) > total:
        raise wrong(KEY, f"{max(found)} rows for a client, but there are {total}; accepted: at most {total}")
    if not overlap and sum(found) > total:
        raise wrong(KEY, f"{sum(found)} rows in all, but there are {total}; accepted: a sum of at most {total}")
    return found


def holdout(rows: Rows, fraction: float, seed: int, client: int) -> tuple[Rows, Rows]:
    """Split a client's rows at random into train and test rows; with a positive fraction neither is empty."""
    if not 0.0 <= fraction < 1.0:
        raise wrong("data.test_fraction", f"found {fraction}; accepted: a number from 0 to below 1")
    if fraction == 0.0:
        return rows, rows[:0]
    if len(rows) < LEAST:
        raise wrong(
            "data.test_fraction", f"client {client} has {len(rows)} rows; accepted: at least {LEAST} per client"
        )
    shuffled = rng(seed, "holdout", client).permutation(rows)
    test = held_out(len(rows), fraction)
    return shuffled[test:], shuffled[:test]


def held_out(rows: int, fraction: float) -> int:
    """Return the number of a client's test rows: at least one, and not all."""
    return min(max(round(fraction * rows), 1), rows - 1)


def _by_name(name: str, options: Mapping[str, object], clients: int, total: int, seed: int) -> list[int]:
    if name == "equal":
        check_keys(KEY, name, options, ())
        return [total // clients] * clients
    gen = rng(seed, "sizes", name)
    if name == "lognormal":
        check_keys(KEY, name, options, ("sigma",))
        sigma = number(f"{KEY}.sigma", options["sigma"], low=0.0, above=True, high=10.0)
        weights = np.exp(sigma * gen.standard_normal(clients))
    elif name == "zipf":
        check_keys(KEY, name, options, ("exponent",))
        exponent = number(f"{KEY}.exponent", options["exponent"], low=0.0, above=True, high=10.0)
        weights = gen.permutation(np.arange(1.0, clients + 1.0) ** -exponent)
    else:
        raise unknown(KEY, "name", name, NAMES)
    if LEAST * clients > total:
        raise wrong("data.clients", f"{clients} clients for {total} rows; {KEY} needs {LEAST} rows per client")
    extra = np.floor((total - LEAST * clients) * weights / weights.sum())
    return [LEAST + int(rows) for rows in extra]
