"""Hours and runs a day, and a share of the cores: limits of a policy that depend on the clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hush.deploy.member import opening
from hush.deploy.member.cpu_share import CpuShare
from hush.types import HushError


def at(hour: int, minute: int = 0) -> float:
    return time.mktime((2026, 3, 4, hour, minute, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("08:00-17:00", (8, 12, 16), (7, 17, 23)),
        ("18:00-06:00", (18, 23, 0, 5), (6, 12, 17)),
        ("22:00-24:00", (22, 23), (0, 21)),
    ],
)
def test_hours_hold_also_across_midnight(hours: str, inside: tuple[int, ...], outside: tuple[int, ...]) -> None:
    for hour in inside:
        opening.check_hours(hours, at(hour))
    for hour in outside:
        with pytest.raises(HushError, match="takes part in"):
            opening.check_hours(hours, at(hour))
    opening.check_hours("", at(3))


@pytest.mark.parametrize("hours", ["8-17", "08:00", "25:00-26:00", "08:00-08:00", "24:00-06:00", "08:00-24:30"])
def test_hours_that_mean_nothing_are_refused(hours: str) -> None:
    with pytest.raises(HushError, match=r"limits\.hours"):
        opening.parse(hours)


def test_runs_are_counted_once_for_a_day(tmp_path: Path) -> None:
    for name in ("a.json", "a.disclosed.json", "b.disclosed.json"):
        (tmp_path / name).write_text("{}")
    opening.check_runs(tmp_path, "c", 3)
    opening.check_runs(tmp_path, "a", 2)
    with pytest.raises(HushError, match="2 runs began in the last 24 hours"):
        opening.check_runs(tmp_path, "c", 2)
    for path in tmp_path.iterdir():
        os.utime(path, (0, time.time() - opening.DAY - 5))
    opening.check_runs(tmp_path, "c", 1)


def test_a_share_of_the_cores_is_kept_on_average() -> None:
    now = {"work": 0.0, "clock": 0.0}
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now["clock"] += seconds

    share = CpuShare(0.25, number=2, worked=lambda: now["work"], clock=lambda: now["clock"], sleep=sleep)
    assert share.most_cores == 1
    for _ in range(5):
        now["work"] += 1.0
        now["clock"] += 1.0
        share.pause()
    assert slept == [1.0] * 5
    assert now["work"] / (2 * now["clock"]) == pytest.approx(0.25)
    whole = CpuShare(1.0, number=2, worked=lambda: now["work"], clock=lambda: now["clock"], sleep=sleep)
    now["work"] += 9.0
    assert whole.pause() == 0.0
    assert CpuShare(0.75, number=2).most_cores == 2
