"""A member with a small budget and a coordinator that can say anything to it, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hush.config import Config, parse
from hush.data.datasets import Dataset, from_arrays
from hush.deploy import enrolled, keys, wire
from hush.deploy.facts import Fact
from hush.deploy.member import prepare
from hush.deploy.node import Node
from hush.deploy.place import Kit
from hush.deploy.template import code_hash, template
from hush.deploy.wire import Letter
from hush.seeds import rng

SHAPE, CLASSES, ROWS = (6,), 3, 120
RUN = "0123456789abcdef"


def config(**changes: Any) -> Config:
    raw: dict[str, Any] = {
        "seed": 1, "rounds": 4, "data": {"name": "digits", "clients": 2}, "model": {"name": "logreg"},
        "privacy": {"noise": "replayable", "delta": 1e-4},
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
    held = data()
    np.savez(path / "data.npz", x=held.x, y=held.y)
    words = {"replayable": True, **words}
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

    def ask(self, kind: str, tensors: Any = None, **says: Any) -> Letter:
        """The member's answer, with its signature checked and noted as sent."""
        payload, receipt = self.node.handle(wire.encode(Letter(kind, says, tensors or {})))
        if receipt is not None:
            self.node.ledger.sent(receipt)
        return wire.decode(keys.opened(self.node._key.public_key(), payload), len(payload))

    def enrol(self, offer: Config, *, code: str | None = None, shape: Any = SHAPE, classes: int = CLASSES) -> Letter:
        schema = {"shape": list(shape), "classes": classes}
        return self.ask(
            "enrol", run=self.run, config=offer.model_dump(), code=code or code_hash(), schema=schema, number=0,
            head="",
        )  # fmt: skip

    def begin(self, offer: Config, *, code: str | None = None, centre: str = "", **facts: Any) -> Letter:
        one = self.node.policy.one_run
        mine = {"name": self.node.name, "epsilon": one.epsilon, "delta": one.delta, "relation": one.relation,
                "samples": ROWS, "factor": None, "group": None, "noised": {}, **facts}  # fmt: skip
        other = {**mine, "name": "b", "noised": {}}
        schema = {"shape": list(SHAPE), "classes": CLASSES}
        return self.ask(
            "begin", run=self.run, config=offer.model_dump(), code=code or code_hash(), schema=schema, client=0,
            roster=[mine, other], centre=centre, head="",
        )  # fmt: skip

    def task(self, number: int, models: torch.Tensor | None = None, head: str = "", **notes: torch.Tensor) -> Letter:
        given = torch.zeros(1, 21) if models is None else models
        tensors = {"models": given, **{f"notes.{name}": value for name, value in notes.items()}}
        return self.ask("task", tensors, run=self.run, round=number, head=head)


def planned(offer: Config, node: Node) -> float:
    """The noise that the member's own course has."""
    one = node.policy.one_run
    facts = [Fact(name, one.epsilon, one.delta, one.relation, ROWS) for name in ("a", "b")]
    return enrolled.own(offer, facts, 0, node.data, one, CLASSES).course.plan.noise_multiplier
