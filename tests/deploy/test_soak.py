"""Row 15 and the numbers of a larger federation, with processes that are killed. Run by `make soak`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from federation_town import CLASSES, config

from hush.deploy import local
from hush.deploy.place import Place
from hush.deploy.processes import Program, stopping
from hush.privacy.ledger.statement import describe
from hush.seeds import rng

pytestmark = pytest.mark.soak


def written(path: Path) -> int:
    return (path / "rounds.jsonl").read_bytes().count(b"\n") if (path / "rounds.jsonl").exists() else 0


def coordinate(place: Place, file: Path, programs: list[Program], *more: str) -> Program:
    words = ["federation", "run", str(place.path), str(file), "--test", str(place.path / "test.npz")]
    words += ["--out", str(place.runs / "run"), "--classes", str(CLASSES), *more]
    programs.append(Program(words, place.server / "run.log"))
    return programs[-1]


def toml(path: Path, members: int, rounds: int) -> Path:
    path.write_text(
        f'seed = 5\nrounds = {rounds}\nquorum = 2\n[data]\nname = "digits"\nclients = {members}\n'
        "[privacy]\nbudgets = 2.0\n"
        'accountant = "rdp"\n[local]\nbatch_size = 32\nlr = 0.5\n[recipe]\nname = "robust-hdp"\n'
    )
    return path


def test_members_and_coordinator_killed_at_any_time(tmp_path: Path) -> None:
    """Every round two of six members are killed, every other one the coordinator: it ends, and the books agree."""
    members, rounds = 6, 8
    run = config(members, rounds, quorum=2)
    times = {"deadline": 40.0, "patience": 5.0, "gather": 60.0}
    place = local.make(tmp_path / "fed", run, times=times)
    file = toml(tmp_path / "run.toml", members, rounds)
    drawn, out = rng(0, "kills"), place.runs / "run"
    with stopping([]) as programs:
        running = local.start(place, programs)
        coordinator = coordinate(place, file, programs)
        deadline, kills, seen = time.monotonic() + 540, 0, 0
        while not (out / "result.json").exists():
            assert time.monotonic() < deadline, (place.server / "run.log").read_text()[-2000:]
            time.sleep(0.3)
            if written(out) > seen:
                seen = written(out)
                for name in [f"m{int(c):03d}" for c in drawn.permutation(members)[:2]]:
                    running[name].kill()
                    running[name] = local.join(place, name, programs)
                if drawn.random() < 0.5:
                    coordinator.kill()
                    kills += 1
            if coordinator.process.poll() is not None and not (out / "result.json").exists():
                coordinator = coordinate(place, file, programs, "--resume")
        assert kills > 0
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == rounds
    for client in range(members):
        told = describe(place.path / "kits" / f"m{client:03d}" / "ledger.db")
        seen = sum(client in line["charged"] for line in lines)
        assert told["chain_ok"]
        assert sum(told["charges"].values()) >= seen
        assert told["spent"] <= told["policy"]["epsilon"] + 1e-9


def test_a_superlink_that_is_started_anew_finds_its_members_again(tmp_path: Path) -> None:
    place = local.make(tmp_path / "fed", config(3, 4), times={"deadline": 60.0, "patience": 60.0, "gather": 60.0})
    with stopping([]) as programs:
        running = local.start(place, programs)
        running[""].kill()
        again = Program(["federation", "serve", str(place.path)], tmp_path / "again.log")
        programs.append(again)
        again.wait_for("ready at", 120)
        result = local.coordinator(place, CLASSES).run(config(3, 4), place.runs / "run")
    assert result.rounds == 4
    assert all(card.rounds == 4 for card in result.guarantees)


def test_a_budget_that_ends_in_the_middle(tmp_path: Path) -> None:
    """Equal noise for all: who has a small budget leaves, the run goes on, and a restart does not let it back in."""
    rule = {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "spread": "equal-noise"}}
    run = config(3, 6, recipe=rule).model_copy()
    run = run.model_copy(update={"privacy": run.privacy.model_copy(update={"budgets": [1.2, 2.0, 2.0]})})
    place = local.make(tmp_path / "fed", run, times={"deadline": 60.0, "patience": 60.0, "gather": 60.0})
    for policy in place.path.glob("kits/*/policy.toml"):
        policy.write_text(policy.read_text().replace('"robust-hdp (modified)"', '"any"'))
    out = place.runs / "run"
    with stopping([]) as programs:
        running = local.start(place, programs)
        gone: list[int] = []

        def watch(record: object, left: object) -> None:
            line = json.loads((out / "rounds.jsonl").read_text().splitlines()[-1])
            if "0" in line["refused"] and not gone:
                gone.append(line["round"])
                running["m000"].kill()
                local.join(place, "m000", programs).wait_for("is online", 60)

        result = local.coordinator(place, CLASSES).run(run, out, progress=watch)
    assert result.rounds == 6
    assert 1 < gone[0] < 6
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    seen = sum(0 in line["charged"] for line in lines)
    assert seen == gone[0] - 1
    assert sum(describe(place.path / "kits" / "m000" / "ledger.db")["charges"].values()) == seen
    assert "budget" in lines[gone[0] - 1]["refused"]["0"] or "exceed" in lines[gone[0] - 1]["refused"]["0"]
