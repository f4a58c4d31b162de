"""A fork server for `hush` commands: a process with all imports done forks real processes, which start at once.

Each has a process number, a log, a ledger and sockets of its own, and dies of `kill -9` like any other. What is saved
is two seconds of imports for each, which would be most of the time of a test that starts hundreds. The server has one
thread, so that it can be forked safely.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.paths import environment, helper


class Child:
    """A forked process."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self.log = pid, log
        self._from = log.stat().st_size if log.exists() else 0

    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """As a crash would, at whatever it is doing."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        while self.alive():
            time.sleep(0.005)

    def interrupt(self) -> None:
        """As Ctrl-C would."""
        os.kill(self.pid, signal.SIGINT)

    def status(self, seconds: float = 120.0) -> int:
        """Its exit status, once it has ended by itself; the negative number of a signal that ended it."""
        self.ended(seconds)
        return int(_status_file(self.log, self.pid).read_text())

    def said(self) -> str:
        return self.log.read_bytes()[self._from :].decode(errors="replace") if self.log.exists() else ""

    def wait_for(self, words: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.said():
            assert self.alive(), self.said()[-2000:]
            assert time.monotonic() < deadline, self.said()[-2000:]
            time.sleep(0.02)

    def ended(self, seconds: float) -> None:
        """Wait until it is gone by itself."""
        deadline = time.monotonic() + seconds
        while self.alive():
            assert time.monotonic() < deadline, self.said()[-2000:]
            time.sleep(0.005)

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes held now, or at most so far (`VmHWM`)."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{what}:"))


class ForkServer:
    """The parent, and all that it has started."""

    def __init__(self) -> None:
        # A group of its own: what interrupts the tests does not interrupt it, its closed input does.
        self._parent = subprocess.Popen(
            helper("fork_server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(PYTHONUNBUFFERED="1"), start_new_session=True,
        )  # fmt: skip
        self.children: list[Child] = []

    def start(
        self, arguments: Sequence[object], log: Path, *, namespace: str = "", cwd: Path | None = None,
        errors: Path | None = None, environment: Mapping[str, str | None] | None = None,
    ) -> Child:  # fmt: skip
        """Run a `hush` command, in a network namespace, a folder, or with changes of the environment, if named.

        What it says goes to the log; its standard error to a file of its own, if one is named.
        """
        words = [str(word) for word in arguments]
        return self._ordered(log, arguments=words, namespace=namespace, cwd=str(cwd or ""), errors=str(errors or ""),
                             environment=dict(environment or {}))  # fmt: skip

    def call(self, module: str, function: str, log: Path, *given: object) -> Child:
        """Call a function of a module with texts in place of a command."""
        return self._ordered(log, module=module, function=function, arguments=[str(each) for each in given])

    def command(self, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        """A command that has ended, without the public data files, as a person without them would run it."""
        with tempfile.TemporaryDirectory() as folder:
            out, errors = Path(folder) / "out", Path(folder) / "errors"
            child = self.start(arguments, out, cwd=cwd, errors=errors, environment={"HUSH_DATA": None})
            status = child.status(300)
            self.children.remove(child)
            return subprocess.CompletedProcess(
                [str(word) for word in arguments], status, out.read_text(), errors.read_text()
            )

    def _ordered(self, log: Path, **order: Any) -> Child:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        child = Child(0, log)
        self._parent.stdin.write(json.dumps({"log": str(log), **order}) + "\n")
        self._parent.stdin.flush()
        child.pid = int(self._parent.stdout.readline())
        self.children.append(child)
        return child

    @contextlib.contextmanager
    def tidy(self) -> Iterator[ForkServer]:
        """Leave nothing running that is started within, however it ends."""
        before = list(self.children)
        try:
            yield self
        finally:
            for child in self.children:
                if child not in before:
                    child.kill()
            self.children = before

    def close(self) -> None:
        """Stop all that it has started, and the server."""
        for child in self.children:
            child.kill()
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(10)
        self._parent.stdout.close()


@cache
def fork_server() -> ForkServer:
    """The one server of this process; its start takes seconds."""
    made = ForkServer()
    atexit.register(made.close)
    return made


def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A `hush` command in a process of its own that has its imports already."""
    return fork_server().command(*arguments, cwd=cwd)


def _status_file(log: Path, pid: int) -> Path:
    return log.with_name(f"{log.name}.{pid}.status")


def _serve() -> None:
    """Fork a process for each line of the input, until it ends."""
    for name in (
        "auditing.run",
        "cli.main",
        "deploy.coordinator.run",
        "deploy.admin.localhost",
        "deploy.member.service",
        "deploy.transport.flower",
        "report",
        "simulation",
    ):
        with contextlib.suppress(ImportError):  # without the deploy extra
            importlib.import_module(f"hush.{name}")
    import hush

    # What is imported only when it is needed: accountants, models, recipes, reports.
    config = {"rounds": 1, "data": {"name": "digits", "clients": 2}, "recipe": {"name": "robust-hdp"}}
    with tempfile.TemporaryDirectory() as folder:
        hush.simulate(config, out=Path(folder) / "run")
    logs: dict[int, Path] = {}

    def note(*_: object) -> None:
        """Write down how children ended, and only then let them be gone."""
        while logs and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            _status_file(logs.pop(ended.si_pid), ended.si_pid).write_text(str(status))
            os.waitpid(ended.si_pid, 0)

    signal.signal(signal.SIGCHLD, note)
    for line in sys.stdin:
        order = json.loads(line)
        # Until its log is known here, no child may be noted.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = _run(order)
            finally:
                os._exit(status)
        logs[pid] = Path(order["log"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _run(order: dict[str, Any]) -> int:
    """Do in a child what was ordered, and return its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    # A shell's background jobs ignore the signal, and so would what the tests start when they are one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order.get("namespace"):
        _enter(order["namespace"])
    for path, descriptors in ((order["log"], (1, 2)), (order.get("errors"), (2,))):
        if path:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for descriptor in descriptors:
                os.dup2(file, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, value in {"HUSH_PARENT": str(os.getppid()), **order.get("environment", {})}.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    if order.get("cwd"):
        os.chdir(order["cwd"])
    try:
        if "function" in order:
            getattr(importlib.import_module(order["module"]), order["function"])(*order["arguments"])
            return 0
        from hush.cli.main import main

        sys.argv = ["hush", *order["arguments"]]
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _enter(namespace: str) -> None:
    import ctypes

    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    new_network = 0x40000000
    assert ctypes.CDLL(None, use_errno=True).setns(descriptor, new_network) == 0


if __name__ == "__main__":
    _serve()
