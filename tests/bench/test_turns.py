"""Simulations that take turns: a round each, and none is timed while another one computes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hush.bench import turns
from hush.bench.turns import Simulated, Spent, alternated
from hush.types import HushError

SMALL = Simulated(clients=2, samples=20, rounds=3, workers=1, model="logreg")


def test_rounds_alternate_and_the_first_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def run(self: Simulated, after: Any) -> None:
        name = "slow" if self.samples == 40 else "quick"
        for _ in range(self.rounds):
            order.append(name)
            time.sleep(1.0 if name == "slow" else 0.01)
            after(None)

    monkeypatch.setattr(Simulated, "run", run)
    took = alternated({"quick": SMALL, "slow": Simulated(clients=2, samples=40, rounds=3)})
    assert order == ["quick", "slow"] * 3
    assert [len(each) for each in took.values()] == [2, 2]
    assert all(0.01 <= each.seconds < 0.9 for each in took["quick"])
    assert all(each.seconds >= 1.0 for each in took["slow"])


def test_processor_time_is_counted_and_failures_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    (rounds,) = alternated({"one": SMALL}).values()
    assert all(isinstance(each, Spent) and 0 < each.own <= each.path <= each.busy < 5 for each in rounds)

    def failing(self: Simulated, after: Any) -> None:
        after(None)
        raise HushError("no room")

    monkeypatch.setattr(turns.Simulated, "run", failing)
    with pytest.raises(HushError, match="no room"):
        alternated({"one": SMALL, "other": SMALL})
