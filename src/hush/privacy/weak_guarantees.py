"""Weak guarantees: warnings about parameters under which a guarantee holds but means little.

The limits:
    - `LARGE_DELTA`, 1 %: delta is the probability with which there may be no guarantee at all.
    - delta of 1/n or more, for n rows: publishing one row chosen at random satisfies that delta with epsilon 0.
    - `LARGE_EPSILON`, 20: one row may make an outcome e^20, half a billion times, more likely, so that even someone who
      considered its presence a one-in-a-million chance becomes almost certain of it. Published deployments stay below.

Guarantees:
    - A warning depends on the policy and the number of rows alone.

Edge cases:
    - An infinite epsilon is no guarantee, which is reported elsewhere: no warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hush.types import Unit

LARGE_EPSILON = 20.0
LARGE_DELTA = 1e-2


def warnings_of(epsilon: float, delta: float, rows: int | None = None, unit: Unit = "row") -> tuple[str, ...]:
    """Return the warnings for one client; `rows` is its number of rows (or of other units of privacy), if known."""
    if math.isinf(epsilon):
        return ()
    found = []
    if delta >= LARGE_DELTA:
        found.append(
            f"delta {delta:g}: with this probability there is no guarantee; use less than 1/n for n rows, and less "
            "than "
            f"{LARGE_DELTA:g} in any case"
        )
    elif rows is not None and delta * rows >= 1:
        found.append(
            f"delta {delta:g} is not below 1/n for n = {rows} {unit}s: publishing one {unit} at random would satisfy "
            f"it; use less than {1 / rows:.2g}"
        )
    if epsilon > LARGE_EPSILON:
        found.append(
            f"epsilon {epsilon:g} is above {LARGE_EPSILON:g}: one {unit} can make an outcome e^{epsilon:.3g} times "
            "more likely, which is no meaningful protection"
        )
    return tuple(found)


def gathered(warned: Iterable[tuple[int | str, Sequence[str]]]) -> tuple[str, ...]:
    """Group the warnings of many clients by text, with the names or numbers of the clients concerned."""
    clients: dict[str, list[int | str]] = {}
    for client, texts in warned:
        for text in texts:
            clients.setdefault(text, []).append(client)
    return tuple(f"{_named(whose)}: {text}" for text, whose in clients.items())


def _named(clients: Sequence[int | str]) -> str:
    if len(clients) == 1:
        return f"client {clients[0]}"
    shown = ", ".join(map(str, clients[:5]))
    return f"clients {shown}" + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
