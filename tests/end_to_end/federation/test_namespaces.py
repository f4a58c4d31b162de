"""A member behind a network of its own: it joins over a wire that can be cut, mended, and made narrow.

Needs the right to make network namespaces; elsewhere it skips, and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin import audit_log, localhost
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.coordinator.exchange import LEFT, SILENT
from hush.privacy.ledger.statement import describe, export
from tests.support.fork_server import ForkServer
from tests.support.live_federation import CLASSES, config, until

TIMES = {"deadline": 60.0, "gather": 60.0}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Wire:
    """A pair of devices, one of them in a namespace."""

    namespace: str
    near: str
    far: str
    host: str

    def cut(self) -> None:
        assert run("ip", "-n", self.namespace, "link", "set", self.far, "down").returncode == 0

    def mend(self) -> None:
        assert run("ip", "-n", self.namespace, "link", "set", self.far, "up").returncode == 0

    def narrow(self) -> str:
        """Make it slow, and have it lose packets; how, in words, or nothing if the kernel cannot."""
        for kind in ("netem delay 40ms 10ms loss 2%", "tbf rate 200kbit burst 2kb latency 10ms"):
            near = run("tc", "qdisc", "add", "dev", self.near, "root", *kind.split())
            far = run("tc", "-n", self.namespace, "qdisc", "add", "dev", self.far, "root", *kind.split())
            if near.returncode == far.returncode == 0:
                return kind
        return ""

    def dropped(self) -> int:
        """How many packets were lost on the way out, at either end."""
        printed = run("tc", "-s", "qdisc", "show", "dev", self.near).stdout
        printed += run("tc", "-n", self.namespace, "-s", "qdisc", "show", "dev", self.far).stdout
        return sum(int(part.split(",")[0]) for part in printed.split("dropped ")[1:])


@pytest.fixture
def link() -> Iterator[Wire]:
    if shutil.which("ip") is None:
        pytest.skip("needs ip (iproute2)")
    number = os.getpid() % 60_000
    made = Wire(f"hush{number}", f"hn{number}", f"hf{number}", f"10.{77 + number // 250}.{number % 250}.1")
    steps = [
        f"ip netns add {made.namespace}",
        f"ip link add {made.near} type veth peer name {made.far} netns {made.namespace}",
        f"ip addr add {made.host}/30 dev {made.near}",
        f"ip link set {made.near} up",
        f"ip -n {made.namespace} addr add {made.host[:-1]}2/30 dev {made.far}",
        f"ip -n {made.namespace} link set {made.far} up",
    ]
    try:
        for step in steps:
            done = run(*step.split())
            if done.returncode:
                pytest.skip(f"this machine allows no network namespaces: {done.stderr.strip()}")
        yield made
    finally:
        run("ip", "link", "del", made.near)
        run("ip", "netns", "del", made.namespace)


def started(path: Path, fork_server: ForkServer, wire: Wire, run_: Any, patience: float = 3.0) -> FederationFolder:
    """A SuperLink and two members here, and a third at the other end of the wire."""
    place = localhost.make(path / "fed", run_, times={**TIMES, "patience": patience}, host=wire.host)
    fork_server.start(["federation", "serve", place.path], place.server / "superlink.log").wait_for("ready at", 60)
    children = []
    for name, namespace in zip(place.members(), ("", "", wire.namespace), strict=True):
        kit = place.path / "kits" / name
        words = ["federation", "join", kit, "--data", kit / "data.npz"]
        children.append(fork_server.start(words, kit / "log", namespace=namespace))
    for child in children:
        child.wait_for("is online", 60)
    return place


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


def test_a_wire_that_is_cut_in_a_round_and_mended(tmp_path: Path, parent: ForkServer, link: Wire) -> None:
    """The member is cut off while it trains; the round closes on its quorum; mended, the member is back."""
    work = {"batch_size": 64, "lr": 0.1, "steps": 600}
    with parent.tidy() as fork_server:
        place = started(tmp_path, fork_server, link, run_ := config(3, 5, quorum=2, local=work))
        kit, out = place.path / "kits" / "m002", place.runs / "run"

        def noted(*events: str) -> bool:
            return any(n["event"] in events and n.get("round", 2) == 2 for n in audit_log.read(kit / "audit.jsonl"))

        def cut() -> None:
            until(lambda: noted("charged"), 60)
            link.cut()

        threading.Thread(target=cut, daemon=True).start()

        def watch(record: Any, left: Any) -> None:
            if record.round == 3:
                link.mend()
                assert until(lambda: noted("sent", "not sent"), 60)

        result = localhost.coordinator(place, CLASSES).run(run_, out, progress=watch)
    lines = lines_of(out)
    there = [line["round"] for line in lines if "2" in line["weights"]]
    assert result.rounds == 5
    assert all({"0", "1"} <= set(line["weights"]) for line in lines)
    assert lines[1]["refused"] in ({"2": LEFT}, {"2": SILENT})
    assert {2, 3}.isdisjoint(there)
    assert (there[0], there[-1]) == (1, 5)
    rows = list(export(kit / "ledger.db"))
    charged = [row["round"] for row in rows if row["kind"] == "RESERVED"]
    assert charged == sorted(set(charged))
    assert set(there) <= set(charged)
    assert 2 in charged
    described = describe(kit / "ledger.db")
    assert described["chain_ok"]
    assert described["spent"] <= described["policy"]["epsilon"] + 1e-9


@pytest.mark.soak
def test_a_slow_wire_that_loses_packets(tmp_path: Path, parent: ForkServer, link: Wire) -> None:
    with parent.tidy() as fork_server:
        place = started(tmp_path, fork_server, link, run_ := config(3, 3), 60.0)
        how = link.narrow()
        if not how:
            pytest.skip("this kernel can neither delay packets (netem) nor narrow a wire (tbf)")
        localhost.coordinator(place, CLASSES).run(run_, place.runs / "run")
        lost = link.dropped()
    print(f"{how}: {lost} packets lost")
    assert [len(line["weights"]) for line in lines_of(place.runs / "run")] == [3, 3, 3]
    assert lost > 0
    assert describe(place.path / "kits" / "m002" / "ledger.db")["charges"]["SENT"] == 3
