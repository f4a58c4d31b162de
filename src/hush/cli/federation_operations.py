"""Operations of a federation: find what is wrong, back up and restore, and run what is in the queue."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hush.cli.federation import AsJson, Folder, LogFile, LogLevel, _say, need_flower, start_log, train
from hush.cli.federation_member import member_app
from hush.text import printable
from hush.types import HushError, NothingTrainedError, RunInterrupted

if TYPE_CHECKING:
    from hush.deploy.coordinator.queue import Entry

_LONGEST = 4000
operations_app = member_app  # with the commands below
Either = Annotated[Path, typer.Argument(metavar="DIR", help="The federation directory, or a member's kit.")]


@operations_app.command()
def doctor(
    directory: Either,
    data: Annotated[Path | None, typer.Option(help="At a member: its data, to be read as well.")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="At a member: policy file; default: policy.toml in the kit.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Without the other side and running processes, as before the first start.")
    ] = False,
    alive: Annotated[
        bool, typer.Option("--alive", help="Only whether serve, or join, is running here: for health checks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check settings, versions, certificates, clocks, disk, permissions, ledger and connection, a line each.

    Works at the coordinator and at a member. Exit status 1 if something has to be done.
    """
    if alive:
        _check_alive(directory)
        return
    need_flower()
    from dataclasses import asdict

    from hush.deploy.coordinator import doctor as of_coordinator
    from hush.deploy.member import doctor as of_member

    if (directory / "federation.toml").exists():
        found = list(of_coordinator.examine(directory, offline=offline))
    else:
        found = list(of_member.examine(directory, policy, data, offline=offline))
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=2))
    else:
        for each in found:
            print(printable(each.line, _LONGEST))
    if any(each.level == "error" for each in found):
        raise typer.Exit(1)


def _check_alive(directory: Path) -> None:
    """Say whether the process of a folder is alive, with status 1 if it is not; without anything that takes long."""
    from hush.deploy.shared import presence

    coordinator = (directory / "federation.toml").exists()
    found = presence.read(directory / "server" if coordinator else directory)
    what = "serve" if coordinator else "join"
    if not presence.alive(found):
        print(f"error    process: hush federation {what} is not running, or hangs")
        raise typer.Exit(1)
    print(f"ok       process: hush federation {what} is running, heard {found['age']:.0f} s ago")


@operations_app.command()
def backup(
    directory: Either,
    out: Annotated[Path | None, typer.Option(help="The file to write; default: NAME-DATE.tar.gz here.")] = None,
) -> None:
    """Write everything but the rows to one file, also while processes run. It contains private keys."""
    need_flower()
    from hush.deploy.admin.backup import write

    default = Path(f"{directory.resolve().name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.tar.gz")
    found = write(directory, out or default)
    print(
        printable(
            f"{out or default}: {found.kind} {found.name}, {found.files} files; it contains private keys", _LONGEST
        )
    )


@operations_app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
) -> None:
    """Restore a backup into a new directory, and say what has to be done next."""
    need_flower()
    from hush.deploy.admin import backup as backups

    found = backups.restore(file, directory)
    print(printable(f"{directory}: {found.kind} {found.name}, {found.files} files of {found.time}", _LONGEST))
    for line in backups.advice(found, directory):
        print(printable(line, _LONGEST))


@operations_app.command()
def queue(
    directory: Folder,
    remove: Annotated[int | None, typer.Option(metavar="NUMBER", help="Take this run out of the queue.")] = None,
    retry: Annotated[int | None, typer.Option(metavar="NUMBER", help="Have a run that failed wait again.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the queue of runs, which hush federation run --queue adds to and hush federation work runs."""
    need_flower()
    from hush.deploy.admin.folders import FederationFolder
    from hush.deploy.coordinator import queue as waiting

    place = FederationFolder(directory)
    if remove is not None:
        waiting.remove(place, remove)
    if retry is not None:
        waiting.retry(place, retry)
    found = waiting.shown(place)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for each in found:
        print(printable(waiting.text(each), _LONGEST))
    if not found:
        print(printable(f"the queue is empty; hush federation run {directory} FILE.toml --queue adds a run", _LONGEST))


@operations_app.command()
def work(
    directory: Folder,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Exit when nothing is left in the queue.")] = False,
    log_file: LogFile = None,
    log_level: LogLevel = "info",
) -> None:
    """Run what is in the queue, one after the other, until stopped; runs that a crash interrupted are resumed first."""
    need_flower()
    start_log("work", log_file, log_level)
    from hush.deploy.admin.folders import FederationFolder
    from hush.deploy.admin.processes import follow_parent
    from hush.deploy.coordinator import queue as waiting

    follow_parent()
    place = FederationFolder(directory)

    def one(entry: Entry, resume: bool) -> None:
        result = train(
            place, entry.config, place.runs / entry.name, entry.options, resume=resume, command="hush federation work"
        )
        if result.stopped:
            raise RunInterrupted(result.rounds, resumable=True)
        if not result.trained:
            raise NothingTrainedError(result.ended, result)

    waiting.work(place, one, _say, ready=lambda entry: _missing(place, entry), until_empty=until_empty)


def _missing(place: Any, entry: Entry) -> str:
    """Why a run cannot begin now: the server is down, or too few members are online."""
    from hush.config import load
    from hush.deploy.coordinator.status import federation_status

    try:
        wanted = max(load(entry.config, entry.options.sets).quorum, 1)
    except HushError:
        return ""  # the run will say it
    found = federation_status(place)
    if not found["up"]:
        return f"the SuperLink is down: {found['fault']}"
    online = [name for name, state in found["members"].items() if state == "online"]
    return "" if len(online) >= wanted else f"{len(online)} of {wanted} members are online"
