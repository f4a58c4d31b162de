"""Strategy, mod and trainer together, through Flower's own messages, client apps and strategy loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import hush
from hush.flower import HushStrategy, ledger_mod, train_reply
from hush.privacy.ledger.ledger import inspect

_EPSILON = (1.0, 2.0, 4.0)
_ROWS, _BATCH, _ROUNDS = 90, 15, 3


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes messages: in Flower's processes its runtime says so."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def _rows(client: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(client)
    y = np.arange(_ROWS) % 3
    return (rng.normal(size=(_ROWS, 4)) + 2.0 * np.eye(4)[y]).astype(np.float32), y


def _net() -> nn.Module:
    net = nn.Linear(4, 3)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    return net


def _trainer(client: int, path: Path, **changed: Any) -> hush.PrivateTrainer:
    settings = {
        "epsilon": _EPSILON[client], "delta": 1e-5, "rounds": _ROUNDS, "batch_size": _BATCH, "lr": 0.5, "classes": 3,
        "ledger": path / f"client-{client}.ledger",
    }  # fmt: skip
    return hush.PrivateTrainer(_net(), *_rows(client), **{**settings, **changed})


def _app(path: Path, train: Callable[[Message, Context], Message] | None = None, **mod: Any) -> ClientApp:
    app = ClientApp(
        mods=[ledger_mod(lambda context: path / f"client-{context.node_config['partition-id']}.ledger", **mod)]
    )

    def ordinary(message: Message, context: Context) -> Message:
        return train_reply(_trainer(int(context.node_config["partition-id"]), path), message)

    app.train()(train or ordinary)
    app.evaluate()(train or ordinary)
    return app


@dataclass
class InProcess(Grid):  # type: ignore[misc]
    """Flower's grid with the client apps in this process: messages are Flower's own."""

    app: ClientApp
    run: int = 1
    nodes: int = len(_EPSILON)
    replies: list[Message] = field(default_factory=list)
    change: Callable[[int, Message], Message] = lambda node, reply: reply

    def set_run(self, run_id: int) -> None:
        self.run_id = run_id

    def get_node_ids(self) -> Iterable[int]:
        return [100 + number for number in range(self.nodes)]

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = [self.change(m.metadata.dst_node_id, self.answer(m)) for m in messages]
        # Flower samples nodes in any order, and asks for evaluation with no messages.
        self.replies = sorted(replies, key=lambda reply: reply.metadata.src_node_id) or self.replies
        return replies

    def answer(self, message: Message) -> Message:
        message.metadata.__dict__["_run_id"] = self.run
        number = message.metadata.dst_node_id - 100
        context = Context(self.run, number, {"partition-id": number, "num-partitions": self.nodes}, RecordDict(), {})
        return self.app(message, context)


def _message(state: dict[str, torch.Tensor], number: int = 1, kind: str = "train", node: int = 100) -> Message:
    record = RecordDict({"arrays": ArrayRecord(state), "config": ConfigRecord({"server-round": number})})
    return Message(content=record, dst_node_id=node, message_type=kind)


def _start() -> ArrayRecord:
    return ArrayRecord(_net().state_dict())


def _accuracy(arrays: ArrayRecord) -> float:
    net = _net()
    net.load_state_dict(arrays.to_torch_state_dict())
    x, y = _rows(7)
    return float((net(torch.from_numpy(x)).argmax(1).numpy() == y).mean())


def test_three_rounds_charge_what_the_plan_says_and_a_second_run_is_refused(tmp_path: Path) -> None:
    grid, strategy = InProcess(_app(tmp_path)), HushStrategy("robust-hdp")
    result = strategy.start(grid, _start(), num_rounds=_ROUNDS)
    assert _accuracy(result.arrays) > 0.5
    assert [sorted(record.weights) for record in strategy.records] == [[0, 1, 2]] * _ROUNDS
    assert len(grid.replies) == len(_EPSILON)
    for client, reply in enumerate(grid.replies):
        planned = hush.plan(epsilon=_EPSILON[client], delta=1e-5, samples=_ROWS, batch=_BATCH, rounds=_ROUNDS)
        card = reply.content["guarantee"]
        assert card["epsilon-spent"] == planned["epsilon"] <= _EPSILON[client]
        assert card["epsilon-left"] == _EPSILON[client] - planned["epsilon"]
        assert card["delta"] == 1e-5
        assert any("number of training rows" in text for text in card["not-covered"])
        assert len(inspect(tmp_path / f"client-{client}.ledger")[1].charges) == _ROUNDS
    again = InProcess(_app(tmp_path), run=2)
    second = HushStrategy("robust-hdp")
    before = _start()
    after = second.start(again, before, num_rounds=_ROUNDS)
    assert len(again.replies) == len(_EPSILON)
    assert all(reply.has_error() and "budget spent" in reply.error.reason for reply in again.replies)
    assert second.records == []
    assert len(after.arrays) == 0 or _accuracy(after.arrays) == _accuracy(before)
    assert len(inspect(tmp_path / "client-0.ledger")[1].charges) == _ROUNDS


def test_flowers_own_strategy_can_be_used_as_well(tmp_path: Path) -> None:
    grid = InProcess(_app(tmp_path))
    result = FedAvg(fraction_evaluate=0.0).start(grid, _start(), num_rounds=1)
    assert _accuracy(result.arrays) > 1 / 3
    assert all(len(inspect(tmp_path / f"client-{c}.ledger")[1].charges) == 1 for c in range(3))


def test_a_repeated_message_is_answered_alike_and_charged_once(tmp_path: Path) -> None:
    grid = InProcess(_app(tmp_path))
    one, two = (grid.answer(_message(_net().state_dict())) for _ in range(2))
    first, second = (reply.content["arrays"].to_torch_state_dict() for reply in (one, two))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert one.content["guarantee"]["epsilon-spent"] == two.content["guarantee"]["epsilon-spent"]
    assert len(inspect(tmp_path / "client-0.ledger")[1].charges) == 1
    other = {name: value + 1 for name, value in _net().state_dict().items()}
    assert grid.answer(_message(other)).has_error()


@pytest.mark.parametrize(
    "leak",
    ["another array", "a metric", "another fact", "weights without a charge", "a config record", "an old answer"],
)
def test_nothing_leaves_that_the_ledger_did_not_release(tmp_path: Path, leak: str) -> None:
    def train(message: Message, context: Context) -> Message:
        if leak == "weights without a charge":
            return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)
        reply = train_reply(_trainer(0, tmp_path), message)
        if leak == "another array":
            reply.content["more"] = ArrayRecord([_rows(0)[0]])
        if leak == "a metric":
            reply.content["metrics"]["loss"] = 0.5
        if leak == "another fact":
            reply.content["metrics"]["num-examples"] = 17
        if leak == "a config record":
            reply.content["note"] = ConfigRecord({"row": str(_rows(0)[0][0])})
        if leak == "an old answer":
            reply.content["arrays"] = ArrayRecord({name: value + 1 for name, value in _net().state_dict().items()})
        return reply

    reply = InProcess(_app(tmp_path, train)).answer(_message(_net().state_dict()))
    assert reply.has_error()
    assert reply.error.reason == "hush: the client refused; its log says why"


def test_metrics_that_are_declared_public_leave_and_are_named(tmp_path: Path) -> None:
    def train(message: Message, context: Context) -> Message:
        reply = train_reply(_trainer(0, tmp_path), message)
        reply.content["metrics"]["seconds"] = 0.5
        return reply

    reply = InProcess(_app(tmp_path, train, public=["seconds"])).answer(_message(_net().state_dict()))
    assert reply.content["metrics"]["seconds"] == 0.5
    assert "seconds: a metric that leaves without noise" in reply.content["guarantee"]["not-covered"]


def test_the_card_names_all_that_the_trainer_does_not_cover(tmp_path: Path) -> None:
    def train(message: Message, context: Context) -> Message:
        return train_reply(_trainer(0, tmp_path, classes=None, noise="seeded"), message)

    reply = InProcess(_app(tmp_path, train)).answer(_message(_net().state_dict()))
    named = " ".join(reply.content["guarantee"]["not-covered"])
    assert "class" in named
    assert "reproducible from the seed" in named
    assert "losses, metrics and numbers of rows" in named


def test_other_messages_and_errors_of_the_app_tell_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train(message: Message, context: Context) -> Message:
        raise ValueError("row 17 is ill")

    grid = InProcess(_app(tmp_path, train))
    assert (
        "evaluate messages are not answered" in grid.answer(_message(_net().state_dict(), kind="evaluate")).error.reason
    )
    failed = grid.answer(_message(_net().state_dict()))
    assert "row 17" not in failed.error.reason
    assert "row 17" in caplog.text
    assert grid.answer(_message(_net().state_dict(), number=0)).has_error()


def test_a_policy_of_the_mod_holds_for_the_ledger(tmp_path: Path) -> None:
    policy = hush.Policy(epsilon=0.8, delta=1e-5)
    grid = InProcess(_app(tmp_path, policy=policy))
    # The trainer asks for more than the mod's policy allows.
    assert grid.answer(_message(_net().state_dict())).has_error()
    assert inspect(tmp_path / "client-0.ledger")[1].terms.policy == policy

    def train(message: Message, context: Context) -> Message:
        return train_reply(_trainer(0, tmp_path, epsilon=0.5), message)

    grid = InProcess(_app(tmp_path, train, policy=policy))
    assert grid.answer(_message(_net().state_dict())).content["guarantee"]["epsilon-budget"] == 0.8


def test_replies_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    def change(node: int, reply: Message) -> Message:
        if node == 100:
            arrays = reply.content["arrays"].to_torch_state_dict()
            reply.content["arrays"] = ArrayRecord({name: value * spoil for name, value in arrays.items()})
        if node == 101 and facts:
            reply.content["metrics"] = MetricRecord({**reply.content["metrics"], **facts})
        return reply

    for spoil, facts, words in (
        (float("nan"), {}, "not finite"),
        (1e6, {}, "its norm exceeds"),
        (1.0, {"epsilon": float("nan")}, None),
        (1.0, {"batch-size": 1000}, None),
    ):
        strategy = HushStrategy()
        path = tmp_path / f"{spoil}-{len(facts)}-{next(iter(facts), '')}"
        strategy.start(InProcess(_app(path), change=change), _start(), num_rounds=1)
        (record,) = strategy.records
        if words is not None:
            assert sorted(record.weights) == [1, 2]
            assert words in record.refused[0]
        else:
            # The one whose facts are no facts is no member.
            assert len(record.weights) == 2


def test_facts_are_fixed_in_the_first_round(tmp_path: Path) -> None:
    seen = []

    def change(node: int, reply: Message) -> Message:
        seen.append(node)
        if node == 102 and seen.count(node) == 2:
            reply.content["metrics"]["epsilon"] = 100.0
        return reply

    strategy = HushStrategy("weiavg")
    strategy.start(InProcess(_app(tmp_path), change=change), _start(), num_rounds=2)
    assert [sorted(record.weights) for record in strategy.records] == [[0, 1, 2], [0, 1]]
    assert strategy.records[1].refused[2] == "its facts differ from those of the first round"


def test_weights_are_those_of_the_recipe(tmp_path: Path) -> None:
    strategy = HushStrategy("weiavg", max_weight=1.0)
    grid = InProcess(_app(tmp_path))
    result = strategy.start(grid, _start(), num_rounds=1)
    total = sum(_EPSILON)
    assert strategy.records[0].weights == pytest.approx({c: e / total for c, e in enumerate(_EPSILON)})
    states = [reply.content["arrays"].to_torch_state_dict() for reply in grid.replies]
    expected = sum(e / total * state["weight"] for e, state in zip(_EPSILON, states, strict=True))
    torch.testing.assert_close(result.arrays.to_torch_state_dict()["weight"], expected)
    assert any("budget" in text for text in strategy.not_covered())


def test_an_averaging_step_releases_its_average(tmp_path: Path) -> None:
    strategy = HushStrategy({"weight": "balanced", "step": {"rule": "ema", "decay": 0.9}})
    result = strategy.start(InProcess(_app(tmp_path)), _start(), num_rounds=2)
    training = strategy._state.models[0]
    released = torch.cat([v.flatten() for v in result.arrays.to_torch_state_dict().values()])
    assert not torch.equal(released, training)
    assert torch.equal(released, strategy._state.released[0])


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("rc-dpfl", "trains several models"),
        ("dp-scaffold", r"sends clients more than the model \(drift\)"),
        ("fedavg", "says how clients protect their rows"),
        ("hush", "says how clients protect their rows"),
        ("minimum", "says how clients protect their rows"),
        ("pfa-plus", "encode their updates"),
        ({"weight": "impact"}, "impact factors"),
        ({"weight": {"rule": "samples", "counts": "noisy"}}, "more than their weights"),
        ("robust", "unknown recipe"),
    ],
)
def test_recipes_that_need_more_than_weights_are_refused(recipe: Any, words: str) -> None:
    with pytest.raises(hush.HushError, match=words):
        HushStrategy(recipe)
