"""Sweeps and reproductions on Ray: the results of one machine, and finished runs that are not repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hush
from hush.engines.cluster import runs

CONFIG: dict[str, Any] = {
    "seed": 2,
    "rounds": 2,
    "data": {"name": "digits", "clients": 6},
    "privacy": {"budgets": [0.5, 0.6, 1.0, 2.0, 6.0, 8.0], "delta": 1e-4},
    "local": {"batch_size": 16, "steps": 3},
    "recipe": {"name": "dp-fedavg"},
}


def numbers(value: Any) -> Any:
    """All but the time."""
    if isinstance(value, dict):
        return {key: numbers(each) for key, each in value.items() if "seconds" not in key}
    return [numbers(each) for each in value] if isinstance(value, list | tuple) else value


def test_groups_share_all_runs_evenly() -> None:
    assert runs._groups([3, 4, 7, 9, 10], 2) == [[3, 7, 10], [4, 9]]
    assert runs._groups([3, 4], 8) == [[3], [4]]
    assert runs._groups([3, 4], 0) == [[3, 4]]


@pytest.mark.slow
def test_a_sweep_on_ray_is_that_of_one_machine_and_resumes(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = {"lr": [0.05, 0.5]}
    here = hush.Simulation(config=CONFIG).sweep(grid, progress=False)
    heard: list[tuple[str, int, int]] = []

    def progress(name: str, seed: int, record: Any) -> None:
        heard.append((name, seed, record.round))

    grouped = runs._groups
    with monkeypatch.context() as patch:
        # As on one GPU: all runs in lockstep in one task.
        patch.setattr(runs, "_groups", lambda waiting, _: grouped(waiting, 1))
        there = hush.Simulation(config=CONFIG, engine="ray").sweep(grid, out=tmp_path / "sweep", progress=progress)
    assert numbers(json.loads(json.dumps(here.facts["recipes"]))) == numbers(
        json.loads(json.dumps(there.facts["recipes"]))
    )
    assert len(heard) == 4
    results = sorted((tmp_path / "sweep").rglob("result.json"))
    assert len(results) == 2 and all((path.parent / "rounds.jsonl").exists() for path in results)
    results[0].unlink()
    before = results[1].stat().st_mtime_ns
    again = hush.Simulation(config=CONFIG, engine="ray").sweep(
        grid, out=tmp_path / "sweep", resume=True, progress=False
    )
    assert numbers(json.loads(json.dumps(again.facts["recipes"]))) == numbers(
        json.loads(json.dumps(there.facts["recipes"]))
    )
    assert results[0].exists() and results[1].stat().st_mtime_ns == before
