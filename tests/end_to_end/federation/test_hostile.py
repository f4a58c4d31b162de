"""Coordinators and members that are up to no good, over a real SuperLink: refusals that cost nothing, capped pulls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import torch
from safetensors.torch import load_file

from hush.config import Config
from hush.deploy.admin import audit_log, keys, localhost
from hush.deploy.coordinator.exchange import OFFLINE, Exchange
from hush.deploy.coordinator.status import federation_status
from hush.deploy.member.process import Node
from hush.deploy.shared.protocol import PROTOCOL, Version, code_hash
from hush.deploy.shared.refusal import MEANING, RefusalCode
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.shared.run_spec import assemble
from hush.deploy.transport import messages
from hush.deploy.transport.flower import CoordinatorClient
from hush.deploy.transport.messages import EncodedMessage, Message
from hush.privacy.ledger.statement import export
from hush.types import HushError
from tests.support.fork_server import ForkServer
from tests.support.live_federation import CLASSES, LiveFederation, config, resigned

SHAPE, SIZE = [1, 8, 8], 650


def rounds(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


class HostileCoordinator:
    """A coordinator that says what it likes to one member, over the wire."""

    def __init__(self, live: LiveFederation, hub: CoordinatorClient, name: str = "m000") -> None:
        self.name, self.place = name, live.place
        self._exchange = Exchange(hub, {name: live.place.members()[name]}, live.place.settings)
        self._public = keys.load_public(live.place.members()[name], name)
        self.path = live.place.path / "kits" / name

    def ask(self, kind: str, tensors: dict[str, torch.Tensor] | None = None, **fields: Any) -> Message:
        message = EncodedMessage(messages.encode(Message(kind, {**fields, "head": ""}, tensors or {})))
        (reply,) = self._exchange.ask({self.name: message}, 1 << 20, 1).values()
        assert not isinstance(reply, HushError), reply
        return messages.decode(keys.opened(self._public, reply), len(reply))

    def begin(self, offer: Config, run: str, code: str | None = None) -> Message:
        with np.load(self.path / "data.npz") as archive:
            rows = len(archive["y"])
        facts = [
            asdict(RosterEntry(name=name, epsilon=2.0, delta=1e-4, relation="add-remove", samples=rows))
            for name in ("m000", "m001", "m002")
        ]
        words = {"run": run, "config": offer.model_dump(), "code": code or code_hash(), "client": 0, "roster": facts}
        words["centre"] = ""
        return self.ask("begin", schema={"shape": SHAPE, "classes": CLASSES}, **words)  # type: ignore[arg-type]

    def task(self, run: str, number: int, models: torch.Tensor) -> Message:
        return self.ask("task", {"models": models}, run=run, round=number)

    def ledger(self) -> list[str]:
        # That an answer was sent is noted once it is out, which may be after it has come in here.
        return [row["hash"] for row in export(self.path / "ledger.db") if row["kind"] != "SENT"]


@contextmanager
def hostile_coordinator(live: LiveFederation) -> Iterator[HostileCoordinator]:
    place = live.place
    hub = CoordinatorClient(place.settings.address, place.ca(), place.secret())
    hub.open()
    try:
        yield HostileCoordinator(live, hub)
    finally:
        hub.close()


def limited(live: LiveFederation, text: str) -> Callable[[], None]:
    """Tighten the policy of the first member; what is returned undoes it."""
    policy = live.place.path / "kits" / "m000" / "policy.toml"
    before = policy.read_text()
    policy.write_text(before.replace("max_rate = 1.0", text))
    return lambda: policy.write_text(before)  # type: ignore[return-value]


def test_a_malicious_coordinator_gets_refusals_and_the_ledger_does_not_move(live: LiveFederation) -> None:
    undo = limited(live, "max_rate = 0.5")
    try:
        with live.members(), hostile_coordinator(live) as hostile:
            honest = config(rounds=4)
            begun = hostile.begin(honest, "fair")
            assert begun.kind == "ready", begun.fields
            assert hostile.task("fair", 1, torch.zeros(1, SIZE)).kind == "update"
            before = hostile.ledger()
            less = {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "spread": "equal-noise", "noise": 0.01}}
            work = {"batch_size": 64, "lr": 0.5}
            refused = {
                "other weights": hostile.task("fair", 1, torch.ones(1, SIZE)),
                "a round that is none": hostile.task("fair", 9, torch.zeros(1, SIZE)),
                "another code": hostile.begin(honest, "evil1", code="0" * 64),
                "a higher rate": hostile.begin(config(rounds=4, local={**work, "batch_size": 400}), "evil2"),
                "less noise": hostile.begin(config(rounds=4, recipe=less), "evil3"),
                "more steps": hostile.begin(config(rounds=4, local={**work, "steps": 20_000}), "evil4"),
                "no noise": hostile.begin(config(rounds=4, recipe={"name": "fedavg"}), "evil5"),
                "more rounds of the same run": hostile.begin(config(rounds=5), "fair"),
                "a run that nobody agreed to": hostile.task("evil2", 1, torch.zeros(1, SIZE)),
            }
            codes = {what: (message.kind, message.fields.get("code")) for what, message in refused.items()}
            assert all(kind == "no" and code in set(RefusalCode) for kind, code in codes.values()), codes
            assert hostile.ledger() == before
            again = hostile.task("fair", 1, torch.zeros(1, SIZE))
            assert again.kind == "update"
            assert hostile.ledger() == before
            notes = audit_log.read(hostile.path / "audit.jsonl")
        assert sum(note["event"] == "refused" for note in notes) >= len(refused)
    finally:
        undo()


def test_a_member_whose_rows_do_not_fit_stays_out_and_the_run_goes_on(tmp_path: Path, parent: ForkServer) -> None:
    # A federation of its own: a ledger that covers other rows would not let this member start.
    with LiveFederation(tmp_path / "fed").up(parent) as live:
        np.savez(live.place.path / "kits" / "m002" / "data.npz", x=np.zeros((40, 7)), y=np.arange(40) % 10)
        with live.members():
            seen = federation_status(live.place)
            assert (seen["up"], set(seen["members"].values())) == (True, {"online"})
            out = live.out()
            coordinator = live.coordinator()
            result = coordinator.run(config(rounds=1), out)
    (note,) = [
        line
        for line in audit_log.read(coordinator.log.path)
        if line["event"] == "not enrolled" and line["run"] == _run(out)
    ]
    assert (note["member"], note["reason"]) == ("m002", MEANING[RefusalCode.SCHEMA])
    assert (result.rounds, len(result.guarantees)) == (1, 2)


def test_a_run_that_too_few_agree_to_is_an_error_that_says_why(live: LiveFederation) -> None:
    undo = limited(live, "max_rate = 0.01")
    try:
        with live.members() as members:
            before = {name: each.charges() for name, each in members.items()}
            with pytest.raises(
                HushError,
                match=r"enrolment: 2 of 3 members take part, quorum 3; m000: the run exceeds the limits of its policy",
            ):
                live.coordinator().run(config(rounds=1, quorum=3), live.out())
            assert {name: each.charges() for name, each in members.items()} == before
    finally:
        undo()


def test_members_that_refuse_to_go_on_end_no_run(live: LiveFederation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator with another protocol than its members, as after half an upgrade: an error, and the run stays."""
    run, out = config(rounds=3, quorum=2), live.out()
    with live.members():

        def stop(record: Any, left: Any) -> None:
            raise HushError("enough")

        with pytest.raises(HushError, match="enough"):
            live.coordinator().run(run, out, progress=stop)
        newer = Version(PROTOCOL + 1, "0" * 64)
        monkeypatch.setattr("hush.deploy.coordinator.run.protocol.own", lambda: newer)
        with pytest.raises(
            HushError,
            match=r"begin: 0 of 3 members agree.*have different protocol versions.*--resume",
        ):
            live.coordinator().run(run, out, resume=True)
        monkeypatch.undo()
        assert len(rounds(out)) == 1
        result = live.coordinator().run(run, out, resume=True)
    assert result.rounds == 3
    assert all(len(line["weights"]) == 3 for line in rounds(out))


