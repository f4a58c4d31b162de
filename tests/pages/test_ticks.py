from __future__ import annotations

import pytest

from hush.pages.chart import Axis, scaled
from hush.pages.ticks import ticks


def words(axis: Axis, values: list[float], most: int = 6) -> list[str]:
    return [text for _, text in ticks(axis, values, most).marks]


@pytest.mark.parametrize(("last", "step"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 5), (200, 20), (1001, 200)])
def test_round_ticks_are_whole_and_few(last: int, step: int) -> None:
    found = words(Axis(scale="round"), [float(last)], 10)
    assert found == [str(number) for number in range(step, last + 1, step)]


def test_log_ticks_are_round_and_inside() -> None:
    few = ticks(Axis(scale="log"), [0.2, 3.0], 6)
    assert [text for _, text in few.marks] == ["0.2", "0.5", "1", "2"]
    assert few.place(0.2) > 0 and few.place(3.0) < 1
    many = ticks(Axis(scale="log"), [1e-9, 1e9], 6)
    assert [text for _, text in many.marks][:2] == ["10⁻⁷", "0.001"]
    assert all(many.low <= position <= many.high for position, _ in many.marks)


def test_an_axis_is_logarithmic_where_values_are_far_apart() -> None:
    assert [scaled("", values).scale for values in ([1.0, 9.0], [0.0, 100.0], [1.0, 11.0])] == [
        "linear", "linear", "log",
    ]  # fmt: skip


def test_linear_ticks_cover_the_values() -> None:
    assert words(Axis(percent=True), [0.1, 0.93]) == ["20%", "40%", "60%", "80%"]
    assert words(Axis(from_zero=True), [3.0, 9.0])[0] == "0"
    for values in ([5.0], [0.0], [-2.0, -1.0], [1e-9, 2e-9], [1e12, 3e12]):
        made = ticks(Axis(), values, 6)
        assert made.marks
        assert all(made.low <= value <= made.high for value in values)


def test_many_categories_are_thinned() -> None:
    names = tuple(map(str, range(100)))
    assert words(Axis(scale="category", categories=names), [], 10) == [str(n) for n in range(0, 100, 10)]
