"""Adapters between machines: what is sent, and that the federation computes what its simulation does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import torch
from safetensors.torch import load_file

from hush.config import Config, parse
from hush.deploy.member.process import Node
from hush.deploy.shared.run_spec import check_objective
from hush.deploy.transport.messages import Message
from hush.engines import setup, simulator
from hush.types import HushError
from tests.support.unreliable_members import UnreliableMembers, without_pauses

HIDDEN, RANK = 12, 2


def config(**model: Any) -> Config:
    return parse(
        {
            "seed": 5, "rounds": 2, "data": {"name": "digits", "clients": 3}, "max_weight": 1.0,
            "privacy": {"budgets": [2.0, 4.0, 8.0], "delta": 1e-4, "noise": "seeded"},
            "local": {"batch_size": 64, "lr": 0.5}, "recipe": {"name": "weiavg"},
            "model": {"name": "mlp", "hidden": HIDDEN, "adapters": "lora", "rank": RANK, **model},
        }
    )  # fmt: skip


def test_members_get_and_send_adapters_and_head_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    wanted = config()
    made = UnreliableMembers(tmp_path / "federation", wanted)
    sizes: set[int] = set()

    def looks(node: Node, message: Message) -> None:
        sizes.update(value.shape[-1] for name, value in message.tensors.items() if name == "models")

    coordinator, _ = made.coordinator(looks=looks)
    result = coordinator.run(wanted, made.place.runs / "run")
    made.close()
    size = RANK * (64 + HIDDEN) + 10 * HIDDEN + 10
    assert sizes == {size}
    lines = [json.loads(line) for line in (made.place.runs / "run" / "rounds.jsonl").read_text().splitlines()]
    # Three updates of four bytes a number, and what is said beside them; the frozen weights alone are 3 KB each.
    assert all(line["bytes_up"] <= 3 * (4 * size + 256) < 3 * 4 * (size + 64 * HIDDEN) for line in lines)
    simulated = simulator.run(setup.prepare(wanted))
    stored = load_file(made.place.runs / "run" / "model.safetensors")
    assert sum(value.numel() for value in stored.values()) == size
    found = torch.cat([stored[name].flatten() for name in simulated.federation.model.layout.names])
    assert torch.allclose(found, simulated.models[0], atol=1e-5)
    assert result.metrics["frozen"]["parameters"] == size and result.metrics["frozen"]["frozen"] == 65 * HIDDEN


def test_weights_in_a_file_of_one_machine_are_refused() -> None:
    with pytest.raises(HushError, match=r"^model.weights: a path of one machine, in a federation of several"):
        check_objective(config(weights="w.safetensors"), 10)
