"""Runs in lockstep give the numbers of the runs alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hush
from hush.comparison import axes_of, by_axes, path_of
from hush.config import parse
from hush.engines import simulator
from hush.engines.run_ledgers import RunLedgers
from hush.engines.setup import prepare
from hush.types import HushError

SMALL: dict[str, Any] = {
    "rounds": 3,
    "data": {"clients": 4},
    "privacy": {"budgets": [0.5, 1.0, 2.0, 8.0]},
    "local": {"batch_size": [16, 32]},
    "recipe": {"name": "robust-hdp"},
}


def alone(**changes: Any) -> hush.RunResult:
    return hush.simulate({**SMALL, **changes})


def test_a_sweep_gives_the_numbers_of_its_runs_alone(tmp_path: Path) -> None:
    found = hush.sweep(SMALL, ["local.lr=0.05,0.5", "recipe.name=weiavg,rc-dpfl"], seeds=2, out=tmp_path / "all")
    assert list(found["recipes"]) == [
        f"local.lr={lr}, recipe.name={name}" for lr in ("0.05", "0.5") for name in ("weiavg", "rc-dpfl")
    ]
    for label, entry in found["recipes"].items():
        lr, name = float(label.split("=")[1].split(",")[0]), label.rpartition("=")[2]
        for run in entry["runs"]:
            one = alone(local={"batch_size": [16, 32], "lr": lr}, recipe={"name": name}, seed=run["seed"])
            assert run["loss"] == pytest.approx(one.loss, rel=1e-5)
            assert run["accuracy"]["mean"] == one.accuracy["mean"]
            kept = json.loads((tmp_path / "all" / path_of(label, run["seed"]) / "result.json").read_text())
            spent = [card["epsilon_spent"] for card in kept["guarantees"]]
            assert spent == [g.epsilon_spent for g in one.guarantees]
    assert (tmp_path / "all" / "report.html").exists()


def test_runs_that_share_their_rows_are_trained_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    train = simulator.train  # type: ignore[attr-defined]

    def counted(model: Any, x: Any, y: Any, jobs: Any, *rest: Any) -> Any:
        calls.append(len(jobs))
        return train(model, x, y, jobs, *rest)

    monkeypatch.setattr(simulator, "train", counted)
    hush.compare(SMALL, ["weiavg", "robust-hdp", "minimum"])
    assert calls == [3 * 4] * 3, "three rounds, each with the clients of three runs"


def test_runs_whose_frozen_layers_differ_are_not_trained_with_one_of_them() -> None:
    """As on a GPU, where rows of runs are put side by side: what is frozen follows from the seed, and is not sent."""

    def cohort(seed: int, model: dict[str, Any]) -> simulator.Simulator:
        federation = prepare(parse({**SMALL, "seed": seed, "model": model}))
        made = simulator.Simulator(federation, RunLedgers(federation.ledgers()))
        made.x, made.y = x, y
        return made

    (x, y) = prepare(parse(SMALL)).arrays(1)
    frozen, whole = {"name": "mlp", "adapters": "lora"}, {"name": "mlp"}
    kind = simulator._kind
    assert kind(cohort(0, frozen)) != kind(cohort(1, frozen))
    assert kind(cohort(0, whole)) == kind(cohort(1, whole))
    same = cohort(0, frozen)
    assert kind(same) == kind(same)


def test_runs_of_different_length_and_kind_end_each_in_its_own_time() -> None:
    configs = [{**SMALL, "rounds": rounds, "model": {"name": model}} for rounds, model in ((1, "logreg"), (3, "mlp"))]
    results = [
        done.result for done in simulator.lockstep([simulator.execution(prepare(parse(one))) for one in configs])
    ]
    assert [result.rounds for result in results] == [1, 3]
    for result, config in zip(results, configs, strict=True):
        assert result.loss == pytest.approx(hush.simulate(config).loss, rel=1e-5)


def test_a_stopped_sweep_resumes(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(name: str, seed: int, record: Any) -> None:
        if record.round == 2 and "0.5" in name:
            raise StopError

    with pytest.raises(StopError):
        hush.sweep(SMALL, ["local.lr=0.05,0.5"], out=tmp_path / "all", progress=stop)
    resumed = hush.sweep(SMALL, ["local.lr=0.05,0.5"], out=tmp_path / "all", resume=True)
    whole = hush.sweep(SMALL, ["local.lr=0.05,0.5"])
    losses = [
        [run["loss"] for entry in found["recipes"].values() for run in entry["runs"]] for found in (resumed, whole)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ([], "--grid: expected KEY=VALUE"),
        (["local.lr"], "--grid local.lr: expected KEY=VALUE"),
        (["local.lr="], "--grid local.lr=: expected KEY=VALUE"),
        (["local.lr=1,1"], "duplicate value"),
        (["local.lrr=1,2"], "local.lrr: unknown key"),
        (["rounds=0,1"], "rounds: expected"),
    ],
)
def test_grids_that_make_no_sense(grid: list[str], words: str) -> None:
    with pytest.raises(HushError, match=words):
        hush.sweep(SMALL, grid)


def test_values_of_a_grid_may_be_lists_and_tables() -> None:
    grid = ["privacy.budgets=[1.0,2.0,3.0,4.0],2.0", 'recipe.weight={rule="epsilon"},"uniform"']
    variants = by_axes(parse(SMALL), axes_of(grid))
    assert len(variants) == 4
    assert [one.privacy.budgets for one in variants.values()] == [[1.0, 2.0, 3.0, 4.0]] * 2 + [2.0] * 2
