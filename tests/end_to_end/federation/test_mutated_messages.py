"""Row 13 against a running federation: registered members send what no honest one would, to a real coordinator."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import torch

from hush.config import parse
from hush.deploy.admin import keys, localhost
from hush.deploy.admin.folders import FederationFolder, open_kit
from hush.deploy.coordinator.exchange import ABSENT
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.transport import messages
from hush.deploy.transport.flower import NodeClient
from hush.deploy.transport.messages import Message
from hush.seeds import rng
from hush.types import HushError
from tests.support.fork_server import Child, ForkServer
from tests.support.live_federation import CLASSES

TOML = """
seed = 5
rounds = {rounds}
quorum = 2
[data]
name = "digits"
clients = {members}
[model]
name = "{model}"
hidden = 4000
[privacy]
budgets = 4.0
noise = "secure"
[local]
batch_size = 16
steps = 1
lr = 0.5
[recipe]
name = "dp-fedavg"
"""
HONEST_ROUNDS = 2


class Bell:
    """Tells liars when a round has closed."""

    def __init__(self, liars: int) -> None:
        self._closed, self._changed = 0, threading.Condition()
        self.pause = max(0.7, liars / 25)

    def ring(self, closed: int) -> None:
        with self._changed:
            self._closed = closed
            self._changed.notify_all()

    def wait(self, number: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed >= number, seconds)


class Liar:
    """A registered member without data: it enrols, agrees, answers well at first, and then never again."""

    def __init__(self, place: FederationFolder, name: str, number: int, bell: Bell) -> None:
        self.name, self.number, self._bell = name, number, bell
        kit = open_kit(place.path / "kits" / name)
        self.key, self.sent, self.going, self.fault = kit.key(), 0, True, ""
        self.line = NodeClient(kit.address, kit.ca(), self.key)
        self._drawn = rng(number, "liar")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self.going = False
        self._thread.join(20)

    def _serve(self) -> None:
        try:
            self.line.open()
            while self.going:
                parcel = self.line.poll(1 << 24)
                if parcel is None:
                    continue
                message = messages.decode(parcel.payload, 1 << 24)
                payload = self._answer(message)
                # What the gate does not let pass never arrives, which is the point.
                with contextlib.suppress(HushError):
                    self.line.reply(parcel, payload)
                self._bell.wait(message.fields.get("round", 0), 20.0)
                time.sleep(self._bell.pause * float(self._drawn.random()))
        except Exception as error:
            self.fault = repr(error)
        finally:
            self.line.close()

    def _answer(self, message: Message) -> bytes:
        run = message.fields["run"]
        if message.kind == "propose":
            return keys.signed(self.key, messages.encode(Message("approved", {"run": run, "head": ""})))
        if message.kind == "enrol":
            fact = RosterEntry(name=self.name, epsilon=4.0, delta=1e-5, relation="add-remove", samples=60)
            return keys.signed(self.key, messages.encode(Message("facts", {"run": run, **asdict(fact), "head": ""})))
        if message.kind == "begin":
            return keys.signed(self.key, messages.encode(Message("ready", {"run": run, "head": ""})))
        good = self._good(message)
        if message.fields["round"] <= HONEST_ROUNDS:
            return keys.signed(self.key, messages.encode(good))
        self.sent += 1
        return mutant(good, self.key, self._drawn)

    def _good(self, message: Message) -> Message:
        fields = {"run": message.fields["run"], "round": message.fields["round"]}
        asked = messages.digest(Message("task", fields, message.tensors))
        more = {"client": self.name, "serial": fields["round"], "head": "1:00", "asked": asked, "choice": None}
        return Message("update", {**fields, **more}, {"vector": torch.zeros(message.tensors["models"].shape[1])})


def mutant(good: Message, key: keys.PrivateKey, drawn: np.random.Generator) -> bytes:
    """A payload that differs from a good one in its bytes, its words, its numbers, its signature or its size."""
    whole = messages.encode(good)
    kind = int(drawn.integers(8))
    if kind == 0:
        return _flipped(keys.signed(key, whole), drawn, 0, len(whole))
    if kind == 1:
        return [b"", b"\0", keys.signed(keys.new_key(), whole), keys.signed(key, b""), drawn.bytes(500)][
            int(drawn.integers(5))
        ]
    if kind == 2:
        return keys.signed(key, _numbers(good, drawn))
    if kind == 3:
        return keys.signed(key, messages.encode(_words(good, drawn)))
    if kind == 4:
        return keys.signed(key, whole[: int(drawn.integers(len(whole)))])
    if kind == 5:
        return keys.signed(key, whole + drawn.bytes(int(drawn.integers(1, 100_000))))
    if kind == 6 and drawn.random() < 0.02:
        return keys.signed(key, whole + bytes(6 << 20))
    while True:
        end = 8 + int.from_bytes(whole[:8], "little")
        changed = _flipped(whole, drawn, 0, 8 if kind == 6 else end)
        if not _the_same(changed, good):
            return keys.signed(key, changed)


def _flipped(content: bytes, drawn: np.random.Generator, begin: int, end: int) -> bytes:
    changed = bytearray(content)
    for place in drawn.integers(begin, end, size=int(drawn.integers(1, 6))):
        changed[int(place)] ^= int(drawn.integers(1, 256))
    return bytes(changed) if bytes(changed) != content else content[:-1]


def _the_same(content: bytes, good: Message) -> bool:
    """Whether a change left a message that says the same, but for what only its sender can know of its ledger."""
    try:
        message = messages.decode(content, len(content))
    except HushError:
        return False
    kept = [key for key in good.fields if key not in ("serial", "head")]
    return message.kind == "update" and all(message.fields.get(key) == good.fields[key] for key in kept)


def _numbers(good: Message, drawn: np.random.Generator) -> bytes:
    vector = good.tensors["vector"]
    bad = vector.clone()
    bad[int(drawn.integers(len(bad)))] = [torch.nan, torch.inf, -torch.inf, 1e30][int(drawn.integers(4))]
    choices: list[dict[str, torch.Tensor]] = [
        {"vector": bad}, {"vector": vector[:-1].clone()}, {"vector": torch.cat([vector, bad])}, {"other": vector},
        {"vector": vector.double()}, {"vector": vector.half()}, {"vector": vector.long()}, {"vector": vector[None]},
        {"vector": vector, "more": vector[:1].clone()}, {"vector": vector + 1e4}, {},
    ]  # fmt: skip
    return messages.encode(Message(good.kind, good.fields, choices[int(drawn.integers(len(choices)))]))


def _words(good: Message, drawn: np.random.Generator) -> Message:
    fields: dict[str, Any] = dict(good.fields)
    changes: list[dict[str, Any]] = [
        {"run": "0" * 32}, {"round": fields["round"] - 1}, {"round": fields["round"] + 1},
        {"round": "x"}, {"round": None},
        {"client": "m000"}, {"client": 0}, {"serial": "one"}, {"serial": None}, {"choice": []}, {"choice": 0.1},
        {"choice": 0}, {"choice": "x"}, {"choice": True}, {"asked": "0" * 64}, {"asked": None},
        {"loss": 0.3}, {"run": [[[[[[]]]]]]}, {"round": 10**30}, {"round": -1}, {"round": True}, {"serial": []},
    ]  # fmt: skip
    at = int(drawn.integers(len(changes) + 3))
    if at < len(changes):
        return Message(good.kind, {**fields, **changes[at]}, good.tensors)
    if at == len(changes):
        return Message(good.kind, {key: fields[key] for key in list(fields)[1:]}, good.tensors)
    return Message(["facts", "task"][at - len(changes) - 1], fields, good.tensors)


@contextlib.contextmanager
def under_attack(
    path: Path, fork_server: ForkServer, liars: int, rounds: int, model: str
) -> Iterator[tuple[FederationFolder, Child, Child]]:
    text = TOML.format(members=liars + 2, rounds=rounds, model=model)
    (path / "run.toml").write_text(text)
    # Fifty members on two processors take their time while they are honest.
    times = {"deadline": 120.0, "patience": 3.0 if liars < 10 else 10.0, "gather": 60.0}
    place = localhost.make(path / "fed", parse(tomllib.loads(text)), times=times)
    link = fork_server.start(["federation", "serve", place.path], place.server / "superlink.log")
    link.wait_for("ready at", 60)
    for name in list(place.members())[:2]:
        kit = place.path / "kits" / name
        fork_server.start(["federation", "join", kit, "--data", kit / "data.npz"], kit / "log").wait_for(
            "is online", 60
        )
    words = ["federation", "run", place.path, path / "run.toml", "--test", place.path / "test.npz"]
    coordinator = fork_server.start(
        [*words, "--out", place.runs / "run", "--classes", CLASSES], place.server / "run.log"
    )
    yield place, link, coordinator


@pytest.mark.parametrize(
    ("liars", "mutants", "model", "books"),
    [(6, 30, "logreg", 16), pytest.param(50, 10_000, "logreg", 64, marks=pytest.mark.soak),
     pytest.param(4, 150, "mlp", 4, marks=pytest.mark.soak)],
)  # fmt: skip
def test_mutants_from_members_cost_their_round_and_nothing_else(
    tmp_path: Path, parent: ForkServer, liars: int, mutants: int, model: str, books: int
) -> None:
    """`books`: megabytes for what a run writes down, two hundred rounds of fifty members in the longest."""
    # A few more, for those who come too late.
    rounds = HONEST_ROUNDS + math.ceil(1.03 * mutants / liars)
    with (
        parent.tidy() as fork_server,
        under_attack(tmp_path, fork_server, liars, rounds, model) as (place, link, coordinator),
    ):
        bell = Bell(liars)
        lying = [Liar(place, name, number, bell) for number, name in enumerate(list(place.members())[2:])]
        try:
            bell.ring(0)
            coordinator.wait_for("round 1:", 120)
            bell.ring(1)
            coordinator.wait_for(f"round {HONEST_ROUNDS}:", 120)
            before = {child.pid: child.memory("VmHWM") for child in (link, coordinator)}
            began, after = time.monotonic(), before
            while not (place.runs / "run" / "result.json").exists():
                assert coordinator.alive(), coordinator.said()[-2000:]
                assert not any(each.fault for each in lying), [each.fault for each in lying]
                with contextlib.suppress(OSError, StopIteration):
                    after = {child.pid: child.memory("VmHWM") for child in (link, coordinator)}
                bell.ring((place.runs / "run" / "rounds.jsonl").read_bytes().count(b"\n"))
                time.sleep(0.1)
            took = time.monotonic() - began
        finally:
            bell.ring(rounds)  # nobody waits any more for the last round to close
            for each in lying:
                each.leave()
        assert link.alive()
    lines = [json.loads(line) for line in (place.runs / "run" / "rounds.jsonl").read_text().splitlines()]
    sent = sum(each.sent for each in lying)
    reasons = [why for line in lines[HONEST_ROUNDS:] for client, why in line["refused"].items()]
    seen = sum(why not in ABSENT for why in reasons)
    size = 4 * sum(value.numel() for value in _model(place).values())
    cap = messages.ROOM + int(1.1 * size)
    growth = [after[child.pid] - before[child.pid] for child in (link, coordinator)]
    print(f"{sent} mutants, {seen} looked at, {took:.0f} s, cap {cap}, growth of SuperLink and coordinator {growth}")
    assert len(lines) == rounds
    assert all(len(line["weights"]) == liars + 2 for line in lines[:HONEST_ROUNDS])
    assert all(set(line["weights"]) == {"0", "1"} for line in lines[HONEST_ROUNDS:])
    assert sent >= mutants
    # The rest were too long for the gate before the SuperLink, or came after their round had closed.
    assert seen >= 0.95 * mutants
    # Messages of all members lie in the SuperLink at once; the coordinator has one of them before it at a time.
    assert growth[1] < 2 * cap + (books << 20)
    assert growth[0] < 2 * cap * (liars + 2) + (64 << 20)
    assert "Traceback" not in coordinator.said()


def _model(place: FederationFolder) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(place.runs / "run" / "model.safetensors")
