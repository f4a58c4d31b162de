"""Simulations on Ray against the same in one process, with and without lost workers."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hush
from hush.engines.cluster import ray_workers, rounds
from hush.engines.driver import CompletedRun
from hush.privacy.ledger.ledger import inspect
from hush.recipes import RECIPES

BASE: dict[str, Any] = {
    "seed": 2,
    "data": {"name": "digits", "clients": 7},
    "privacy": {"budgets": [0.5, 0.6, 0.6, 1.0, 2.0, 6.0, 8.0], "delta": 1e-4},
    "local": {"batch_size": 16, "lr": 0.1, "steps": 3},
}


def trained(recipe: str, model: Any = None, settings: Any = (), data: Any = None, **engine: Any) -> CompletedRun:
    number = 6 if "warm" in recipe else 3
    config = {**BASE, "rounds": number, "recipe": {"name": recipe}, "engine": engine}
    if data is not None:
        config |= {"data": data, "privacy": {"budgets": 2.0, "delta": 1e-4}}
    simulation = hush.Simulation(model=model, config=config, settings=settings)
    simulation.fit(progress=False)
    assert simulation._last is not None
    return simulation._last


def same(one: CompletedRun, other: CompletedRun) -> None:
    """The same models to seven digits, and ledgers charged alike."""
    largest = float(one.models.abs().max())
    torch.testing.assert_close(other.models, one.models, rtol=1e-6, atol=1e-6 * largest)
    assert one.assignments == other.assignments
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
    # A client is a block by itself here: the same bits in the same blocks, and seven digits in one block.
    spread = trained(recipe, name="ray", workers=2)
    same(trained(recipe), spread)
    assert torch.equal(trained(recipe, block=1).models, spread.models)


@pytest.mark.slow
def test_a_worker_that_is_lost_while_it_starts_is_replaced(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    method, killed = ray_workers.WorkerPool._start_missing, [0]

    def killing(self: Any) -> None:
        method(self)
        if not killed[0]:
            for actor, _ in self._starting.values():
                ray.kill(actor)
                killed[0] += 1

    monkeypatch.setattr(ray_workers.WorkerPool, "_start_missing", killing)
    same(trained("dp-fedavg"), trained("dp-fedavg", name="ray", workers=1))
    assert killed == [1]


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    # As on a cluster whose nodes have GPUs that PyTorch cannot use there.
    monkeypatch.setattr(ray_workers.WorkerPool, "_gpus", 0)
    with pytest.raises(hush.HushError, match=r"cannot start: .*cuda is not available on a worker"):
        trained("dp-fedavg", name="ray", workers=1, device="cuda")


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(hush.HushError, match=r'pip install "hush\[cluster\]"'):
        hush.simulate({**BASE, "rounds": 1, "engine": {"name": "ray"}}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_drawn_again_is_refused(tmp_path: Any) -> None:
    pytest.importorskip("ray")
    config = {**BASE, "rounds": 1, "engine": {"name": "ray"}}
    with pytest.raises(hush.HushError, match="with secure noise: "):
        hush.simulate({**config, "privacy": {**BASE["privacy"], "noise": "secure"}})
    # Noise that is left open is secure where ledgers persist.
    with pytest.raises(
        hush.HushError, match=r"with ledger files, and so with secure noise: .*privacy.noise = \"seeded"
    ):
        hush.simulate(config, ledgers=tmp_path / "ledgers", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def charges(ledgers: Path) -> dict[str, list[tuple[str, int, int]]]:
    """The entries of each ledger file that are about a round: what happened, in which round and attempt."""
    return {
        path.name: [(row.kind, row.round, row.attempt) for row in inspect(path)[0] if row.round]
        for path in sorted(ledgers.glob("*.ledger"))
    }


@pytest.mark.slow
def test_a_driver_that_died_in_a_round_resumes_under_the_same_charges(ray: Any, tmp_path: Path) -> None:
    config = {
        **BASE, "rounds": 3, "recipe": {"name": "robust-hdp"}, "privacy": {**BASE["privacy"], "noise": "seeded"},
        "engine": {"name": "ray", "workers": 2, "block": 2},
    }  # fmt: skip
    whole = hush.simulate(config, out=tmp_path / "whole", ledgers=tmp_path / "ledgers-whole")
    answered = rounds.RayRounds.answer
    died: list[int] = []

    def dying(self: rounds.RayRounds, tasks: Any) -> Any:
        answers = answered(self, tasks)
        if tasks[0].round == 2 and not died:
            died.append(2)
            raise KeyboardInterrupt  # after the charges of the round, and before it is saved
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds.RayRounds, "answer", dying)
        with pytest.raises(KeyboardInterrupt):
            hush.simulate(config, out=tmp_path / "cut", ledgers=tmp_path / "ledgers-cut")
    (before,) = {sum(kind == "RESERVED" for kind, _, _ in rows) for rows in charges(tmp_path / "ledgers-cut").values()}
    assert before == 2
    resumed = hush.simulate(config, out=tmp_path / "cut", ledgers=tmp_path / "ledgers-cut", resume=True)
    assert charges(tmp_path / "ledgers-cut") == charges(tmp_path / "ledgers-whole")
    assert {attempt for rows in charges(tmp_path / "ledgers-cut").values() for _, _, attempt in rows} == {1}
    assert resumed.guarantees == whole.guarantees
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_straggler_gets_fewer_clients_and_costs_are_measured(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[list[float], dict[int, int]]] = []
    method = rounds.RayRows._train

    def watched(self: rounds.RayRows, blocks: Any) -> None:
        stopped = 0
        if len(made) == 1:
            # The last worker stands still for the whole second round but its end.
            actor = list(self._pool.workers.values())[-1]
            stopped = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
            os.kill(stopped, signal.SIGSTOP)
            threading.Timer(1.5, os.kill, (stopped, signal.SIGCONT)).start()
        method(self, blocks)
        made.append((list(self._expected), dict(self._place)))

    monkeypatch.setattr(rounds.RayRows, "_train", watched)
    spread = trained("dp-fedavg", data={"name": "digits", "clients": 12}, name="ray", workers=2, block=1)
    same(trained("dp-fedavg", data={"name": "digits", "clients": 12}), spread)
    (works, _), (measured, place), _ = made
    assert len(set(works)) == 1 and len(set(measured)) == 12, "steps at first, and then what was measured"
    shares = sorted(list(place.values()).count(worker) for worker in set(place.values()))
    assert shares[0] <= 2 and sum(shares) == 12  # what it had been given when it stopped


@pytest.mark.slow
def test_workers_evaluate_where_test_rows_are_many(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_SHARE", 100)  # rows: several shares
    asked: list[int] = []
    method = ray_workers.WorkerPool.anywhere

    def counted(self: Any, name: str, arguments: Any) -> Any:
        asked.append(len(arguments))
        if len(asked) == 1:
            actor = next(iter(self.workers.values()))
            os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        return method(self, name, arguments)

    monkeypatch.setattr(ray_workers.WorkerPool, "anywhere", counted)
    one, other = trained("pfa"), trained("pfa", name="ray", workers=2)
    assert len(asked) == 3 and min(asked) > 1
    for ours, theirs in zip(one.records, other.records, strict=True):
        assert theirs.accuracy_per_client == ours.accuracy_per_client
        assert theirs.loss == pytest.approx(ours.loss, rel=1e-6)


def test_an_address_where_nothing_listens_is_named_at_once(tmp_path: Any) -> None:
    ray = pytest.importorskip("ray")
    if ray.is_initialized():
        pytest.skip("Ray is connected already")
    config = {**BASE, "rounds": 1, "engine": {"name": "ray", "address": "127.0.0.1:9"}}
    with pytest.raises(hush.HushError, match=r"engine.address: no Ray cluster at '127.0.0.1:9'"):
        hush.simulate(config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
