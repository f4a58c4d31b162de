"""Ticks of an axis: its range, round numbers within it, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hush.pages.chart import Axis, finite
from hush.pages.wording import figure

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Ticks:
    """The range of an axis in its own units (logarithms on a log axis), and its ticks as (position, text)."""

    low: float
    high: float
    marks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Return where a value is, from 0 at the low end to 1 at the high end."""
        found = math.log10(value) if self.log else value
        return (found - self.low) / (self.high - self.low)


def ticks(axis: Axis, values: Sequence[float], most: int) -> Ticks:
    """Return range and ticks for these values; `most` is about how many ticks there is room for."""
    if axis.scale == "category":
        return _categories(axis.categories, most)
    if axis.scale == "blank":
        return Ticks(-0.06, 1.06, ())
    known = finite(values)
    if axis.scale == "round":
        return _rounds(max(known, default=1.0), most)
    if axis.scale == "log":
        return _log([value for value in known if value > 0] or [1.0], most)
    return _linear(axis, known or [0.0, 1.0], most)


def number_words(axis: Axis) -> Callable[[float], str]:
    """Return how a value of the axis is written."""
    return (lambda value: f"{100 * value:.3g}%") if axis.percent else (lambda value: figure(value))


def _linear(axis: Axis, values: Sequence[float], most: int) -> Ticks:
    low, high = min(values), max(values)
    if axis.from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
        low = max(low, 0.0) if axis.from_zero and min(values) >= 0 else low
    # An axis from zero begins there; elsewhere both ends have room.
    room = 0.04 * (high - low)
    low = low if axis.from_zero and low == 0 else low - room
    high = min(high + room, 1.0) if axis.percent and high <= 1 else high + room
    step = _step((high - low) / max(most, 2))
    marks = [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return Ticks(low, high, tuple((mark, _linear_words(axis, mark, step)) for mark in marks))


def _linear_words(axis: Axis, mark: float, step: float) -> str:
    if axis.percent:
        return f"{100 * mark:.{_digits(100 * step)}f}%"
    if abs(mark) >= 1e5 or 0 < step < 1e-4:
        return f"{mark:.3g}"
    return f"{mark:.{_digits(step)}f}"


def _digits(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))


def _step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, ... that is at least so large."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(base * power for base in (1, 2, 5, 10) if base * power >= least * (1 - 1e-9))


def _rounds(last: float, most: int) -> Ticks:
    step = max(1, int(_step(last / max(most, 1))))
    first = step if step > 1 else 1
    marks = tuple((float(number), str(number)) for number in range(first, int(last) + 1, step))
    return Ticks(0.5, last + 0.5, marks or ((1.0, "1"),))


def _log(values: Sequence[float], most: int) -> Ticks:
    low, high = math.log10(min(values)), math.log10(max(values))
    room = 0.1 + 0.06 * (high - low)
    low, high = low - room, high + room
    apart = math.ceil((high - low) / max(most, 2))
    leading = (1, 2, 5) if (high - low) * 3 <= most + 4 else (1,)
    found = [(n, power) for power in range(math.floor(low), math.ceil(high) + 1, apart) for n in leading]
    inside = [(n, power) for n, power in found if low <= math.log10(n) + power <= high]
    marks = tuple((math.log10(n) + power, _log_words(n, power)) for n, power in inside)
    return Ticks(low, high, marks, log=True)


def _log_words(leading: int, power: int) -> str:
    if -3 <= power <= 4:
        return f"{leading * 10.0**power:g}"
    raised = f"10{str(power).translate(_SUPERSCRIPT)}"
    return raised if leading == 1 else f"{leading}·{raised}"


def _categories(names: Sequence[str], most: int) -> Ticks:
    every = max(1, math.ceil(len(names) / max(most, 1)))
    marks = tuple((float(number), name) for number, name in enumerate(names) if number % every == 0)
    return Ticks(-0.5, max(len(names), 1) - 0.5, marks)
