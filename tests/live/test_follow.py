from __future__ import annotations

import json
from pathlib import Path

import pytest

from hush.live.follow import FollowedRun
from hush.privacy.round_costs import RoundCosts, SpendingMeter
from hush.simulation import Simulation
from tests.support.live_runs import add_round, begun
from tests.support.report_runs import record


def test_rounds_are_read_as_they_come(tmp_path: Path) -> None:
    run = FollowedRun(tmp_path / "run")
    assert not run.refresh() and not run.started
    begun(tmp_path / "run", 40)
    assert run.refresh() and (run.rounds, run.planned, run.clients) == (0, 40, 20)
    assert not run.refresh()
    for number in (1, 2, 3):
        add_round(tmp_path / "run", number)
    with (tmp_path / "run" / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "wei')
    assert run.refresh() and run.rounds == 3
    scores = record(3).accuracy_per_client
    assert run.columns["mean"][-1] == pytest.approx(sum(scores) / len(scores))
    assert (run.columns["low"][-1], run.columns["high"][-1]) == (min(scores), max(scores))
    assert run.seconds_left() == pytest.approx(37 * 0.4)
    assert run.mean_weights()[5] == pytest.approx(record(1).weights[5])


def test_a_resumed_run_is_read_anew(tmp_path: Path) -> None:
    path = begun(tmp_path / "run", 10)
    run = FollowedRun(path)
    for number in (1, 2, 3):
        add_round(path, number)
    assert run.refresh() and run.rounds == 3
    lines = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (path / "rounds.new").write_bytes(b"".join(lines[:2]))
    (path / "rounds.new").replace(path / "rounds.jsonl")
    assert run.refresh() and run.rounds == 2 and len(run.columns["mean"]) == 2


@pytest.mark.slow
def test_epsilon_is_that_of_the_guarantee_cards(tmp_path: Path) -> None:
    # Ledger files hold an earlier run, and the second run is stopped and resumed.
    sim = Simulation("digits", "logreg", clients=3, epsilon=[0.5, 1.0, 2.0], delta=1e-4, recipe="rc-dpfl", rounds=4,
                     batch_size=32, lr=0.1, lifetime=[5.0, 10.0, 20.0])  # fmt: skip
    sim.fit(tmp_path / "earlier", ledgers=tmp_path / "ledgers")
    stopped = sim.fit(tmp_path / "run", callbacks=lambda record: record.round == 2, ledgers=tmp_path / "ledgers")
    assert stopped.run.stopped
    done = sim.fit(tmp_path / "run", resume=True, ledgers=tmp_path / "ledgers")
    run = FollowedRun(tmp_path / "run")
    run.refresh()
    spent = run.epsilon_at(run.rounds)
    assert [spent[card.client] for card in done.run.guarantees] == pytest.approx(
        [card.epsilon_spent for card in done.run.guarantees], rel=1e-9
    )
    assert run.costs is not None
    assert [terms.policy.epsilon for terms in run.costs.clients] == [5.0, 10.0, 20.0]
    assert all(run.epsilon_at(2)[client] < spent[client] for client in spent)


def test_spending_is_written_and_read_back(tmp_path: Path) -> None:
    path = begun(tmp_path / "run", 10)
    content = (path / "privacy.json").read_bytes()
    costs = RoundCosts.from_json(content)
    assert costs.to_json() == content
    meter = SpendingMeter(costs)
    assert set(meter.epsilon().values()) == {0.0}
    meter.add([0, 1], 0)
    first = meter.epsilon()
    assert first[0] > first[1] > 0 == first[2]
    raw = json.loads(content)
    assert [kind["policy"]["epsilon"] for kind in raw["kinds"]] == [2.0, 3.0]
    assert raw["clients"] == [0, 1] * 10
