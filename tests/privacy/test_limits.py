"""What a client lets a task ask."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hush.privacy.limits import Limits, check
from hush.privacy.plan import PrivacyPlan
from hush.types import HushError

PLAN = PrivacyPlan(
    samples=100, batch=20, epochs=2, rounds=30, clip=1.5, noise_multiplier=1.2, relation="add-remove", accountant="pld"
)
TIGHT = Limits(max_rate=0.2, max_steps=10, max_rounds=30, min_noise=1.2, min_clip=1.5, max_clip=1.5)


def test_a_plan_at_its_limits_passes() -> None:
    for limits in (Limits(), TIGHT):
        check(PLAN, limits)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch": 21}, "sampling rate 0.21 exceeds this client's limits; accepted: at most 0.2"),
        ({"epochs": 3}, "steps per round 15 .*at most 10"),
        ({"rounds": 31}, "rounds 31 .*at most 30"),
        ({"noise_multiplier": 1.1}, "noise multiplier 1.1 .*at least 1.2"),
        ({"noise_multiplier": math.nan}, "noise multiplier nan .*at least 1.2"),
        ({"clip": 1.4}, "clip 1.4 .*at least 1.5"),
        ({"clip": 1.6}, "clip 1.6 .*at most 1.5"),
    ],
)
def test_a_plan_beyond_a_limit_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(HushError, match=text):
        check(replace(PLAN, **changes), TIGHT)


def test_no_protection_is_refused() -> None:
    bare = PrivacyPlan(
        samples=100,
        batch=20,
        epochs=1,
        rounds=5,
        clip=math.inf,
        noise_multiplier=0.0,
        relation="add-remove",
        accountant="pld",
    )
    check(bare, Limits())
    for limits in (Limits(min_noise=0.1), Limits(max_clip=100.0)):
        with pytest.raises(HushError, match="exceeds this client's limits"):
            check(bare, limits)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_rate": 0.0},
        {"max_rate": 1.1},
        {"max_steps": 0},
        {"max_rounds": math.nan},
        {"min_noise": -1.0},
        {"min_noise": math.inf},
        {"min_clip": 2.0, "max_clip": 1.0},
        {"max_clip": math.nan},
    ],
)
def test_limits_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(HushError, match=next(iter(wrong)).replace("max_clip", "clip")):
        Limits(**wrong)
