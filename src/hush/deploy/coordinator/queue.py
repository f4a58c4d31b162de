"""The queue of runs at a coordinator: runs wait for each other, and survive a crash of the process that runs them.

queue/0001-NAME/run.toml      the config as it was given
queue/0001-NAME/entry.json    the options of the run
queue/0001-NAME/state.json    waiting, running, finished, failed or removed; since when, and why
queue/0001-NAME/busy.lock     locked by the process that runs it
queue/slot-1.lock             locked by a process that runs something: as many as `at_once` in federation.toml

A run that was under way when its process died is resumed first. Everything is in files, so that status and queue can be
shown while nothing runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hush.deploy.admin.folders import FederationFolder
from hush.deploy.coordinator.agreement import AGREEMENT
from hush.server.run_directory import RESULT, read_json, to_json, write_atomically
from hush.text import printable
from hush.types import HushError, RunInterrupted

State = Literal["waiting", "running", "finished", "failed", "removed"]
_OPEN: tuple[State, ...] = ("running", "waiting")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LOOK = 2.0
_PAUSES = (5.0, 30.0, 120.0, 600.0)  # seconds before an interrupted run is resumed, for each time in a row


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a queued run, as those of `hush federation run`; paths are absolute.

    Attributes:
        purpose: What the run is for.
        test: The public test set, if it is not that of the folder.
        label: The label column of CSV and Parquet files.
        classes: The number of classes, if it is given.
        sets: Overrides of config keys.
        data: The directory of public datasets, if it is given.
    """

    purpose: str = ""
    test: str | None = None
    label: str = "label"
    classes: int | None = None
    sets: tuple[str, ...] = ()
    data: str | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A queued run.

    Attributes:
        number: Its place in the order in which runs were added.
        name: The name of the run, and of its directory in `runs/`.
        folder: Its folder in the queue.
        options: Its options.
        state: What has become of it.
        reason: Why it waits or failed.
        since: When the state began, in seconds since 1970.
    """

    number: int
    name: str
    folder: Path
    options: RunOptions
    state: State
    reason: str
    since: float

    @property
    def config(self) -> Path:
        """Its config file."""
        return self.folder / "run.toml"

    def become(self, state: State, reason: str = "") -> None:
        """Record a state."""
        write_atomically(
            self.folder / "state.json",
            to_json({"state": state, "reason": printable(reason, 1000), "since": time.time()}),
        )

    def record(self) -> dict[str, Any]:
        """Return the entry for people and programs."""
        return {
            "number": self.number, "run": self.name, "state": self.state, "reason": self.reason,
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since)),
        }  # fmt: skip


def add(place: FederationFolder, config: bytes, name: str, options: RunOptions) -> Entry:
    """Add a run to the end of the queue. It gets this name, with a number if there is a run of this name already."""
    if not _NAME.fullmatch(name):
        raise HushError(
            f"run {printable(name, 80)!r}: accepted: up to 64 letters, digits, dots, dashes and underscores"
        )
    folder = _folder(place)
    folder.mkdir(exist_ok=True)
    with _locked(folder / "add.lock"):
        known = listed(place)
        name = _fresh(place, name, {each.name for each in known})
        number = max((each.number for each in known), default=0) + 1
        made, part = folder / f"{number:04d}-{name}", folder / f".{number:04d}-{name}"
        part.mkdir(mode=0o700)
        write_atomically(part / "run.toml", config)
        write_atomically(part / "entry.json", to_json(asdict(options)))
        write_atomically(part / "state.json", to_json({"state": "waiting", "reason": "", "since": time.time()}))
        part.rename(made)
    return _read(made)


def listed(place: FederationFolder) -> list[Entry]:
    """All entries, in the order in which they were added."""
    found = [_read(path) for path in _folder(place).glob("[0-9]*-*") if path.is_dir()]
    return sorted(found, key=lambda each: each.number)


def numbered(place: FederationFolder, number: int) -> Entry:
    """Return an entry by its number, or raise a `HushError`."""
    for each in listed(place):
        if each.number == number:
            return each
    raise HushError(f"queue: no run has number {number}; hush federation queue {place.path} lists them")


def remove(place: FederationFolder, number: int) -> Entry:
    """Take a run out of the queue; a run that is going on is a `HushError`."""
    entry = numbered(place, number)
    with _locked(entry.folder / "busy.lock", wait=False) as alone:
        if not alone:
            raise HushError(
                f"run {entry.name}: is going on; stop it with a file named stop in {place.runs / entry.name}"
            )
        entry.become("removed")
    return entry


def retry(place: FederationFolder, number: int) -> Entry:
    """Have a run that failed or was removed wait again; a finished one is a `HushError`."""
    entry = numbered(place, number)
    if entry.state in ("finished", *_OPEN):
        raise HushError(f"run {entry.name}: is {entry.state}; accepted: one that failed or was removed")
    entry.become("waiting")
    return entry


def work(
    place: FederationFolder, train: Callable[[Entry, bool], None], say: Callable[[str], None], *,
    ready: Callable[[Entry], str] = lambda entry: "", until_empty: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Run what is in the queue, one after the other, until the process is stopped.

    Args:
        place: The federation.
        train: Runs an entry to its end, or resumes it if the second argument says so.
        say: Called with what happens.
        ready: Says why an entry cannot begin yet, or nothing.
        until_empty: Whether to return when nothing is left.
        sleep: Waits for some seconds.
    """
    reported: dict[int, str] = {}
    failures: dict[int, int] = {}
    while True:
        with _turn(place) as entry:
            if entry is not None:
                under_way = (place.runs / entry.name / AGREEMENT).exists()
                why = "" if under_way else ready(entry)
                if not why:
                    _run(place, entry, under_way, train, say, failures)
                    continue
                if reported.get(entry.number) != why:
                    reported[entry.number] = why
                    entry.become("waiting", why)
                    say(f"run {entry.name} waits: {why}")
            elif until_empty and not [each for each in listed(place) if each.state in _OPEN]:
                return
        sleep(_pause(failures.get(entry.number, 0)) if entry is not None else _LOOK)


