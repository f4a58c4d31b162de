"""Each event is read once, also from a log that is rotated, cut short, or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from hush.deploy.admin import audit_log
from hush.deploy.admin.audit_log import AuditLog
from hush.deploy.dashboard.event_trail import EventTrail


def numbers(trail: EventTrail) -> list[int]:
    return [event["number"] for event in trail.news()]


def test_events_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    trail, log = EventTrail(path), AuditLog(path)
    assert numbers(trail) == []
    log.note("charged", number=1)
    log.note("charged", number=2)
    assert numbers(trail) == [1, 2]
    with path.open("a") as file:
        file.write('{"event": "charged", "num')
    assert numbers(trail) == []
    with path.open("a") as file:
        file.write('ber": 3}\nno json\n[]\n{"event": 7}\n')
    assert numbers(trail) == [3]
    assert numbers(trail) == []


@pytest.mark.parametrize("between", [1, 3, 7])
def test_no_event_is_missed_when_a_log_is_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: int
) -> None:
    """A log of two lines each, looked at after so many lines."""
    monkeypatch.setattr(audit_log, "LONGEST", 150)
    path = tmp_path / "audit.jsonl"
    trail, log, seen = EventTrail(path), AuditLog(path), list[int]()
    for number in range(40):
        log.note("charged", number=number)
        if number % between == 0:
            seen += numbers(trail)
    log.note("charged", number=40)
    assert [*seen, *numbers(trail)] == list(range(41))


def test_at_first_the_log_before_the_current_one_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number, file in ((1, audit_log.older(path, 2)), (2, audit_log.older(path, 1)), (3, path)):
        AuditLog(file).note("charged", number=number)
    assert numbers(EventTrail(path)) == [2, 3]
