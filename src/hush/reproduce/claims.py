"""Claims of a paper about its results, in a form that can be checked: rankings of cells.

pfa-plus > weiavg @ mixgauss1          in that column (or row), the measure of one is above that of the other
dp-scaffold > dp-fedavg + 5 @ k=50     by more than 5; `- 2` allows 2 less
0-1-2:eps=5 < 1-1-1:eps=20             cells by their whole names
k=5 best @ sigma-g=10                  of all that stand there; `least` for the lowest
pfa-plus < pfa @ each [uplink MiB]     in every column; of a measure other than the main one

A claim is undecided if what it compares differs by no more than the spread over seeds, or if both models only guess.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hush.reproduce.measures import guessing, unit
from hush.types import HushError

EACH = "each"
HOLDS, FAILS, UNDECIDED, NOT_RUN = "holds", "fails", "undecided", "not run"
_NAME = r"[a-z0-9.=:-]+"
_FORM = re.compile(
    rf"(?P<one>{_NAME}) (?:(?P<op>[<>]) (?P<other>{_NAME})(?: (?P<sign>[+-]) (?P<margin>[\d.]+))?|(?P<top>best|least))"
    rf"(?: @ (?P<place>{_NAME}))?(?: \[(?P<measure>[^\]]+)\])?"
)


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


@dataclass(frozen=True)
class Value:
    """The measure of one cell: a number for each seed (one, if it does not depend on the seed).

    `guesses`: whether its model is no better than guessing. `own`: whether the paper does not have the algorithm.
    """

    runs: Sequence[float]
    guesses: bool = False
    own: bool = False

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.runs)


@dataclass(frozen=True)
class Comparison:
    """Two cells under a claim: by how much it holds (negative: fails), and the difference that is no evidence."""

    by: float
    spread: float
    guesses: bool

    @property
    def verdict(self) -> str:
        """Whether the claim holds for these two."""
        if self.guesses or abs(self.by) <= self.spread:
            return UNDECIDED
        return HOLDS if self.by > 0 else FAILS


Values = Mapping[tuple[str, str], Value]


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


def checked(
    orders: Sequence[str],
    cells: Sequence[Mapping[str, Any]],
    one_seed: Callable[[str], float] = lambda measure: 0.0,
    guesses: Callable[[Mapping[str, Any], str], float | None] = lambda cell, measure: None,
) -> list[dict[str, Any]]:
    """Return each claim with its verdict, by how much it holds, and the spread over seeds of what is compared.

    `by` and `spread` are those of the comparison that holds least; None if the cells were not run. A claim about
    several cells fails if one comparison fails, and is otherwise undecided if one is.

    Args:
        orders: The claims.
        cells: The cells that were run, as recorded.
        one_seed: The spread to assume for a measure that was run with one seed.
        guesses: The value of a cell's measure up to which its model is not distinguished from guessing.
    """
    found = []
    for order in map(parsed, orders):
        values = {
            (cell["algorithm"], cell["column"]): _measured(cell, order.measure, guesses)
            for cell in cells
            if order.measure in cell["measures"]
        }
        compared = list(comparisons(order, values, one_seed(order.measure)))
        least = min(compared, key=lambda each: each.by, default=None)
        verdicts = {each.verdict for each in compared}
        verdict = next((each for each in (FAILS, UNDECIDED, HOLDS) if each in verdicts), NOT_RUN)
        found.append(
            {
                "order": order.text,
                "verdict": verdict,
                "holds": {HOLDS: True, FAILS: False}.get(verdict),
                "by": least.by if least else None,
                "spread": least.spread if least else None,
            }
        )
    return found


def judged(
    orders: Sequence[str], content: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return `checked` for the cells of a reproduction, given its `metric` and `config`."""
    metric = content["metric"]
    return checked(
        orders,
        cells,
        lambda measure: unit(metric, measure).one_seed,
        lambda cell, measure: guessing(content, cell, measure),
    )


def comparisons(order: Order, values: Values, one_seed: float = 0.0) -> Iterator[Comparison]:
    """Yield every two cells that a claim compares; those that were not run are left out."""
    places = dict.fromkeys(column for _, column in values) if order.place == EACH else [order.place]
    for place in places:
        one = _value(order.one, place, values)
        others = [other for other in _others(order, place, values) if other is not None]
        if one is not None:
            for other in others:
                by = order.sign * (one.mean - other.mean) - order.margin
                yield Comparison(by, _spread(one, other, one_seed), one.guesses and other.guesses)


def _spread(one: Value, other: Value, one_seed: float) -> float:
    """Return the standard deviation over seeds of the difference; seeds are paired, as they share data and split."""
    if max(len(one.runs), len(other.runs)) == 1:
        return one_seed
    if len(one.runs) == len(other.runs):
        return statistics.stdev(a - b for a, b in zip(one.runs, other.runs, strict=True))
    return max(statistics.stdev(each.runs) for each in (one, other) if len(each.runs) > 1)


def _measured(
    cell: Mapping[str, Any], measure: str, guesses: Callable[[Mapping[str, Any], str], float | None]
) -> Value:
    value, limit = cell["measures"][measure], guesses(cell, measure)
    runs = value.get("runs") or [value["ours"]]
    return Value(runs, limit is not None and value["ours"] <= limit, bool(cell.get("own")))


def _others(order: Order, place: str | None, values: Values) -> list[Value | None]:
    if order.other is not None:
        return [_value(order.other, place, values)]
    # Who is best is a claim about the algorithms that the paper has.
    own = _key(order.one, place, values)
    return [value for key, value in values.items() if key != own and place in key and not value.own]


def _value(name: str, place: str | None, values: Values) -> Value | None:
    key = _key(name, place, values)
    return None if key is None else values[key]


def _key(name: str, place: str | None, values: Values) -> tuple[str, str] | None:
    algorithm, colon, column = name.partition(":")
    named = [(algorithm, column)] if colon else [(name, place or ""), (place or "", name)]
    return next((key for key in named if key in values), None)
