"""The private trainer: what it charges, what it releases, and that both agree with a simulation's client and a plan."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from hush import private_trainer
from hush.engines.run_ledgers import RunLedgers
from hush.engines.simulator import Simulator
from hush.privacy.ledger import BudgetSpentError, Ledger
from hush.privacy.ledger.book import STATE_NAMES
from hush.privacy.ledger.ledger import inspect
from hush.types import HushError, Task, Update
from tests.support.fork_server import ForkServer

_ROWS, _BATCH = 60, 12
_SETTINGS: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "rounds": 3, "batch_size": _BATCH, "lr": 0.5, "classes": 3}


def _data(rows: int = _ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 3
    return (rng.normal(size=(rows, 4)) + y[:, None]).astype(np.float32), y


class Net(nn.Module):
    """Two layers, one of them frozen, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 3)
        self.first.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.scale * self.first(x)))


@pytest.fixture
def net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def _trainer(net: nn.Module, path: Path, **changed: Any) -> hush.PrivateTrainer:
    return hush.PrivateTrainer(net, *_data(), **{"ledger": path / "client.ledger", **_SETTINGS, **changed})


def _states(path: Path) -> list[str]:
    return [STATE_NAMES[charge.state] for charge in inspect(path / "client.ledger")[1].charges.values()]


@pytest.mark.parametrize("epochs", [1, 2])
def test_noise_and_epsilon_are_those_of_the_plan(net: Net, tmp_path: Path, epochs: int) -> None:
    trainer = _trainer(net, tmp_path, epochs=epochs)
    planned = hush.plan(epsilon=3.0, delta=1e-5, samples=_ROWS, batch=_BATCH, rounds=3, epochs=epochs)
    assert trainer.plan.noise_multiplier == planned["noise_multiplier"]
    spent = []
    for number in (1, 2, 3):
        done = trainer.fit(round=number)
        spent.append(done.guarantee.epsilon_spent)
    assert done.guarantee.steps == planned["steps"]
    assert spent[-1] == planned["epsilon"] <= 3.0
    assert spent[0] == planned["epsilon_by_round"]["1"]
    assert done.guarantee.epsilon_left == 3.0 - spent[-1]


def test_steps_in_place_of_epochs_are_charged(net: Net, tmp_path: Path) -> None:
    trainer = _trainer(net, tmp_path, steps=7, rounds=1)
    card = trainer.fit(round=1).guarantee
    assert card.steps == 7
    assert 2.9 < card.epsilon_spent <= 3.0


def test_a_second_run_is_refused_when_the_budget_is_spent(net: Net, tmp_path: Path) -> None:
    first = _trainer(net, tmp_path)
    for number in (1, 2, 3):
        first.fit(round=number)
    spent = first.guarantee().epsilon_spent
    with pytest.raises(BudgetSpentError, match="would exceed the budget of 3"):
        first.fit(round=4)
    second = _trainer(net, tmp_path)
    with pytest.raises(BudgetSpentError, match="would exceed the budget of 3"):
        second.fit(round=1)
    assert second.guarantee().epsilon_spent == spent
    assert _states(tmp_path) == ["sent"] * 3


def test_a_lifetime_leaves_budget_for_a_second_run(net: Net, tmp_path: Path) -> None:
    first = _trainer(net, tmp_path, lifetime=6.0, rounds=1)
    one = first.fit(round=1).guarantee
    second = _trainer(net, tmp_path, rounds=1)
    two = second.fit(round=1).guarantee
    assert two.epsilon_budget == 6.0
    assert one.epsilon_spent < two.epsilon_spent <= 6.0
    with pytest.raises(hush.HushError, match=r"epsilon: found 7, and .* has a budget of 6 for all runs"):
        _trainer(net, tmp_path, epsilon=7.0)
    with pytest.raises(hush.HushError, match=r"delta: found 0.001, .* accepted: 1e-05"):
        _trainer(net, tmp_path, delta=1e-3)
    with pytest.raises(hush.HushError, match="the ledger of client client; accepted: that of client other"):
        _trainer(net, tmp_path, client="other")