def test_who_claims_too_many_rows_or_sends_hostile_text_at_enrolment_stays_out_alone(live: LiveFederation) -> None:
    """The reasons in the trail are the coordinator's own, with whatever came over the wire escaped."""
    lies: dict[str, dict[str, Any]] = {
        "m001": {"samples": 10**7},
        "m002": {"relation": "\x1b[2J\nround 1: updates from all"},
    }

    def lying(node: Node, name: str) -> Callable[[bytes], tuple[bytes, Any]]:
        honest = node.handle

        def handle(content: bytes) -> tuple[bytes, Any]:
            payload, receipt = honest(content)
            if messages.kind_of(content) == "enrol":
                change = lies[name]
                payload = resigned(
                    live.place, name, payload, lambda sent: replace(sent, fields={**sent.fields, **change})
                )
            return payload, receipt

        return handle

    with live.members() as members:
        for name in lies:
            members[name].node.handle = lying(members[name].node, name)  # type: ignore[assignment,method-assign]
        out, coordinator = live.out(), live.coordinator()
        result = coordinator.run(config(rounds=1, quorum=1, recipe={"name": "dp-fedavg"}), out)
    assert (result.rounds, len(result.guarantees)) == (1, 1)
    notes = [note for note in audit_log.read(coordinator.log.path) if note["event"] == "not enrolled"]
    reasons = {note["member"]: note["reason"] for note in notes if note["run"] == _run(out)}
    assert set(reasons) == set(lies)
    assert "10000000 rows, more than max_rows = 1e+06" in reasons["m001"]
    assert all(reason.isprintable() for reason in reasons.values()), reasons


