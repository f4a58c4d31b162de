"""Each client's epsilon and batch size, from a number, a list, a file or the name of a distribution."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hush.data.distributions import DISTRIBUTIONS, ROBUST_HDP
from hush.data.options import integer, integers, items, number, wrong
from hush.seeds import rng
from hush.types import unknown

KEY = "privacy.budgets"
BATCH_KEY = "local.batch_size"
PAPER = "robust-hdp-paper"
FILES = (".json", ".txt", ".csv")


def names() -> list[str]:
    """Every name that `budgets` accepts."""
    return [*DISTRIBUTIONS, *(f"{PAPER}:{name}" for name in ROBUST_HDP)]


def budgets(spec: float | str | Sequence[float], clients: int, seed: int) -> tuple[float, ...]:
    """The epsilon of each client, from `privacy.budgets`.

    Args:
        spec: A number for all, a list with one a client, a file (.json with a list; .txt or .csv with numbers on lines
            or between commas), or one of `names()`. "robust-hdp-paper:dist6" gives the very values of the paper, for
            20, 40 or 60 clients.
        clients: The number of clients.
        seed: Of the draw from a distribution.
    """
    integer("data.clients", clients, low=1)
    if not isinstance(spec, str):
        listed = hasattr(spec, "tolist") or isinstance(spec, (list, tuple))
        return _checked(items(KEY, spec), clients) if listed else (number(KEY, spec, low=0.0, above=True),) * clients
    if spec.lower().endswith(FILES):
        return _checked(_read(Path(spec)), clients, f" in {spec}")
    name = spec.lower()
    if name not in names():
        raise unknown(KEY, "name", spec, names(), more=", or a number, a list, or a .json, .txt or .csv file")
    if name.startswith(PAPER):
        return tuple(map(float, _of_paper(KEY, _paper()["epsilons"][name.removeprefix(f"{PAPER}:")], clients)))
    gen = rng(seed, "budgets", name)
    return tuple(DISTRIBUTIONS[name].draw(gen) for _ in range(clients))


def batch_sizes(spec: int | str | Sequence[int], clients: int, seed: int) -> tuple[int, ...]:
    """The batch size of each client, from `local.batch_size`.

    Args:
        spec: A number for all, a list of choices (each used by as many clients as the others, give or take one, in
            random order), or "robust-hdp-paper" for the paper's own, for 20, 40 or 60 clients.
        clients: The number of clients.
        seed: Of the order.
    """
    integer("data.clients", clients, low=1)
    if isinstance(spec, str):
        if spec.lower() != PAPER:
            raise unknown(BATCH_KEY, "name", spec, [PAPER], more=", or a whole number, or a list of them")
        return tuple(map(int, _of_paper(BATCH_KEY, _paper()["batches"], clients)))
    if not (hasattr(spec, "tolist") or isinstance(spec, (list, tuple))):
        return (integer(BATCH_KEY, spec, low=1),) * clients
    choices = integers(BATCH_KEY, spec, low=1)
    if not choices:
        raise wrong(BATCH_KEY, "found an empty list; accepted: at least one whole number")
    gen = rng(seed, "batch sizes")
    # The choices are shuffled first, so that it is not always the first ones that get a client more.
    return tuple(int(size) for size in gen.permutation(np.resize(gen.permutation(choices), clients)))


def _checked(values: Sequence[object], clients: int, where: str = "") -> tuple[float, ...]:
    if len(values) != clients:
        raise wrong(KEY, f"{len(values)} numbers{where} for {clients} clients; accepted: one number a client")
    return tuple(number(KEY, value, low=0.0, above=True, at=at) for at, value in enumerate(values))


def _read(path: Path) -> list[object]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            return items(KEY, json.loads(text))
        return [float(word) for word in text.replace(",", "\n").split("\n") if word.strip()]
    except OSError as error:
        raise wrong(
            KEY, f"file {path} cannot be read ({error.strerror}); accepted: a file with one number a client"
        ) from None
    except (ValueError, RecursionError) as error:
        raise wrong(KEY, f"file {path} is not a list of numbers ({error})") from None


def _of_paper(key: str, lists: dict[str, list[float]], clients: int) -> list[float]:
    if str(clients) not in lists:
        raise wrong(key, f'"{PAPER}" has no values for {clients} clients; accepted: {", ".join(lists)} (data.clients)')
    return lists[str(clients)]


@cache
def _paper() -> dict[str, Any]:
    """Epsilons and batch sizes of the clients in Robust-HDP's experiments."""
    text = resources.files("hush.data").joinpath("robust_hdp_clients.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