def test_a_repeated_round_is_answered_with_the_sealed_update(net: Net, tmp_path: Path) -> None:
    trainer = _trainer(net, tmp_path, run="study")
    once = trainer.fit(net.state_dict(), round=1)
    # Another process of the same run, as Flower starts one for every message.
    again = _trainer(net, tmp_path, run="study").fit(net.state_dict(), round=1)
    assert not once.repeated
    assert again.repeated
    assert all(torch.equal(once.weights[name], again.weights[name]) for name in once.weights)
    assert again.guarantee == once.guarantee
    assert _states(tmp_path) == ["sent"]
    with pytest.raises(hush.HushError, match="weights: round 1 was already answered for other weights"):
        trainer.fit(once.weights, round=1)
    trainer.fit(once.weights, round=2)
    with pytest.raises(hush.HushError, match="round: 1 was already answered, and the answer is no longer stored"):
        trainer.fit(net.state_dict(), round=1)
    assert _states(tmp_path) == ["sent"] * 2


def killed_client(directory: str, when: str) -> None:
    """A client that dies when it is charged, or when its answer is sealed."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    place, name = (private_trainer, "train") if when == "charged" else (RunLedgers, "sent")
    setattr(place, name, die)
    net = Net()
    net.load_state_dict({name: torch.zeros_like(v) if name != "scale" else v for name, v in net.state_dict().items()})
    _trainer(net, Path(directory), run="study", retries=1).fit(round=1)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["charged", "sealed"])
def test_a_killed_client_stays_charged(net: Net, tmp_path: Path, when: str, parent: ForkServer) -> None:
    with parent.tidy() as fork_server:
        client = fork_server.call("tests.test_private_trainer", "killed_client", tmp_path / "log", tmp_path, when)
        assert client.status() == -9, client.said()
    # The network of the process that died, with all weights zero.
    net.load_state_dict({name: torch.zeros_like(v) if name != "scale" else v for name, v in net.state_dict().items()})
    trainer = _trainer(net, tmp_path, run="study", retries=1)
    assert trainer.guarantee().rounds == 1
    once = trainer.guarantee().epsilon_spent
    done = trainer.fit(round=1)
    if when == "charged":
        # Nothing of the first attempt can be released any more, and it stays spent beside the second.
        assert _states(tmp_path) == ["forfeited", "sent"]
        assert done.guarantee.epsilon_spent > once
    else:
        assert done.repeated
        assert done.guarantee.epsilon_spent == once
    trainer.fit(round=2)
    assert trainer.fit(round=3).guarantee.epsilon_spent <= 3.0


def test_a_failure_in_training_stays_charged(net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _trainer(net, tmp_path)

    def fails(*given: object) -> None:
        raise RuntimeError("out of order")

    with monkeypatch.context() as patch:
        patch.setattr("hush.private_trainer.train", fails)
        with pytest.raises(RuntimeError, match="out of order"):
            trainer.fit(round=1)
    assert _states(tmp_path) == ["forfeited"]
    assert trainer.fit(round=1).guarantee.rounds == 2
    assert _states(tmp_path) == ["forfeited", "sent"]


def test_it_trains_as_a_client_of_a_simulation(net: Net, tmp_path: Path) -> None:
    trainer = _trainer(net, tmp_path, noise="seeded", seed=7)
    federation = trainer._federation
    run_ledgers = RunLedgers([Ledger.in_memory(0, trainer.policy)])
    layout = federation.model.layout
    task = Task(client=0, round=1, models=federation.model.start[None], layout=layout, answer=layout)
    (answer,) = Simulator(federation, run_ledgers).answer([task])
    assert isinstance(answer, Update)
    done = trainer.fit(round=1)
    assert torch.equal(torch.cat([part.flatten() for part in done.update.values()]), answer.vector)
    assert run_ledgers.ledgers[0].spent() == done.guarantee.epsilon_spent
    assert any("reproducible from the seed" in text for text in done.guarantee.not_covered)


def test_weights_come_back_as_they_were_given(net: Net, tmp_path: Path) -> None:
    trainer = _trainer(net, tmp_path, run="study")
    before = net.state_dict()
    named = trainer.fit(before, round=1)
    assert list(named.weights) == list(before)
    assert torch.equal(named.weights["scale"], before["scale"])
    assert torch.equal(named.weights["first.weight"], before["first.weight"])
    assert set(named.update) == {"second.weight", "second.bias"}
    for name, moved in named.update.items():
        assert torch.equal(named.weights[name], before[name] + moved)
    listed = trainer.fit([value.numpy() for value in before.values()], round=1)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(listed.weights, named.weights.values(), strict=True))
    double = trainer.fit({name: value.double() for name, value in before.items()}, round=1)
    assert all(value.dtype == torch.float64 for value in double.weights.values())
    net.load_state_dict(named.weights)


def test_other_weights_are_refused_before_anything_is_charged(net: Net, tmp_path: Path) -> None:
    trainer, state = _trainer(net, tmp_path), net.state_dict()
    for given, words in (
        ({k: v for k, v in state.items() if k != "scale"}, "a state without scale"),
        ({**state, "more": state["scale"]}, "a state with more"),
        ({**state, "second.bias": torch.zeros(4)}, r"second.bias has shape \(4,\); accepted: \(3,\)"),
        ({**state, "scale": torch.tensor([3.0])}, "scale is not trained, and differs"),
        ({**state, "second.bias": torch.full((3,), torch.nan)}, "second.bias contains values that are not finite"),
        (list(state.values())[:2], "found 2 arrays; accepted: the 5"),
        (3, "found int"),
    ):
        with pytest.raises(hush.HushError, match=words):
            trainer.fit(given, round=1)  # type: ignore[arg-type]
    with pytest.raises(hush.HushError, match="round: found 0"):
        trainer.fit(state, round=0)
    assert _states(tmp_path) == []


def test_tied_weights_move_together(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.two(torch.tanh(self.one(x)))))

    net = Tied()
    trainer = _trainer(net, tmp_path)
    done = trainer.fit(net.state_dict(), round=1)
    assert torch.equal(done.weights["one.weight"], done.weights["two.weight"])
    assert not torch.equal(done.weights["one.weight"], net.state_dict()["one.weight"])
    with pytest.raises(hush.HushError, match="are tied"):
        trainer.fit({**done.weights, "two.weight": torch.zeros(4, 4)}, round=2)


def test_the_trained_model_is_better_than_chance(tmp_path: Path) -> None:
    net = nn.Linear(4, 3)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    x, y = _data(600)
    trainer = hush.PrivateTrainer(net, x, y, **_SETTINGS, ledger=tmp_path / "client.ledger")
    weights = net.state_dict()
    for number in (1, 2, 3):
        weights = trainer.fit(weights, round=number).weights
    net.load_state_dict(weights)
    assert float((net(torch.from_numpy(x)).argmax(1).numpy() == y).mean()) > 0.55


def test_batches_and_noise_are_drawn_anew(net: Net, tmp_path: Path) -> None:
    trainer = _trainer(net, tmp_path)
    one, two = (trainer.fit(round=number).update["second.bias"] for number in (1, 2))
    assert not torch.equal(one, two)


def test_rows_belong_to_one_ledger(net: Net, tmp_path: Path) -> None:
    _trainer(net, tmp_path).fit(round=1)
    with pytest.raises(hush.HushError, match=r"rows are covered by .*client\.ledger"):
        _trainer(net, tmp_path, ledger=tmp_path / "fresh.ledger")


def test_arguments_are_named(net: Net, tmp_path: Path) -> None:
    for changed, words in (
        ({"epsilon": 0}, "epsilon: found 0"),
        ({"epsilon": float("inf")}, "epsilon: found inf"),
        ({"delta": 1.5}, "delta: expected a number between 0 and 1"),
        ({"batch_size": 61}, "batch_size: 61"),
        ({"rounds": 0}, "rounds"),
        ({"noise": "none"}, "noise"),
        ({"run": ""}, "run: found ''"),
        ({"ledger": 3}, "ledger: found 3"),
        ({"client": ""}, "client: found ''"),
    ):
        with pytest.raises(hush.HushError, match=words):
            _trainer(net, tmp_path, **changed)
    x, y = _data()
    with pytest.raises(hush.HushError, match="x: holds the rows of 2 clients"):
        hush.PrivateTrainer(net, {"a": (x, y), "b": (x, y)}, ledger=tmp_path / "client.ledger", **_SETTINGS)


def test_persons_are_what_a_trainer_samples_counts_and_protects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    rng = np.random.default_rng(0)
    keys = rng.permutation(np.repeat(np.arange(30), 4))
    x = rng.normal(size=(120, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)

    def trainer(person: object = keys, **more: Any) -> hush.PrivateTrainer:
        return hush.PrivateTrainer(
            nn.Linear(3, 2), x, y, epsilon=1.0, delta=1e-2, rounds=2, batch_size=6, lifetime=3.0,
            ledger=tmp_path / "clinic.ledger", classes=2, person=person, **more,
        )  # fmt: skip

    made = trainer(rows_per_person=2)
    assert (made.facts["num-examples"], made.plan.rate) == (30, 0.2)
    done = made.fit(round=1)
    assert (done.guarantee.unit, done.guarantee.samples) == ("person", 30)
    with pytest.raises(HushError, match=r"unit of privacy: found row, and .* keeps person"):
        trainer(person=None)
    with pytest.raises(HushError, match="training rows were changed"):
        trainer(person=keys // 2)
