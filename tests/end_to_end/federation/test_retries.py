"""Row 30: a member that is killed after its charge repeats the round; its plan has reserved for that, or says not."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.api import simulate
from hush.config import Config
from hush.deploy.admin import audit_log
from hush.privacy.ledger.statement import describe, export
from hush.seeds import rng
from tests.support import federation_kit as kit

ROUNDS = 4


def offer(retries: int) -> Config:
    return kit.config(rounds=ROUNDS, privacy__noise="seeded", privacy__delta=1e-4, privacy__retries=retries)


def _die(*_: Any) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def _charge_and_die(path: Path, number: int) -> None:
    node = kit.member(path)
    node._trained = _die  # type: ignore[assignment,method-assign]
    kit.Coordinator(node).task(number)


def killed(path: Path, number: int) -> None:
    """A process takes a task, charges its ledger, and is killed while it trains."""
    # Not forked: this process may have threads, and a fork can inherit a lock that one of them holds.
    child = get_context("spawn").Process(target=_charge_and_die, args=(path, number))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL


def killings(path: Path, retries: int, kills: int, seed: int = 0) -> list[str]:
    """What a member answers in each round, killed that often after a charge, in rounds at random."""
    drawn = rng(seed, "kills")
    at = [int(drawn.integers(1, ROUNDS + 1)) for _ in range(kills)]
    node = kit.member(path)
    said: list[str] = []
    node.say = said.append
    assert kit.Coordinator(node).begin(offer(retries)).kind == "ready"
    assert [words.endswith(f"this run's budget covers {retries} such repeats") for words in said] == [True]
    node.ledger.close()
    answers = []
    for number in range(1, ROUNDS + 1):
        for _ in range(at.count(number)):
            killed(path, number)
        node = kit.member(path)
        answers.append(kit.Coordinator(node).task(number).kind)
        node.ledger.close()
    described = describe(path / "ledger.db")
    assert described["spent"] <= described["policy"]["epsilon"] + 1e-9
    assert sum(row["kind"] == "BURNED" for row in export(path / "ledger.db")) == kills
    (note,) = [note for note in audit_log.read(path / "audit.jsonl") if note["event"] == "began"]
    assert note["retries"] == retries
    return answers


@pytest.mark.parametrize(
    ("members", "retries"), [(1, 2), pytest.param(50, 4, marks=pytest.mark.soak)], ids=["quick", "full"]
)
def test_no_affordable_round_is_lost_to_a_kill(tmp_path: Path, members: int, retries: int) -> None:
    for number in range(members):
        assert killings(tmp_path / f"{number}", retries, retries, number) == ["update"] * ROUNDS


def test_without_a_reserve_the_last_round_is_lost_and_the_plan_says_so(tmp_path: Path) -> None:
    assert killings(tmp_path / "a", 0, 1) == ["update"] * (ROUNDS - 1) + ["no"]


def test_a_reserve_costs_noise_and_changes_nothing_else(tmp_path: Path) -> None:
    multipliers = []
    for retries in (0, 1):
        raw = kit.config(privacy__retries=retries, recipe={"name": "dp-fedavg"})
        result = simulate(raw, out=tmp_path / str(retries))
        multipliers.append(result.guarantees[0].noise_multiplier)
        assert result.guarantees[0].rounds == 4
        assert (result.guarantees[0].epsilon_spent < 0.98) == (retries > 0)
    assert multipliers[1] > 1.05 * multipliers[0]
