"""Simulations on Ray against the same in one process, with and without lost workers."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn

import hush
from hush.engines.cluster import rounds
from hush.engines.driver import CompletedRun
from hush.recipes import RECIPES

BASE: dict[str, Any] = {
    "seed": 2,
    "data": {"name": "digits", "clients": 7},
    "privacy": {"budgets": [0.5, 0.6, 0.6, 1.0, 2.0, 6.0, 8.0], "delta": 1e-4},
    "local": {"batch_size": 16, "lr": 0.1, "steps": 3},
}


def trained(recipe: str, model: Any = None, settings: Any = (), **engine: Any) -> CompletedRun:
    number = 6 if "warm" in recipe else 3
    config = {**BASE, "rounds": number, "recipe": {"name": recipe}, "engine": engine}
    simulation = hush.Simulation(model=model, config=config, settings=settings)
    simulation.fit(progress=False)
    assert simulation._last is not None
    return simulation._last


def same(one: CompletedRun, other: CompletedRun) -> None:
    """The same models to seven digits, and ledgers charged alike."""
    largest = float(one.models.abs().max())
    torch.testing.assert_close(other.models, one.models, rtol=1e-6, atol=1e-6 * largest)
    assert one.homes == other.homes
    for ours, theirs in zip(one.result.guarantees, other.result.guarantees, strict=True):
        assert (ours.epsilon_spent, ours.rounds, ours.steps) == (theirs.epsilon_spent, theirs.rounds, theirs.steps)


class Killing:
    """Kills a worker with SIGKILL before every so many-th sum of updates."""

    def __init__(self, every: int) -> None:
        self.every, self.calls, self.killed = every, 0, 0
        self._combined = rounds.RayRows.combined

    def __call__(self, rows: rounds.RayRows, *arguments: Any) -> torch.Tensor:
        self.calls += 1
        if self.calls % self.every == 1:
            actor = next(iter(rows._pool.workers.values()))
            os.kill(rows._pool.ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
            self.killed += 1
        return self._combined(rows, *arguments)


@pytest.mark.slow
def test_equal_blocks_give_equal_bits_and_a_killed_worker_changes_nothing(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killing = Killing(every=2)
    monkeypatch.setattr(rounds.RayRows, "combined", lambda *arguments: killing(*arguments))
    # Three clients leave in the first rounds: their blocks are smaller then.
    leaving = {"recipe.protect": {"rule": "dp-sgd", "spread": "equal-noise", "noise": 1.5}}
    one = trained("robust-hdp", settings=leaving, block=2)
    other = trained("robust-hdp", settings=leaving, name="ray", workers=2, block=2)
    assert one.result.out_of_budget
    assert killing.killed >= 2
    assert torch.equal(one.models, other.models)
    same(one, other)


@pytest.mark.slow
def test_a_module_of_ones_own_and_updates_that_are_projected(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Sums are added up by workers, as with more than eight of them.
    monkeypatch.setattr(rounds, "_FAN_IN", 2)
    trees: list[int] = []
    method = rounds.RayRows._added_by_workers

    def counted(rows: rounds.RayRows, *arguments: Any) -> Any:
        trees.append(len(rows._pool.workers))
        return method(rows, *arguments)

    monkeypatch.setattr(rounds.RayRows, "_added_by_workers", counted)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    same(trained("pfa-plus", net), trained("pfa-plus", net, name="ray", workers=3))
    assert set(trees) == {3}


@pytest.mark.soak
@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_equals_one_process(ray: Any, recipe: str) -> None:
    same(trained(recipe), trained(recipe, name="ray", workers=2))
    assert torch.equal(trained(recipe, block=3).models, trained(recipe, name="ray", block=3).models)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(hush.HushError, match=r'pip install "hush\[cluster\]"'):
        hush.simulate({**BASE, "rounds": 1, "engine": {"name": "ray"}}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_drawn_again_is_refused(tmp_path: Any) -> None:
    pytest.importorskip("ray")
    config = {**BASE, "rounds": 1, "engine": {"name": "ray"}}
    with pytest.raises(hush.HushError, match="secure noise"):
        hush.simulate({**config, "privacy": {**BASE["privacy"], "noise": "secure"}})
    with pytest.raises(hush.HushError, match="ledger files"):
        hush.simulate(config, ledgers=tmp_path / "ledgers", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_an_address_where_nothing_listens_is_named_at_once(tmp_path: Any) -> None:
    ray = pytest.importorskip("ray")
    if ray.is_initialized():
        pytest.skip("Ray is connected already")
    config = {**BASE, "rounds": 1, "engine": {"name": "ray", "address": "127.0.0.1:9"}}
    with pytest.raises(hush.HushError, match=r"engine.address: no Ray cluster at '127.0.0.1:9'"):
        hush.simulate(config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
