"""Claims of a paper about its results, in a form that can be checked: rankings of cells.

pfa-plus > weiavg @ mixgauss1          in that column (or row), the measure of one is above that of the other
dp-scaffold > dp-fedavg + 5 @ k=50     by more than 5; `- 2` allows 2 less
0-1-2:eps=5 < 1-1-1:eps=20             cells by their whole names
k=5 best @ sigma-g=10                  of all that stand there; `least` for the lowest
pfa-plus < pfa @ each [uplink MiB]     in every column; of a measure other than the main one
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hush.types import HushError

EACH = "each"
_NAME = r"[a-z0-9.=:-]+"
_FORM = re.compile(
    rf"(?P<one>{_NAME}) (?:(?P<op>[<>]) (?P<other>{_NAME})(?: (?P<sign>[+-]) (?P<margin>[\d.]+))?|(?P<top>best|least))"
    rf"(?: @ (?P<place>{_NAME}))?(?: \[(?P<measure>[^\]]+)\])?"
)

Values = Mapping[tuple[str, str], float]


@dataclass(frozen=True, kw_only=True)
class Order:
    """One claim.

    Attributes:
        text: The claim as written.
        one: The algorithm, column or cell that is claimed to be above or below.
        other: What it is compared with; None for all others in the same place.
        sign: 1 for a claim of more, -1 for less.
        margin: The minimum difference.
        place: The column or row of both, or `each`; None if cells are given by their full names.
        measure: The measure that is compared.
    """

    text: str
    one: str
    other: str | None
    sign: int
    margin: float
    place: str | None
    measure: str


def parsed(text: str) -> Order:
    """Return the parsed claim, or raise a `HushError` that shows the accepted form."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise HushError(f"orders: cannot parse {text!r}; accepted: such as 'a > b + 5 @ column [measure]'")
    sign = 1 if found["op"] == ">" or found["top"] == "best" else -1
    margin = float(f"{found['sign'] or ''}{found['margin'] or 0}")
    return Order(
        text=text,
        one=found["one"],
        other=found["other"],
        sign=sign,
        margin=sign * margin,
        place=found["place"],
        measure=found["measure"] or "value",
    )


def checked(orders: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each claim with whether it holds and by how much; None for both if a cell was not run."""
    found = []
    for order in map(parsed, orders):
        values = {
            (cell["algorithm"], cell["column"]): cell["measures"][order.measure]["ours"]
            for cell in cells
            if order.measure in cell["measures"]
        }
        by = surplus(order, values)
        found.append({"order": order.text, "holds": None if by is None else by > 0, "by": by})
    return found


def surplus(order: Order, values: Values) -> float | None:
    """Return by how much the claim holds (negative: fails), beyond its margin, in the tightest comparison."""
    places = dict.fromkeys(column for _, column in values) if order.place == EACH else [order.place]
    gaps: list[float] = []
    for place in places:
        one = _value(order.one, place, values)
        others = [other for other in _others(order, place, values) if other is not None]
        if one is not None:
            gaps += [order.sign * (one - other) - order.margin for other in others]
    return min(gaps) if gaps else None


def _others(order: Order, place: str | None, values: Values) -> list[float | None]:
    if order.other is not None:
        return [_value(order.other, place, values)]
    own = _key(order.one, place, values)
    return [value for key, value in values.items() if key != own and place in key]


def _value(name: str, place: str | None, values: Values) -> float | None:
    key = _key(name, place, values)
    return None if key is None else values[key]


def _key(name: str, place: str | None, values: Values) -> tuple[str, str] | None:
    algorithm, colon, column = name.partition(":")
    named = [(algorithm, column)] if colon else [(name, place or ""), (place or "", name)]
    return next((key for key in named if key in values), None)
