"""A member with a small budget and a coordinator that can say anything to it, without a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hush.config import Config, parse
from hush.data.datasets import Dataset, from_arrays
from hush.data.schema import Schema
from hush.deploy.admin import audit_log, keys
from hush.deploy.admin.folders import Kit
from hush.deploy.member.policy_template import template
from hush.deploy.member.process import Node
from hush.deploy.member.service import prepare
from hush.deploy.shared import run_spec
from hush.deploy.shared.protocol import code_hash
from hush.deploy.shared.refusal import REFUSAL
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.engines.setup import Federation
from hush.privacy.ledger.ledger import claimed_receipt
from hush.seeds import rng
from hush.types import SideAnswers, Task, Update

SHAPE, CLASSES, ROWS = (6,), 3, 120
RUN = "0123456789abcdef"


def config(**changes: Any) -> Config:
    raw: dict[str, Any] = {
        "seed": 1, "rounds": 4, "data": {"name": "digits", "clients": 2}, "model": {"name": "logreg"},
        "privacy": {"noise": "seeded", "delta": 1e-4},
        "local": {"batch_size": 30, "lr": 0.5}, "recipe": {"name": "robust-hdp"},
    }  # fmt: skip
    for key, value in changes.items():
        table, _, name = key.partition("__")
        raw[table] = {**raw[table], name: value} if name else value
    return parse(raw)


def data(rows: int = ROWS, seed: int = 0) -> Dataset:
    drawn = rng(seed, "rows")
    x = drawn.normal(size=(rows, *SHAPE)).astype(np.float32)
    return from_arrays(x, (x[:, 0] > 0).astype(np.int64), "rows", CLASSES)


def member(path: Path, name: str = "a", *, epsilon: float = 1.0, more: str = "", **words: Any) -> Node:
    """A member in a folder; called again it opens what is there, as a restarted process would."""
    path.mkdir(exist_ok=True)
    dataset = data()
    np.savez(path / "data.npz", x=dataset.x, y=dataset.y)
    words = {"seeded": True, "auto_approve": True, "max_cpu": 1.0, "runs_per_day": 10_000, "held_out": 0.0, **words}
    text = template(epsilon, 1e-4, "add-remove", words.pop("recipes", ["robust-hdp"]), **words)
    for line in more.splitlines():
        key = line.split("=")[0].strip()
        lines = [line if old.strip().lstrip("# ").startswith(f"{key} =") else old for old in text.splitlines()]
        text = "\n".join(lines)
    (path / "policy.toml").write_text(text)
    return prepare(Kit(path, name, "nowhere:1"), path / "policy.toml", path / "data.npz")


class Coordinator:
    """Says what it is told to, to one member."""

    def __init__(self, node: Node, run: str = RUN) -> None:
        self.node, self.run = node, run

    def ask(self, kind: str, tensors: Any = None, **fields: Any) -> Message:
        """The member's answer, with its signature checked and noted as sent."""
        payload, receipt = self.node.handle(messages.encode(Message(kind, fields, tensors or {})))
        if receipt is not None:
            self.node.ledger.sent(receipt)
            self.node.sent(receipt, True, len(payload))
        message = messages.decode(keys.opened(self.node._key.public_key(), payload), len(payload))
        if message.kind != REFUSAL:
            return message
        # A refusal is a code alone. Tests look up in the member's own log what it stands for.
        assert set(message.fields) == {"run", "code", "final"}
        return replace(
            message, fields={**message.fields, "reason": audit_log.read(self.node.log.path)[-1].get("reason", "")}
        )

    def enrol(self, offer: Config, *, code: str | None = None, shape: Any = SHAPE, classes: int = CLASSES) -> Message:
        schema = {"shape": list(shape), "classes": classes}
        return self.ask(
            "enrol", run=self.run, config=offer.model_dump(), code=code or code_hash(), schema=schema, number=0,
            head="",
        )  # fmt: skip

    def begin(self, offer: Config, *, code: str | None = None, centre: str = "", **facts: Any) -> Message:
        one = self.node.policy.one_run
        mine = {"name": self.node.name, "epsilon": one.epsilon, "delta": one.delta, "relation": one.relation,
                "samples": ROWS, "factor": None, "group": None, "noised": {}, **facts}  # fmt: skip
        other = {**mine, "name": "b", "noised": {}}
        schema = {"shape": list(SHAPE), "classes": CLASSES}
        return self.ask(
            "begin", run=self.run, config=offer.model_dump(), code=code or code_hash(), schema=schema, client=0,
            roster=[mine, other], centre=centre, head="",
        )  # fmt: skip

    def task(self, number: int, models: torch.Tensor | None = None, head: str = "", **extras: torch.Tensor) -> Message:
        given = torch.zeros(1, 21) if models is None else models
        tensors = {"models": given, **{f"extras.{name}": value for name, value in extras.items()}}
        return self.ask("task", tensors, run=self.run, round=number, head=head)


def planned(offer: Config, node: Node, samples: int = ROWS) -> float:
    """The noise that the member's own schedule has, for so many rows."""
    one = node.policy.one_run
    facts = [
        RosterEntry(name=name, epsilon=one.epsilon, delta=one.delta, relation=one.relation, samples=samples)
        for name in ("a", "b")
    ]
    return run_spec.member_spec(
        offer, facts, 0, one, Schema(shape=SHAPE, classes=CLASSES)
    ).schedule.plan.noise_multiplier


def answer(federation: Federation, task: Task) -> Update:
    """An honest answer to a task: a step toward one model for all, and the plan's noise."""
    terms, size = federation.terms, task.layout.size
    stage = terms.stage_table.of[task.round]
    drawn = torch.from_numpy(rng(task.client, "update", task.round).normal(size=size))
    noise = (terms.planned_noise[stage][task.client] / size) ** 0.5
    pull = 0.5 * terms.reach[stage][task.client] * torch.ones(size) / size**0.5
    vector = federation.recipe.project.encode((pull + noise * drawn).float(), task.layout, task.extras)
    spec = terms.stage_table.at(task.round)
    releases = {each.what: torch.zeros(each.width(terms.shape), dtype=torch.float64) for each in spec.sent}
    side = SideAnswers(choice=0 if spec.choose else None, releases=releases)
    receipt = claimed_receipt(task.client, task.round, task.round, "r", "1:0")
    return Update(client=task.client, round=task.round, vector=vector, layout=task.answer, receipt=receipt, side=side)
