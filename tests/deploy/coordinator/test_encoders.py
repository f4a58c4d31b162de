"""Encoders between machines: members compute features by themselves, with the same weights or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import torch
from safetensors.torch import load_file

from hush.config import Config, parse
from hush.deploy.member.fetch import needs_code
from hush.deploy.member.policy import check_imports
from hush.deploy.member.process import Node
from hush.deploy.shared.run_spec import check_objective, with_fingerprint
from hush.deploy.transport.messages import Message
from hush.engines import setup, simulator
from hush.types import HushError
from tests.support import encoders
from tests.support.unreliable_members import UnreliableMembers, without_pauses

NAME = "tests.support.encoders:wide"


def config(**model: Any) -> Config:
    return parse(
        {
            "seed": 5, "rounds": 2, "data": {"name": "digits", "clients": 3}, "max_weight": 1.0,
            "privacy": {"budgets": [2.0, 4.0, 8.0], "delta": 1e-4, "noise": "seeded"},
            "local": {"batch_size": 64, "lr": 0.5}, "recipe": {"name": "weiavg"},
            "model": {"encoder": NAME, "head": "linear", **model},
        }
    )  # fmt: skip


def accepting(made: UnreliableMembers, *names: str) -> None:
    for node in made.nodes.values():
        accept = node.policy.accept.model_copy(update={"models": [*names]})
        node.policy = node.policy.model_copy(update={"accept": accept})


def test_a_federation_computes_what_its_simulation_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    wanted = config()
    made = UnreliableMembers(tmp_path / "federation", wanted)
    accepting(made, NAME)
    coordinator, _ = made.coordinator()
    coordinator.run(wanted, made.place.runs / "run")
    made.close()
    simulated = simulator.run(setup.prepare(wanted))
    stored = load_file(made.place.runs / "run" / "model.safetensors")
    found = torch.cat([stored[name].flatten() for name in simulated.federation.model.layout.names])
    assert len(found) == 10 * 81 and torch.allclose(found, simulated.models[0], atol=1e-5)


def test_members_with_other_weights_take_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    wanted = config()
    made = UnreliableMembers(tmp_path / "federation", wanted)
    accepting(made, NAME)
    first, *others = made.nodes
    plain = encoders.wide

    def looks(node: Node, message: Message) -> None:
        monkeypatch.setattr(encoders, "wide", encoders.other if node.name == first else plain)

    coordinator, _ = made.coordinator(looks=looks)
    result = coordinator.run(wanted, made.place.runs / "run")
    assert sorted(result.clients) == sorted(others)
    log = (made.nodes[first]._runs.parent / "audit.jsonl").read_text()
    made.close()
    assert "model.fingerprint: the weights of tests.support.encoders:wide here have" in log


def test_files_of_one_machine_and_missing_fingerprints_are_refused() -> None:
    named = with_fingerprint(config(), (64,))
    assert named.model.fingerprint is not None
    check_objective(named, 10)
    for model, words in (
        ({"encoder": "hf:bert"}, r"^model.encoder: 'hf:bert' names files of one machine"),
        ({"encoder": "x.pt"}, r"^model.encoder"),
        ({"weights": "w", "fingerprint": "0"}, r"^model.weights: a path of one machine"),
        ({}, r"^model.fingerprint: missing"),
    ):
        with pytest.raises(HushError, match=words):
            check_objective(config(**model), 10)


def test_a_fetched_model_behind_code_is_not_loaded(tmp_path: Path) -> None:
    for own, encoder, expected in (
        (False, NAME, True),
        (False, "scattering", False),
        (False, None, False),
        (True, None, True),
    ):
        (tmp_path / "model.json").write_text(json.dumps({"own": own, "settings": {"encoder": encoder}}))
        assert needs_code(tmp_path) is expected


def test_a_member_imports_no_encoder_that_it_does_not_list(tmp_path: Path) -> None:
    made = UnreliableMembers(tmp_path / "federation", config())
    policy = next(iter(made.nodes.values())).policy
    made.close()
    for name in (NAME, "/tmp/code.pt", "hf:/etc"):
        with pytest.raises(HushError, match=r"not accepted by this member; add it to accept.models"):
            check_imports(policy, config(encoder=name))
    check_imports(policy, config(encoder="scattering"))
