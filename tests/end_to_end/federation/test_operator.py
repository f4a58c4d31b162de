"""The commands of docs/deploy.md, keys made at the members, tables as data, a report to end with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin import audit_log
from hush.deploy.admin.processes import free_port
from hush.privacy.ledger.statement import describe
from hush.seeds import rng
from tests.support.fork_server import Child, ForkServer

RUN = """
rounds = 2
quorum = 2
[local]
batch_size = 20
lr = 0.3
[recipe]
name = "robust-hdp"
"""


def table(path: Path, rows: int, seed: int) -> None:
    x = rng(seed, "rows").normal(size=(rows, 5))
    lines = [",".join(map(str, [*row, int(row[0] > 0)])) for row in x]
    path.write_text("\n".join(["a,b,c,d,e,outcome", *lines]))


def test_a_federation_from_init_to_report(tmp_path: Path, parent: ForkServer) -> None:
    with parent.tidy() as fork_server:

        def hush(*words: object) -> Child:
            return fork_server.start(words, tmp_path / f"{len(fork_server.children)}.log")

        def done(*words: object) -> str:
            child = hush(*words)
            child.ended(120)
            assert "hush: error" not in child.said(), child.said()
            return child.said()

        study, names = tmp_path / "study", ("north", "south", "west")
        address = f"127.0.0.1:{free_port()}"
        done("federation", "init", study, "--members", ",".join(names), "--address", address, "--no-keys")
        assert not list(study.rglob("key.pem")), "no private key of a member was ever here"
        hush("federation", "serve", study).wait_for("ready at", 60)
        members = {}
        for number, name in enumerate(names):
            own = tmp_path / name
            (study / "kits" / name).rename(own)
            table(tmp_path / f"{name}.csv", 80, number)
            policy = tmp_path / f"{name}.toml"
            text = (own / "policy.toml").read_text().replace('label = "label"', 'label = "outcome"')
            policy.write_text(text.replace("auto_approve = false", "auto_approve = true"))
            words = ["federation", "join", own, "--policy", policy, "--data", tmp_path / f"{name}.csv"]
            assert f"send {own / name}.pub" in done(*words)
            done("federation", "admit", study, name, own / f"{name}.pub")
            members[name] = words
        joined = [hush(*words) for words in members.values()]
        for child in joined:
            child.wait_for("is online", 60)
        table(study / "test.csv", 60, 9)
        (tmp_path / "run.toml").write_text(RUN)
        said = done("federation", "run", study, tmp_path / "run.toml", "--label", "outcome")
        assert "round 2: updates from north, south, west; remaining budget north " in said
        status = json.loads(done("federation", "status", study, "--json"))
        assert set(status["members"].values()) == {"online"}
        assert status["runs"] == [{"run": "run", "state": "finished", "round": 2, "rounds": 2}]
        result = json.loads((study / "runs" / "run" / "result.json").read_text())
        assert {card["noise"] for card in result["guarantees"]} == {"secure"}, "the config left it open"
        done("report", study / "runs" / "run")
    result = json.loads((study / "runs" / "run" / "result.json").read_text())
    for name, card in zip(names, result["guarantees"], strict=True):
        ledger = describe(tmp_path / name / "ledger.db")
        assert ledger["spent"] == pytest.approx(card["epsilon_spent"], rel=1e-6)
        assert ledger["spent"] <= 1.0 + 1e-9
        events = [note["event"] for note in audit_log.read(tmp_path / name / "audit.jsonl")]
        assert events == ["online", "approved", "enrolled", "began", "charged", "sent", "charged", "sent", "ended"]
    events = [note["event"] for note in audit_log.read(study / "server" / "audit.jsonl")]
    for event, times in {"registered": 3, "enrolled": 3, "task": 6, "update": 6, "closed": 2, "ended": 1}.items():
        assert events.count(event) == times, event
    assert np.isfinite(result["accuracy"]["mean"])
    assert (study / "runs" / "run" / "report.html").stat().st_size > 10_000