def _run(
    place: FederationFolder, entry: Entry, under_way: bool, train: Callable[[Entry, bool], None],
    say: Callable[[str], None], failures: dict[int, int],
) -> None:  # fmt: skip
    entry.become("running")
    say(f"run {entry.name} {'is resumed' if under_way else 'begins'}")
    out = place.runs / entry.name
    try:
        train(entry, out.exists())
    except RunInterrupted as error:
        entry.become("failed", str(error) or "stopped on request")
        say(f"run {entry.name} was stopped; hush federation queue --retry {entry.number} resumes it")
    except HushError as error:
        times = failures[entry.number] = failures.get(entry.number, 0) + 1
        if (out / AGREEMENT).exists() and not (out / RESULT).exists() and times <= len(_PAUSES):
            entry.become("waiting", f"interrupted, and resumed soon: {error}")
            say(f"run {entry.name} was interrupted, and is resumed in {_PAUSES[times - 1]:g} s: {error}")
        else:
            entry.become("failed", str(error))
            say(f"run {entry.name} failed: {error}")
    else:
        failures.pop(entry.number, None)
        entry.become("finished")
        say(f"run {entry.name} is finished")


def _pause(failures: int) -> float:
    return _PAUSES[min(failures, len(_PAUSES)) - 1] if failures else _LOOK


@contextlib.contextmanager
def _turn(place: FederationFolder) -> Iterator[Entry | None]:
    """The entry whose turn it is, locked, if fewer runs than `at_once` are going on."""
    with contextlib.ExitStack() as locks:
        for number in range(1, int(place.settings.at_once) + 1):
            if locks.enter_context(_locked(_folder(place) / f"slot-{number}.lock", wait=False)):
                break
        else:
            yield None
            return
        waiting = [each for each in listed(place) if each.state in _OPEN]
        # What was under way goes on before anything begins.
        for each in sorted(waiting, key=lambda each: (_OPEN.index(each.state), each.number)):
            if locks.enter_context(_locked(each.folder / "busy.lock", wait=False)):
                now = _read(each.folder)
                if now.state in _OPEN:
                    yield now
                    return
        yield None


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file; whether it is held, unless this waits for it. It is free when its process has died."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _fresh(place: FederationFolder, name: str, taken: set[str]) -> str:
    found, number = name, 2
    while found in taken or (place.runs / found).exists():
        found, number = f"{name}-{number}", number + 1
    return found


def _folder(place: FederationFolder) -> Path:
    return place.path / "queue"


def _read(folder: Path) -> Entry:
    number, _, name = folder.name.partition("-")
    options, state = read_json(folder / "entry.json"), read_json(folder / "state.json")
    return Entry(
        number=int(number), name=name, folder=folder, options=_options(options), state=state["state"],
        reason=str(state["reason"]), since=float(state["since"]),
    )  # fmt: skip


def _options(raw: Mapping[str, Any]) -> RunOptions:
    sets: Sequence[str] = raw.get("sets", ())
    return RunOptions(**{**raw, "sets": tuple(sets)})


def shown(place: FederationFolder) -> list[dict[str, Any]]:
    """Return the entries for people and programs, without those that were removed."""
    return [each.record() for each in listed(place) if each.state != "removed"]


def text(entry: Mapping[str, Any]) -> str:
    """Return an entry in one line."""
    why = f": {entry['reason']}" if entry["reason"] else ""
    return f"{entry['number']:4} {entry['run']:20} {entry['state']} since {entry['since']}{why}"
