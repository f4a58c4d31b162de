from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush.simulation import Simulation
from hush.stop_request import request_stop, stop_requested
from hush.types import RunInterrupted


def made(rounds: int = 4) -> Simulation:
    return Simulation("digits", "logreg", clients=3, epsilon=[1.0, 2.0, 4.0], delta=1e-4, recipe="robust-hdp",
                      rounds=rounds, batch_size=32, lr=0.1)  # fmt: skip


def stop_after(number: int, path: Path) -> Any:
    """A callback that makes the file of a stop request after this round."""

    def ask(record: Any) -> None:
        if record.round == number:
            request_stop(path)

    return ask


@pytest.mark.slow
def test_a_stopped_run_is_resumed_to_the_same_result(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    sim = made()
    stopped = sim.fit(tmp_path / "run", callbacks=stop_after(2, tmp_path / "run"))
    assert stopped.run.stopped and stopped.ended == "stopped after round 2"
    assert not stop_requested(tmp_path / "run") and not (tmp_path / "run" / "result.json").exists()
    assert "not finished" in (tmp_path / "run" / "report.html").read_text()
    resumed, whole = sim.fit(tmp_path / "run", resume=True), sim.fit()
    assert not resumed.run.stopped and resumed.run.rounds == 4
    assert resumed.run.accuracy_per_client == whole.run.accuracy_per_client
    for one, other in zip(resumed.module.parameters(), whole.module.parameters(), strict=True):
        assert np.array_equal(one.detach().numpy(), other.detach().numpy())


@pytest.mark.slow
def test_a_request_from_before_the_start_is_forgotten(tmp_path: Path) -> None:
    sim = made(2)
    sim.fit(tmp_path / "run", callbacks=stop_after(1, tmp_path / "run"))
    request_stop(tmp_path / "run")
    assert sim.fit(tmp_path / "run", resume=True).run.rounds == 2


@pytest.mark.slow
def test_all_runs_of_a_comparison_stop_together(tmp_path: Path) -> None:
    def stop(name: str, seed: int, record: Any) -> None:
        if record.round == 2:
            request_stop(tmp_path / "all")

    sim = made()
    with pytest.raises(RunInterrupted, match="stopped after round"):
        sim.compare(["dp-fedavg", "robust-hdp"], seeds=1, out=tmp_path / "all", progress=stop)
    assert not stop_requested(tmp_path / "all") and not (tmp_path / "all" / "comparison.json").exists()
    done = sim.compare(["dp-fedavg", "robust-hdp"], seeds=1, out=tmp_path / "all", resume=True)
    assert len(done) == 2 and (tmp_path / "all" / "dp-fedavg" / "seed-0" / "result.json").exists()


@pytest.mark.slow
def test_a_request_after_the_last_round_is_no_stop(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    last = made(1).fit(tmp_path / "run", callbacks=stop_after(1, tmp_path / "run"))
    assert not last.run.stopped and (tmp_path / "run" / "result.json").exists()