def _run(out: Path) -> str:
    return str(json.loads((out / "federation.json").read_text())["run"])


def test_a_round_without_a_quorum_ends_at_its_deadline_and_moves_nothing(live: LiveFederation) -> None:
    with live.members() as members:
        coordinator = live.coordinator()
        out = live.out()

        def silence(record: Any, left: Any) -> None:
            if record.round == 1:
                members["m001"].leave()
                coordinator._exchange._settings = replace(live.place.settings, deadline=4.0)

        coordinator.run(config(rounds=2, quorum=3), out, progress=silence)
    lines = rounds(out)
    assert [sorted(line["weights"]) for line in lines] == [["0", "1", "2"], []]
    assert lines[1]["refused"]["1"] == OFFLINE


def test_answers_that_the_gate_refuses_close_no_round_on_a_slow_member(live: LiveFederation) -> None:
    """Well-formed and signed, but too long, or choosing without being asked: neither goes toward the quorum."""

    def long(_: bytes, payload: bytes) -> bytes:
        return resigned(
            live.place, "m001", payload, lambda sent: replace(sent, tensors={"vector": sent.tensors["vector"] + 1e4})
        )

    def choosing(_: bytes, payload: bytes) -> bytes:
        return resigned(live.place, "m002", payload, lambda sent: replace(sent, fields={**sent.fields, "choice": 0}))

    def slow(_: bytes, payload: bytes) -> bytes:
        time.sleep(4.0)
        return payload

    with live.members(m000=slow, m001=long, m002=choosing):
        coordinator = live.coordinator()
        coordinator._exchange._settings = replace(live.place.settings, patience=1.0)
        out = live.out()
        coordinator.run(config(rounds=1, quorum=1, recipe={"name": "dp-fedavg"}), out)
    (line,) = rounds(out)
    assert list(line["weights"]) == ["0"]
    assert "norm exceeds" in line["refused"]["1"]
    assert "no choice was requested" in line["refused"]["2"]


def test_a_fraction_beyond_what_a_plan_can_reach_is_refused(live: LiveFederation) -> None:
    """An adaptive clip follows the members' noised fractions: no one of them leads it."""

    def lie(_: bytes, payload: bytes) -> bytes:
        far = {"releases.clip quantile": torch.full((1,), 1e6, dtype=torch.float64)}
        return resigned(live.place, "m001", payload, lambda sent: replace(sent, tensors={**sent.tensors, **far}))

    adaptive = {"name": "dp-fedavg", "protect": {"rule": "dp-sgd", "clip": "adaptive"}}
    with live.members(m001=lie):
        out = live.out()
        live.coordinator().run(config(rounds=2, recipe=adaptive), out)
    for line in rounds(out):
        assert sorted(line["weights"]) == ["0", "2"]
        assert "clip quantile exceeds" in line["refused"]["1"]


@pytest.mark.parametrize("scale", [1.0, pytest.param(1e3, marks=pytest.mark.soak)])
def test_a_poisoned_update_is_capped_by_its_senders_plan(live: LiveFederation, scale: float) -> None:
    """Row 16 over the wire: a sign-flipped update pulls no further than its bound times its weight."""

    def flip(message: Message) -> Message:
        return replace(message, tensors={"vector": -scale * message.tensors["vector"]})

    def twist(_: bytes, payload: bytes) -> bytes:
        return resigned(live.place, "m002", payload, flip)

    run = config(rounds=1, recipe={"name": "dp-fedavg"})
    models = []
    for twists in ({}, {"m002": twist}):
        with live.members(**twists):
            out = live.out()
            live.coordinator().run(run, out)
        models.append(torch.cat([value.flatten() for value in load_file(out / "model.safetensors").values()]))
    (line,) = rounds(out)
    facts = [RosterEntry(**fact) for fact in json.loads((out / "federation.json").read_text())["facts"]]
    bound = assemble(run, facts, localhost.coordinator(live.place, CLASSES).test).terms.bounds[0][2]
    moved = float((models[1] - models[0]).norm())
    if scale == 1.0:
        assert 0 < moved <= 2 * line["weights"]["2"] * bound
    else:
        assert "norm exceeds" in line["refused"]["2"]
        assert moved <= 2 * bound / 3 + 1e-3
