"""Claims: what they compare, and when a difference decides them."""

from __future__ import annotations

from typing import Any

import pytest

from hush.reproduce.claims import FAILS, HOLDS, NOT_RUN, UNDECIDED, checked, judged, parsed
from hush.types import HushError


def row(algorithm: str, column: str, *runs: float, measure: str = "value") -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "column": column,
        "measures": {measure: {"ours": sum(runs) / len(runs), "runs": list(runs)}},
    }


CELLS = [row("a", "x", 5.0), row("b", "x", 3.0), row("c", "x", 4.5), row("a", "y", 1.0), row("b", "y", 4.0)]


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("a > b @ x", 2.0),
        ("a > b + 3 @ x", -1.0),
        ("a > b - 1 @ x", 3.0),
        ("a < b @ x", -2.0),
        ("b < a - 1 @ x", 1.0),
        ("x > y @ a", 4.0),
        ("a:y < b:x", 2.0),
        ("a best @ x", 0.5),
        ("c best @ x", -0.5),
        ("b least @ x", 1.5),
        ("a > b @ each", -3.0),
        ("a > c @ each", 0.5),
        ("a > b @ z", None),
        ("a > d @ x", None),
        ("a > b @ x [loss]", None),
    ],
)
def test_orders_mean_what_they_say(text: str, by: float | None) -> None:
    (found,) = checked([text], CELLS)
    assert found["order"] == text and found["by"] == (None if by is None else pytest.approx(by))
    assert found["verdict"] == (NOT_RUN if by is None else HOLDS if by > 0 else FAILS)
    assert found["holds"] is (None if by is None else by > 0)


@pytest.mark.parametrize("text", ["", "a", "a > ", "a = b @ x", "a > b by 3 @ x", "A > b @ x"])
def test_what_is_no_order_is_refused(text: str) -> None:
    with pytest.raises(HushError, match=r"cannot parse .*accepted: such as"):
        parsed(text)


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ((5.0, 6.0, 7.0), (1.0, 2.0, 3.0), HOLDS),  # always 4 above: the seeds are paired
        ((5.0, 6.0, 7.0), (3.0, 1.0, 11.0), UNDECIDED),  # 1 above on average, by 2, 5 and -4
        ((1.0, 2.0, 3.0), (5.0, 6.0, 7.0), FAILS),
        ((5.0, 6.0, 7.0), (4.0, 4.0, 4.0), HOLDS),  # 2 above, with a spread of 1
        ((5.0, 6.0, 7.0), (5.2, 5.2, 5.2), UNDECIDED),  # 0.8 above, with a spread of 1
    ],
)
def test_a_difference_within_the_spread_over_seeds_decides_nothing(
    one: tuple[float, ...], other: tuple[float, ...], verdict: str
) -> None:
    (found,) = checked(["a > b @ x"], [row("a", "x", *one), row("b", "x", *other)])
    assert found["verdict"] == verdict
    assert found["holds"] is {HOLDS: True, FAILS: False}.get(verdict)


def test_our_own_algorithms_are_not_among_those_that_a_paper_calls_best() -> None:
    cells = [row("a", "x", 5.0), row("b", "x", 3.0), {**row("hush", "x", 9.0), "own": True}]
    assert checked(["a best @ x"], cells)[0]["verdict"] == HOLDS
    assert checked(["a > hush @ x"], cells)[0]["verdict"] == FAILS
    assert checked(["a best @ x"], [*cells, row("c", "x", 9.0)])[0]["verdict"] == FAILS


def test_one_seed_decides_what_is_far_apart_only() -> None:
    cells = [row("a", "x", 51.0), row("b", "x", 50.0), row("c", "x", 40.0)]
    found = judged(["a > b @ x", "a > c @ x", "a best @ x"], {"metric": "accuracy", "config": {}}, cells)
    assert [one["verdict"] for one in found] == [UNDECIDED, HOLDS, UNDECIDED]
    assert [one["spread"] for one in found] == [2.0, 2.0, 2.0]


def test_a_claim_about_several_cells_fails_with_one_of_them() -> None:
    cells = [row("a", "x", 5.0), row("b", "x", 3.0), row("a", "y", 1.0), row("b", "y", 4.0)]
    assert checked(["a > b @ each"], cells)[0]["verdict"] == FAILS
    assert checked(["a > b @ each"], cells, lambda measure: 3.5)[0]["verdict"] == UNDECIDED


def test_models_that_guess_are_not_ranked() -> None:
    content = {"metric": "accuracy", "config": {"data": {"name": "mnist"}}}
    low, lower, good = row("a", "x", 12.5, 12.5), row("b", "x", 9.0, 9.0), row("c", "x", 60.0, 60.0)
    assert judged(["a > b @ x"], content, [low, lower])[0]["verdict"] == UNDECIDED
    assert judged(["c > b @ x"], content, [good, lower])[0]["verdict"] == HOLDS
    assert judged(["b > c @ x"], content, [good, lower])[0]["verdict"] == FAILS
    assert (
        judged(["a > b @ x"], {"metric": "clustering", "config": content["config"]}, [low, lower])[0]["verdict"]
        == HOLDS
    )
