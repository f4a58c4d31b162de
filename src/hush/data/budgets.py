"""Privacy budgets and batch sizes of all clients, from a number, a list, a file or the name of a distribution."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hush.data.distributions import DISTRIBUTIONS, ROBUST_HDP
from hush.data.validation import integer, integers, items, number, wrong
from hush.seeds import rng
from hush.types import unknown

KEY = "privacy.budgets"
LIFETIME_KEY = "privacy.lifetime"
BATCH_KEY = "local.batch_size"
DELTA_KEY = "privacy.delta"
PAPER = "robust-hdp-paper"
FILES = (".json", ".txt", ".csv")


def distribution_names() -> list[str]:
    """Return every name that `budgets` accepts."""
    return [*DISTRIBUTIONS, *(f"{PAPER}:{name}" for name in ROBUST_HDP)]


def budgets(
    spec: float | str | Sequence[float] | Mapping[str, float],
    clients: int,
    seed: int,
    names: Sequence[str] = (),
    key: str = KEY,
) -> tuple[float, ...]:
    """Return the epsilon of each client, from `privacy.budgets` or `privacy.lifetime`.

    Args:
        spec: A number for all clients, a list with one per client, a table with one per client name, a file (.json with
            a list; .txt or .csv with numbers separated by lines or commas), or one of `distribution_names()`.
            "robust-hdp-paper:dist6" gives the exact values of the paper, for 20, 40 or 60 clients.
        clients: The number of clients.
        seed: The seed for sampling from a distribution.
        names: The client names that a table uses as keys; by default the client numbers.
        key: Which of the two it is, for errors.
    """
    integer("data.clients", clients, low=1)
    if isinstance(spec, Mapping):
        return _checked(key, by_name(key, spec, clients, names), clients)
    if not isinstance(spec, str):
        listed = hasattr(spec, "tolist") or isinstance(spec, (list, tuple))
        each = items(key, spec) if listed else [number(key, spec, low=0.0, above=True)] * clients
        return _checked(key, each, clients)
    if spec.lower().endswith(FILES):
        return _checked(key, _read(key, Path(spec)), clients, f" in {spec}")
    name = spec.lower()
    if name not in distribution_names():
        raise unknown(
            key, "name", spec, distribution_names(), more=", or a number, a list, or a .json, .txt or .csv file"
        )
    if name.startswith(PAPER):
        return tuple(map(float, _of_paper(key, _paper()["epsilons"][name.removeprefix(f"{PAPER}:")], clients)))
    gen = rng(seed, "budgets", name)
    return tuple(DISTRIBUTIONS[name].draw(gen) for _ in range(clients))


def batch_sizes(
    spec: int | str | Sequence[int] | Mapping[str, int], clients: int, seed: int, names: Sequence[str] = ()
) -> tuple[int, ...]:
    """Return the batch size of each client, from `local.batch_size`.

    Args:
        spec: A number for all clients, a list of choices (each used by an equal number of clients, up to one, in random
            order), a table with one per client name, or "robust-hdp-paper" for the values of the paper, for 20, 40 or
            60 clients.
        clients: The number of clients.
        seed: The seed of the order.
        names: The client names that a table uses as keys; by default the client numbers.
    """
    integer("data.clients", clients, low=1)
    if isinstance(spec, Mapping):
        return tuple(integers(BATCH_KEY, by_name(BATCH_KEY, spec, clients, names), low=1))
    if isinstance(spec, str):
        if spec.lower() != PAPER:
            raise unknown(BATCH_KEY, "name", spec, [PAPER], more=", or an integer, or a list of them")
        return tuple(map(int, _of_paper(BATCH_KEY, _paper()["batches"], clients)))
    if not (hasattr(spec, "tolist") or isinstance(spec, (list, tuple))):
        return (integer(BATCH_KEY, spec, low=1),) * clients
    choices = integers(BATCH_KEY, spec, low=1)
    if not choices:
        raise wrong(BATCH_KEY, "found an empty list; accepted: at least one whole number")
    gen = rng(seed, "batch sizes")
    # The choices are shuffled first, so that the remaining clients do not always get the first ones.
    return tuple(int(size) for size in gen.permutation(np.resize(gen.permutation(choices), clients)))


def deltas(spec: float | Sequence[float] | Mapping[str, float], clients: int, names: Sequence[str] = ()) -> list[float]:
    """Return the delta of each client, from `privacy.delta`: a number for all, a list, or a table by name."""
    if isinstance(spec, Mapping):
        spec = [number(DELTA_KEY, value, low=0.0, high=1.0) for value in by_name(DELTA_KEY, spec, clients, names)]
    if not isinstance(spec, list | tuple):
        return [float(spec)] * clients  # type: ignore[arg-type]
    if len(spec) != clients:
        raise wrong(DELTA_KEY, f"a list of {len(spec)} numbers for {clients} clients")
    return [float(value) for value in spec]


def by_name(key: str, table: Mapping[str, object], clients: int, names: Sequence[str] = ()) -> list[object]:
    """Return the values of a table in the order of the clients; a `HushError` lists unknown and missing names."""
    table = {str(name): value for name, value in table.items()}
    known = [name or str(client) for client, name in enumerate(names or [""] * clients)]
    strange, lacking = [name for name in table if name not in known], [name for name in known if name not in table]
    if strange or lacking:
        says = [f"no client is called {', '.join(strange)[:200]}"] if strange else []
        says += [f"nothing for {', '.join(lacking)[:200]}"] if lacking else []
        raise wrong(key, f"{'; '.join(says)}; accepted: a number for each of {', '.join(known)[:200]}")
    return [table[name] for name in known]


def _checked(key: str, values: Sequence[object], clients: int, where: str = "") -> tuple[float, ...]:
    if len(values) != clients:
        raise wrong(key, f"{len(values)} numbers{where} for {clients} clients; accepted: one number per client")
    return tuple(number(key, value, low=0.0, above=True, at=at) for at, value in enumerate(values))


def _read(key: str, path: Path) -> list[object]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            return items(key, json.loads(text))
        return [float(word) for word in text.replace(",", "\n").split("\n") if word.strip()]
    except OSError as error:
        raise wrong(
            key, f"file {path} cannot be read ({error.strerror}); accepted: a file with one number per client"
        ) from None
    except (ValueError, RecursionError) as error:
        raise wrong(key, f"file {path} is not a list of numbers ({error})") from None


def _of_paper(key: str, lists: dict[str, list[float]], clients: int) -> list[float]:
    if str(clients) not in lists:
        raise wrong(key, f'"{PAPER}" has no values for {clients} clients; accepted: {", ".join(lists)} (data.clients)')
    return lists[str(clients)]


@cache
def _paper() -> dict[str, Any]:
    """The epsilons and batch sizes of the clients in Robust-HDP's experiments."""
    text = resources.files("hush.data").joinpath("robust_hdp_clients.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
