"""A fork server for `hush` commands: a process with all imports done forks real processes, which start at once.

Each has a process number, a log, a ledger and sockets of its own, and dies of `kill -9` like any other. What is saved
is two seconds of imports for each, which would be most of the time of a test that starts hundreds.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.paths import environment, helper


class Child:
    """A forked `hush` command."""

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
            time.sleep(0.02)

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

    def start(self, arguments: Sequence[object], log: Path, namespace: str = "", witness: str = "") -> Child:
        """Run a `hush` command, in a network namespace, or with a witness of ledgers, if one is named."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        known = Child(0, log)
        order = {"arguments": [str(word) for word in arguments], "log": str(log), "namespace": namespace}
        order["witness"] = witness
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()
        known.pid = int(self._parent.stdout.readline())
        self.children.append(known)
        return known

    @contextlib.contextmanager
    def tidy(self) -> Iterator[ForkServer]:
        """Leave no command running, however it ends."""
        try:
            yield self
        finally:
            for child in self.children:
                child.kill()
            self.children = []

    def close(self) -> None:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(10)
        self._parent.stdout.close()


@contextlib.contextmanager
def fork_server() -> Iterator[ForkServer]:
    held = ForkServer()
    try:
        with held.tidy():
            yield held
    finally:
        held.close()


def _serve() -> None:
    """Fork a command for each line of the input, until it ends."""
    for name in (
        "deploy.coordinator.run",
        "deploy.admin.localhost",
        "deploy.member.service",
        "deploy.transport.flower",
        "report",
    ):
        importlib.import_module(f"hush.{name}")
    from hush.cli.main import main
    from hush.config import parse
    from hush.engines.setup import prepare

    # What is imported only when it is needed: accountants, models, recipes.
    prepare(parse({"rounds": 2, "data": {"name": "digits", "clients": 2}, "recipe": {"name": "robust-hdp"}}))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if order["namespace"]:
                _enter(order["namespace"])
            log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ["HUSH_PARENT"] = str(os.getppid())
            os.environ["HUSH_WITNESS"] = order["witness"] or os.environ.get("HUSH_WITNESS", "")
            sys.argv = ["hush", *order["arguments"]]
            status = 1
            try:
                main()
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _enter(namespace: str) -> None:
    import ctypes

    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    new_network = 0x40000000
    assert ctypes.CDLL(None, use_errno=True).setns(descriptor, new_network) == 0


if __name__ == "__main__":
    _serve()
