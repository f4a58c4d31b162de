"""The queue: runs wait for each other, survive a crash, and say why they wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin.folders import FederationFolder, create
from hush.deploy.coordinator import queue
from hush.deploy.coordinator.agreement import AGREEMENT
from hush.deploy.coordinator.queue import Entry, RunOptions
from hush.server.run_directory import RESULT
from hush.types import HushError, RunInterrupted


def place_of(path: Path, at_once: int = 1) -> FederationFolder:
    return create(path / "fed", ["a", "b"], "localhost:1", times={"at_once": float(at_once)})


def added(place: FederationFolder, *names: str) -> list[Entry]:
    return [queue.add(place, b"rounds = 2\n", name, RunOptions(purpose=name)) for name in names]


def states(place: FederationFolder) -> dict[str, str]:
    return {each.name: each.state for each in queue.listed(place)}


class Trainer:
    """In place of a run: notes what it was asked, and ends as told."""

    def __init__(self, place: FederationFolder, **ends: list[BaseException | None]) -> None:
        self.place, self.ends, self.asked = place, ends, list[tuple[str, bool]]()

    def __call__(self, entry: Entry, resume: bool) -> None:
        self.asked.append((entry.name, resume))
        out = self.place.runs / entry.name
        out.mkdir(exist_ok=True)
        ends = self.ends.get(entry.name, [])
        if ends and (error := ends.pop(0)) is not None:
            if "under way" in str(error):
                (out / AGREEMENT).write_text("{}")
            raise error
        (out / RESULT).write_text("{}")


def worked(place: FederationFolder, trainer: Trainer, **more: Any) -> list[float]:
    slept: list[float] = []
    queue.work(place, trainer, lambda words: None, until_empty=True, sleep=slept.append, **more)
    return slept


def test_runs_go_in_the_order_in_which_they_were_added_and_a_name_is_used_once(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    assert [each.name for each in added(place, "one", "two", "one")] == ["one", "two", "one-2"]
    trainer = Trainer(place)
    worked(place, trainer)
    assert trainer.asked == [("one", False), ("two", False), ("one-2", False)]
    assert states(place) == {"one": "finished", "two": "finished", "one-2": "finished"}
    assert queue.listed(place)[0].options.purpose == "one"


def test_what_was_interrupted_is_resumed_first_and_what_fails_lets_others_go_on(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    added(place, "one", "two", "three")
    trainer = Trainer(place, one=[HushError("under way: the disk is full")] * 2, two=[HushError("nobody takes part")])
    slept = worked(place, trainer)
    assert trainer.asked == [("one", False), ("one", True), ("one", True), ("two", False), ("three", False)]
    assert states(place) == {"one": "finished", "two": "failed", "three": "finished"}
    assert queue.numbered(place, 2).reason == "nobody takes part"
    assert slept == []
    queue.retry(place, 2)
    with pytest.raises(HushError, match="is waiting; accepted: one that failed"):
        queue.retry(place, 2)
    worked(place, trainer)
    assert states(place)["two"] == "finished"
    with pytest.raises(HushError, match="no run has number 9"):
        queue.retry(place, 9)


def test_a_run_that_never_succeeds_is_given_up_and_one_that_is_stopped_stays_stopped(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    added(place, "one", "two")
    trainer = Trainer(place, one=[HushError("under way: broken")] * 99, two=[RunInterrupted(1, True)])
    worked(place, trainer)
    assert states(place) == {"one": "failed", "two": "failed"}
    assert len(trainer.asked) == 1 + 4 + 1


def test_a_run_waits_for_its_members_and_says_so(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    added(place, "one")
    answers, said = ["1 of 2 members are online", "1 of 2 members are online", ""], list[str]()
    seen: list[str] = []

    def sleep(seconds: float) -> None:
        seen.append(queue.shown(place)[0]["reason"])

    queue.work(place, Trainer(place), said.append, ready=lambda entry: answers.pop(0), until_empty=True, sleep=sleep)
    assert seen == ["1 of 2 members are online"] * 2
    assert said == ["run one waits: 1 of 2 members are online", "run one begins", "run one is finished"]


def test_a_removed_run_is_not_run_and_a_running_one_is_not_removed(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    added(place, "one", "two")
    queue.remove(place, 1)

    class Removing(Trainer):
        def __call__(self, entry: Entry, resume: bool) -> None:
            with pytest.raises(HushError, match="is going on"):
                queue.remove(place, entry.number)
            super().__call__(entry, resume)

    trainer = Removing(place)
    worked(place, trainer)
    assert trainer.asked == [("two", False)]
    assert [each["run"] for each in queue.shown(place)] == ["two"]


WORKER = """
import sys, time
from pathlib import Path
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.coordinator import queue
from hush.deploy.coordinator.agreement import AGREEMENT
place = FederationFolder(Path(sys.argv[1]))
def train(entry, resume):
    out = place.runs / entry.name
    out.mkdir(exist_ok=True)
    (out / AGREEMENT).write_text("{}")
    print(entry.name, resume, flush=True)
    if not resume:
        time.sleep(60)
queue.work(place, train, lambda words: None, until_empty=True)
"""


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_processes_share_the_queue_and_a_killed_ones_run_is_resumed(tmp_path: Path, at_once: int) -> None:
    place = place_of(tmp_path, at_once)
    added(place, "one", "two")

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", WORKER, str(place.path)], stdout=subprocess.PIPE, text=True)

    first = start()
    assert first.stdout.readline() == "one False\n"
    with start() as second:
        if at_once == 2:
            assert second.stdout.readline() == "two False\n", "as many runs as at_once go on at the same time"
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        first.stdout.close()
        if at_once == 1:
            assert second.stdout.readline() == "one True\n", "the second waited for the first, and resumes its run"
            assert second.stdout.readline() == "two False\n"
        second.kill()
    with start() as third:
        rest, _ = third.communicate(timeout=60)
    assert rest.splitlines() == (["two True"] if at_once == 1 else ["one True", "two True"])
    assert states(place) == {"one": "finished", "two": "finished"}
