"""Runs that die during enrolment tell the server one answer on one charge, however often they are resumed."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from hush.privacy.ledger import ledger
from hush.privacy.ledger.book import BURNED, READY, SENT, Charge
from hush.privacy.schedule import ENROLMENT
from tests.support.enrolment_jobs import CLIENTS
from tests.support.fork_server import ForkServer
from tests.support.ledger_jobs import FAILED

POINTS = [
    *(f"{step} {point}" for step in ("reserve", "seal") for point in ("inserted", "committed", "witnessed")),
    "released",
    "reserve committed in round 1",
    "sent anchored",
]


JOBS = "tests.support.enrolment_jobs"


def charges(directory: Path, client: int) -> list[Charge]:
    _, book = ledger.inspect(directory / "books" / f"client-{client}.ledger")
    return [charge for charge in book.charges.values() if charge.row.round == ENROLMENT]


def answers_released(directory: Path) -> list[int]:
    """How many different answers each client has released: at most one, on a charge; other charges are burned."""
    numbers = []
    for client in range(CLIENTS):
        released = directory / f"released-{client}"
        answers = set(released.read_text().splitlines()) if released.exists() else set()
        found = charges(directory, client)
        assert len(answers) <= 1, "several answers on one charge"
        assert all(charge.state == BURNED for charge in found[:-1])
        assert not answers or found[-1].state in (READY, SENT), "released without a seal"
        numbers.append(len(answers))
    return numbers


def kill(parent: ForkServer, directory: Path, point: str, times: int) -> list[int]:
    """Kill a run `times` times, each time resumed beside a process that holds the ledgers; then let it end."""
    nth, at = (CLIENTS + 1, point.removesuffix(" in round 1")) if "round 1" in point else (1, point)
    directory.mkdir()
    log, holder = directory / "log", None
    with parent.tidy() as fork_server:
        for number in range(times):
            passed = 1 + number % 2 if nth == 1 else nth
            run = fork_server.call(JOBS, "enrolment", log, directory, at, passed)
            status = run.status()
            released = answers_released(directory)
            if status == 0:
                return released
            assert status == FAILED, f"the failpoint was not reached: {run.said()}"
            if holder is None:
                holder = fork_server.call(JOBS, "holder", log, directory)
                while not (directory / "opened").exists():
                    time.sleep(0.005)
        assert fork_server.call(JOBS, "enrolment", log, directory).status() == 0
        return answers_released(directory)


@pytest.mark.parametrize("point", POINTS)
def test_killed_during_enrolment(parent: ForkServer, tmp_path: Path, point: str) -> None:
    assert kill(parent, tmp_path / "0", point, 2) == [1] * CLIENTS


@pytest.mark.soak
@pytest.mark.parametrize("point", POINTS)
def test_killed_twenty_times_during_enrolment(parent: ForkServer, tmp_path: Path, point: str) -> None:
    for number, times in zip(itertools.count(), (1, 2, 3, 4, 10), strict=False):
        assert kill(parent, tmp_path / str(number), point, times) == [1] * CLIENTS
