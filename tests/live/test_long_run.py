"""A long run on its live page: how late rounds are shown, and how much memory page and server take."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.live_runs import add_round, begun, chromium

pytestmark = pytest.mark.soak
ROUNDS = 2000
_LATE = 1.0
_MEMORY = 100e6


def test_rounds_appear_within_a_second_and_memory_stays_small(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", ROUNDS)
    command = [sys.executable, "-c", "from hush.cli.main import main; main()", "watch", str(run), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        found = re.search(r"http://\S+", server.stderr.readline())
        assert found is not None
        written: dict[int, float] = {}

        def train() -> None:
            for number in range(1, ROUNDS + 1):
                add_round(run, number)
                written[number] = time.time()
                # The first and last rounds are slow enough to be seen one by one; those between come quickly.
                time.sleep(0.7 if number <= 15 or number > ROUNDS - 15 else 0.03)

        with chromium() as browser:
            page = browser.new_page()
            page.goto(found[0])
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            thread = threading.Thread(target=train)
            thread.start()
            seen: dict[int, float] = {}
            heaps: list[float] = []
            while len(seen) == 0 or max(seen) < ROUNDS:
                shown = re.search(r"(\d+) of", page.locator("#tiles .figure").first.text_content() or "")
                if shown is not None and int(shown[1]) > 0:
                    seen.setdefault(int(shown[1]), time.time())
                    metrics = {
                        each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]
                    }
                    heaps.append(metrics["JSHeapUsedSize"])
                time.sleep(0.02)
            thread.join()
            session.send("HeapProfiler.collectGarbage")
            metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        slow = [number for number in seen if number <= 15 or number > ROUNDS - 15]
        late = {number: seen[number] - written[number] for number in slow if number in written}
        memory = _memory(server.pid)
        heap, nodes = metrics["JSHeapUsedSize"] / 1e6, metrics["Nodes"]
        print(
            f"{len(slow)} rounds, latest {max(late.values()):.2f} s; heap at most {max(heaps) / 1e6:.1f} MB, at the end"
        )
        print(f"{heap:.1f} MB with {nodes:.0f} nodes; server {memory / 1e6:.1f} MB")
        assert len(late) >= 25
        assert max(late.values()) < _LATE
        assert max(heaps) < _MEMORY and memory < _MEMORY
    finally:
        server.send_signal(signal.SIGINT)
        _, _ = server.communicate(timeout=20)
    assert server.returncode in (0, 130)


def _memory(pid: int) -> float:
    """The resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
