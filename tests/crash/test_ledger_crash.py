"""Clients that die at any time, and clients that share a ledger."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hush.privacy.accounting import api
from hush.privacy.ledger import Ledger, ledger
from hush.privacy.ledger.book import BURNED
from hush.seeds import rng
from tests.support.ledger_checks import JobServer, check, check_finished, fresh
from tests.support.ledger_jobs import COSTS, FAILED, POLICY

ROUNDS = 1000  # more than the budget affords
STEPS = ("reserve", "seal", "sent")
POINTS = [
    *(f"{step} {point}" for step in STEPS for point in ("inserted", "committed", "anchored", "witnessed")),
    *("round begins", "trained", "sealed", "released"),
]


@pytest.fixture(scope="module")
def job_server() -> Iterator[JobServer]:
    made = JobServer()
    yield made
    made.close()


def test_a_client_needs_no_torch(job_server: JobServer) -> None:
    assert job_server.hello == {"torch": False}


def kill_at_random(job_server: JobServer, directory: Path, kills: int, seed: int) -> Counter[int]:
    draw, ledgers, ended = rng(seed, "kills"), itertools.count(), Counter[int]()
    path, witness = fresh(directory / str(next(ledgers)))
    burned = 0
    while ended[-9] < kills:
        pid = job_server.start("client", path=path, witness=witness, rounds=ROUNDS)
        time.sleep(float(draw.uniform(0.0, 0.1)))
        status = job_server.kill(pid)
        ended[status] += 1
        book, _ = check(path, witness)
        burned += sum(charge.state == BURNED for charge in book.charges.values())
        if status == 0:
            check_finished(path, witness)
            path, witness = fresh(directory / str(next(ledgers)))
    assert job_server.run("client", path=path, witness=witness, rounds=ROUNDS) == 0
    check_finished(path, witness)
    assert set(ended) <= {-9, 0}
    assert burned, "no client was killed in training"
    return ended


def test_killed_at_random_times(job_server: JobServer, tmp_path: Path) -> None:
    assert kill_at_random(job_server, tmp_path, 50, 1)[-9] == 50


@pytest.mark.soak
def test_killed_a_thousand_times(job_server: JobServer, tmp_path: Path) -> None:
    assert kill_at_random(job_server, tmp_path, 1000, 2)[-9] == 1000


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kills", [9, pytest.param(20, marks=pytest.mark.soak)])
def test_killed_at_a_point_of_the_protocol(job_server: JobServer, tmp_path: Path, point: str, kills: int) -> None:
    """Up to eight times in a row with the same ledger."""
    draw = rng(3, point)
    path, witness = fresh(tmp_path / "0")
    for number in range(1, kills + 1):
        nth = int(draw.integers(1, 3))
        status = job_server.run("client", path=path, witness=witness, rounds=ROUNDS, point=point, nth=nth)
        assert status == FAILED, "the failpoint was not reached"
        check(path, witness)
        if number % 8 == 0:
            path, witness = fresh(tmp_path / str(number))
    assert job_server.run("client", path=path, witness=witness, rounds=ROUNDS) == 0
    check_finished(path, witness)


@pytest.mark.parametrize("point", ["seal stored", "seal inserted", "seal committed", "sent committed", "released"])
def test_killed_with_a_payload_in_a_file(job_server: JobServer, tmp_path: Path, point: str) -> None:
    """Large answers are in files beside the ledger, which are neither lost nor left behind."""
    path, witness = fresh(tmp_path / "0")
    job: dict[str, Any] = {"path": path, "witness": witness, "rounds": 3, "size": 3 << 20}
    for _ in range(2):
        assert job_server.run("client", **job, point=point) == FAILED
        check(path, witness)
    assert job_server.run("client", **job) == 0
    assert check(path, witness)[1] == 3
    assert Path(path).stat().st_size < 1 << 20, "the ledger itself does not grow"
    assert not list((tmp_path / "0").rglob("*.sealed/*")), "the server has acknowledged all of them"


def test_killed_while_it_burns_and_resends(job_server: JobServer, tmp_path: Path) -> None:
    for number, point in enumerate(("open inserted", "open committed", "open anchored", "resent")):
        path, witness = fresh(tmp_path / str(number))
        left_behind = "sealed" if point == "resent" else "trained"
        assert job_server.run("client", path=path, witness=witness, rounds=3, point=left_behind) == FAILED
        for _ in range(3 if point in ("open inserted", "resent") else 1):
            assert job_server.run("client", path=path, witness=witness, rounds=3, point=point) == FAILED
            check(path, witness)
        assert job_server.run("client", path=path, witness=witness, rounds=3) == 0
        book, released = check(path, witness)
        assert released == 3
        assert sum(charge.state == BURNED for charge in book.charges.values()) == (point != "resent")


def test_the_check_catches_a_client_that_sends_first(job_server: JobServer, tmp_path: Path) -> None:
    path, witness = fresh(tmp_path / "0")
    assert job_server.run("hasty", path=path, witness=witness, rounds=2) == 0
    with pytest.raises(AssertionError, match=r"other bytes|without a charge"):
        check(path, witness)


def test_the_check_catches_a_client_that_trains_again(job_server: JobServer, tmp_path: Path) -> None:
    path, witness = fresh(tmp_path / "0")
    assert job_server.run("client", path=path, witness=witness, rounds=3, point="released", nth=2) == FAILED
    check(path, witness)
    assert job_server.run("forgetful", path=path, witness=witness, rounds=3) == 0
    with pytest.raises(AssertionError, match="other bytes"):
        check(path, witness)


def spend_together(job_server: JobServer, directory: Path, processes: int, rounds: int, noise: float) -> int:
    """How many charges processes make that spend one ledger at the same time, each as many rounds as it is let."""
    path, _ = fresh(directory / "0")
    outs = [directory / f"{number}.json" for number in range(processes)]
    started = [
        job_server.start("spender", path=path, run=f"run {number}", rounds=rounds, noise=noise, out=str(out))
        for number, out in enumerate(outs)
    ]
    assert [job_server.wait(pid) for pid in started] == [0] * processes
    heads = [head for out in outs for head in json.loads(out.read_text())]
    rows, book = ledger.inspect(path)
    assert len(heads) == len(set(heads)) == len(book.charges)
    assert set(heads) == {charge.row.head for charge in book.charges.values()}
    order = [row.run for row in rows[1 : len(heads) + 1]]
    assert sum(run != after for run, after in itertools.pairwise(order)) > processes, "they did not run together"
    return len(heads)


def affordable(noise: float) -> int:
    # A hundredth of delta is reserved for later schedules of another kind.
    return api.affordable_steps(POLICY.epsilon, 0.99 * POLICY.delta, 1.0, noise)


def test_processes_share_a_ledger(job_server: JobServer, tmp_path: Path) -> None:
    assert 3 * 100 < affordable(140.0) < 4 * 100, "some are to be refused"
    assert spend_together(job_server, tmp_path, 4, 100, 140.0) == affordable(140.0)


@pytest.mark.soak
def test_many_processes_share_a_ledger(job_server: JobServer, tmp_path: Path) -> None:
    assert 15 * 1000 < affordable(875.0) < 16 * 1000, "some are to be refused"
    assert spend_together(job_server, tmp_path, 16, 1000, 875.0) == affordable(875.0)


def test_what_another_process_trains_is_not_burned(job_server: JobServer, tmp_path: Path) -> None:
    path, witness = fresh(tmp_path / "0")
    with Ledger.open(path) as first:
        receipt = first.reserve(COSTS, "mine", 1)
        assert job_server.run("client", path=path, witness=witness, rounds=2) == 0
        first.seal(receipt, b"still mine")
        first.sent(receipt)
        assert first.rounds == 3
