"""Members that are online and never answer: rounds go on, the member is evicted, and both sides are notified."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.cli import federation
from hush.deploy.admin import audit_log
from hush.deploy.coordinator import exchange
from hush.types import RunResult
from tests.support.fork_server import ForkServer
from tests.support.live_federation import LiveFederation, config, resigned, until


class Stall:
    """A twist that keeps an answer back until it is let go."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def __call__(self, task: bytes, payload: bytes) -> bytes:
        self.free.wait(600)
        return payload


def timed(live: LiveFederation, rounds: int, stalls: dict[str, Stall], progress: Any = None) -> tuple[RunResult, float]:
    """A run's result, and its seconds, the first round apart from the rest of them not counted."""
    run = config(len(live.place.members()), rounds, quorum=1, recipe={"name": "dp-fedavg"})
    try:
        with live.members(**stalls):
            began = time.monotonic()
            result = live.coordinator().run(run, live.out(), progress=progress)
            took = time.monotonic() - began
            for stall in stalls.values():
                stall.free.set()
    finally:
        for stall in stalls.values():
            stall.free.set()
    return result, took


def test_a_round_waits_in_units_of_what_the_others_took() -> None:
    assert exchange.remaining_wait(10.0, 5.0, 0) == 40.0
    assert exchange.remaining_wait(0.1, 5.0, 0) == 5.0
    assert [exchange.remaining_wait(10.0, 5.0, failures) for failures in (1, 2, 3)] == [20.0, 10.0, 5.0]


def test_a_member_that_stalls_is_evicted_and_notified(live: LiveFederation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline and the patience of these settings are 30 seconds: six rounds would take three minutes."""
    monkeypatch.setattr(exchange, "_FAILING", 4.0)
    stall, gone = Stall(), list[int]()
    trail = live.place.path / "kits" / "m002" / "audit.jsonl"

    def both_notified() -> bool:
        return any(note["event"] == "evicted" for note in audit_log.read(trail))

    def watch(record: Any, left: Any) -> None:
        if "evicted" in record.refused.get(2, "") and not gone:
            gone.append(record.round)
            stall.free.set()
            assert until(both_notified, 60)

    result, took = timed(live, 6, {"m002": stall}, watch)
    assert took < 90, "5 + 2.5 + 1.25 + ... seconds and what the rounds take, not 30 seconds for each of them"
    assert result.rounds == 6
    assert gone[0] in (4, 5)
    (note,) = [note for note in audit_log.read(live.place.server / "audit.jsonl") if note["event"] == "evicted"]
    assert (note["member"], "without a usable answer in" in note["reason"]) == ("m002", True)


def garbage(live: LiveFederation, payload: bytes) -> bytes:
    return b"no message"


def too_long(live: LiveFederation, payload: bytes) -> bytes:
    return resigned(
        live.place,
        "m002",
        payload,
        lambda message: replace(message, tensors={"vector": 1e6 + message.tensors["vector"]}),
    )


@pytest.mark.parametrize(("change", "why"), [(garbage, "refused: "), (too_long, "its norm exceeds")])
def test_a_member_whose_answers_are_unusable_is_evicted_and_named(
    live: LiveFederation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    change: Callable[[LiveFederation, bytes], bytes], why: str,
) -> None:  # fmt: skip
    """It answers at once, so that no round waits for it; and is asked no more after three of them."""
    monkeypatch.setattr(exchange, "_FAILING", 0.0)

    def twist(task: bytes, payload: bytes) -> bytes:
        return change(live, payload)

    run = config(3, 6, quorum=1, recipe={"name": "dp-fedavg"})
    with live.members(m002=twist):
        result = live.coordinator().run(run, live.out(), progress=federation.round_lines(run.rounds))
    assert result.rounds == 6
    lines = [line for line in capsys.readouterr().err.splitlines() if "m002: " in line]
    assert [f"m002: {why}" in line for line in lines] == [True, True, True, False]
    assert "m002: evicted: online but without a usable answer in 3 consecutive rounds" in lines[3]


@pytest.mark.soak
def test_three_of_twenty_that_stall_cost_at_most_half_the_time_again(tmp_path: Path, parent: ForkServer) -> None:
    with LiveFederation(tmp_path / "fed", 20).up(parent) as live:
        _, honest = timed(live, 20, {})
        result, stalled = timed(live, 20, {f"m{number:03d}": Stall() for number in (3, 8, 15)})
    print(f"20 members, 20 rounds: {honest:.1f} s; with 3 that stall {stalled:.1f} s")
    assert result.rounds == 20
    assert stalled <= 1.5 * honest
