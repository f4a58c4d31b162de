"""Processes of a federation on this machine: started with a log, waited for, and always stopped in the end."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hush.types import HushError

_PARENT = "HUSH_PARENT"
_PROGRAM = "from hush.cli.main import main; main()"


class Program:
    """A running `hush` command."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.arguments, self.log = list(arguments), log
        environment = {**os.environ, _PARENT: str(os.getpid()), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self._from = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=environment,
            )  # fmt: skip

    def said(self) -> str:
        """Return its output since it was started."""
        return self.log.read_bytes()[self._from :].decode("utf-8", errors="replace")

    def wait_for(self, words: str, seconds: float) -> None:
        """Wait until its output contains these words, or raise a `HushError` with its output if it exits before."""
        deadline = time.monotonic() + seconds
        while words not in self.said():
            if self.process.poll() is not None or time.monotonic() > deadline:
                lines = [line for line in self.said().splitlines() if line.strip()]
                ours = [line for line in lines if line.startswith("hush: error: ")]
                last = (ours or lines or ["nothing"])[-1].removeprefix("hush: error: ")
                raise HushError(f"hush {' '.join(self.arguments[:2])} did not start: {last[:400]}")
            time.sleep(0.05)

    def stop(self, seconds: float = 5.0) -> None:
        """Terminate it, and kill it if it does not exit."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """Kill it immediately, as a crash would."""
        self.process.kill()
        self.process.wait()

    def processor_seconds(self) -> float:
        """Return the seconds that it has used of a processor, or 0 if it has exited."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def memory(self) -> int:
        """Return its memory usage in bytes, or 0 if it has exited."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0


@contextlib.contextmanager
def stopping(programs: list[Program]) -> Iterator[list[Program]]:
    """Stop all programs of a list on exit, in reverse order."""
    try:
        yield programs
    finally:
        for program in reversed(programs):
            if program.process.poll() is None:
                program.process.terminate()
        for program in reversed(programs):
            program.stop()


def follow_parent() -> None:
    """Exit this process when its parent process exits, if it was started with one."""
    parent = os.environ.get(_PARENT, "")
    if not parent.isdigit():
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """Raise a `HushError` if this process cannot listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise HushError(
                f"{host}:{port}: cannot listen on this address: {error.strerror}; choose another port"
            ) from None
