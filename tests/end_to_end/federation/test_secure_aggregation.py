"""Secure aggregation between processes: no update is in the memory, the files or the log of the coordinator."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import torch

from hush.config import parse
from hush.data.datasets import from_arrays
from hush.deploy.admin import audit_log, keys, localhost
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.coordinator.agreement import read_agreement
from hush.deploy.shared.run_spec import assemble, complete
from hush.deploy.transport import messages
from hush.engines.setup import prepare
from hush.server.loop import plans_of_sums
from tests.support.fork_server import Child, ForkServer

MEMBERS, ROUNDS, DEAD = 3, 2, "m001"
RAW = {
    "seed": 5, "rounds": ROUNDS, "data": {"name": "digits", "clients": MEMBERS}, "max_weight": 1.0,
    "model": {"name": "mlp", "hidden": 4000}, "privacy": {"budgets": [1.0, 2.0, 3.0], "noise": "secure"},
    "local": {"batch_size": 64, "lr": 0.1, "steps": 2}, "recipe": {"name": "weiavg"},
}  # fmt: skip


def memory(pid: int) -> Iterator[bytes]:
    """All that a process has written to its memory, region by region, also what it has freed."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory_file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, _, _, file, *_ = line.split()
            if not rights.startswith("rw") or file != "0":
                continue
            first, end = (int(each, 16) for each in place.split("-"))
            try:
                memory_file.seek(first)
                yield memory_file.read(end - first)
            except (OSError, ValueError, OverflowError):
                continue


def sealed(place: FederationFolder, name: str) -> torch.Tensor | None:
    """The update that a member stores until its round is saved."""
    public = keys.load_public(place.members()[name], name)
    for path in (place.path / "kits" / name).rglob("*"):
        if path.is_file() and path.stat().st_size > 1 << 20 and path.suffix not in (".npz", ".log"):
            content = path.read_bytes()
            try:
                return messages.decode(keys.opened(public, content), len(content)).tensors["vector"]
            except Exception:
                continue
    return None


def traces(vector: torch.Tensor) -> list[bytes]:
    """Stretches of an update's bytes, at several places."""
    whole = vector.contiguous().numpy().tobytes()
    return [whole[at : at + 64] for at in (len(whole) // 3, len(whole) // 2)]


def found(places: dict[str, list[bytes]], regions: Iterator[bytes]) -> set[str]:
    names = set()
    for region in regions:
        names |= {what for what, stretches in places.items() if any(each in region for each in stretches)}
    return names


@pytest.mark.slow
def test_the_coordinator_holds_no_update_in_memory_files_or_log(tmp_path: Path, parent: ForkServer) -> None:
    """The same search finds every update of a run without secure aggregation. One member is killed on the way."""
    config = complete(parse(RAW), None)
    place = localhost.make(tmp_path / "federation", config, times={"deadline": 60.0, "gather": 60.0})
    for policy in place.path.glob("kits/*/policy.toml"):
        policy.write_text(re.sub("# lifetime = .*", "lifetime = 100.0", policy.read_text()))
    seen: dict[bool, set[str]] = {}
    with parent.tidy():
        link = parent.start(["federation", "serve", place.path], place.server / "superlink.log")
        link.wait_for("ready at", 120)
        members = {}
        for name in place.members():
            kit = place.path / "kits" / name
            words = ["federation", "join", kit, "--data", kit / "data.npz"]
            members[name] = parent.start(words, kit / "join.log")
        for child in members.values():
            child.wait_for("is online", 120)
        for secure in (False, True):
            seen[secure] = _run(place, parent, link, members, secure)
    assert {f"{name} in round {number}" for name in members for number in range(1, ROUNDS + 1)} <= seen[False]
    assert seen[True] == set()
    assert {line["event"] for line in audit_log.read(place.server / "audit.jsonl")} >= {"update", "summed"}


def _run(place: FederationFolder, parent: ForkServer, link: Child, members: dict[str, Child], secure: bool) -> set[str]:
    """Whose updates are found in memory, files or log of the coordinator and the SuperLink."""
    out = place.runs / ("sums" if secure else "plain")
    raw = {**RAW, "secure_aggregation": secure}
    log = place.path / f"{out.name}.log"
    coordinator = parent.call("tests.support.paused_coordinator", "run", log, place.path, json.dumps(raw), out)
    seen = set[str]()
    stretches: dict[str, list[bytes]] = {}
    for number in range(1, ROUNDS + 1):
        coordinator.wait_for(f"round {number} waits", 120)
        updates = {name: sealed(place, name) for name, child in members.items() if child.alive()}
        assert len(updates) == MEMBERS - (secure and number > 1)
        assert all(each is not None for each in updates.values())
        stretches |= {f"{name} in round {number}": traces(each) for name, each in updates.items()}
        if secure:
            quantised = _quantised(place, out, number, updates)
            stretches |= {f"{name} in round {number}, quantised": each for name, each in quantised.items()}
        for child in (coordinator, link):
            seen |= found(stretches, memory(child.pid))
        if secure and number == 1:
            members[DEAD].kill()
        (out / f"go-{number}").touch()
    coordinator.ended(60)
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [len(record["weights"]) for record in records] == [MEMBERS, MEMBERS - secure]
    files = [path for path in (*place.server.rglob("*"), *out.rglob("*"), log) if path.is_file()]
    seen |= found(stretches, (path.read_bytes() for path in files))
    texts = b"".join(path.read_bytes() for path in files)
    for what, each in stretches.items():
        written = {base64.b64encode(part[:48]) for part in each} | {part.hex().encode() for part in each}
        seen |= {what} if any(text in texts for text in written) else set()
    return seen


def _quantised(place: FederationFolder, out: Path, number: int, updates: dict[str, Any]) -> dict[str, list[bytes]]:
    """The integers that members add masks to."""
    agreement = read_agreement(out, complete(parse({**RAW, "secure_aggregation": True}), None))
    data = prepare(parse(RAW)).data.dataset
    terms = assemble(agreement.config, agreement.facts, from_arrays(data.x, data.y, "rows", 10)).terms
    (plan,) = plans_of_sums(terms, number)
    return {name: traces(plan.quantised(agreement.names.index(name), update)) for name, update in updates.items()}
