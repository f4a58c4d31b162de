"""What takes minutes between processes: a SuperLink started anew, a budget that ends. Run by `make soak`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from federation_town import CLASSES, config

from hush.deploy import local
from hush.deploy.processes import Program, stopping
from hush.privacy.ledger.statement import describe

pytestmark = pytest.mark.soak


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
