"""Whatever a coordinator says, a member stays up, and pays for nothing that it does not send."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.deploy.admin import keys
from hush.deploy.shared.protocol import code_hash
from hush.deploy.transport import messages as wire
from hush.deploy.transport.messages import Message
from hush.privacy.ledger.statement import export
from hush.seeds import rng
from tests.support import federation_kit as kit

ODD: list[Any] = [
    None, True, -1, 0, 1, 2, 10**30, -(10**30), 1e308, 1e-308, 0.5, "", "x", "any", "auto", "a" * 500, "\0", [], [1],
    [[]], {}, {"rule": "none"}, {"name": "fedavg"}, "os:system",
]  # fmt: skip
RECIPES = ("hush", "robust-hdp", "rc-dpfl", "minimum")
CENTRE = torch.zeros(kit.SHAPE[0])


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in nested tables and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))


def changed(fields: dict[str, Any], drawn: np.random.Generator) -> dict[str, Any]:
    """The same with one or two things replaced."""
    found = copy.deepcopy(fields)
    for _ in range(int(drawn.integers(1, 3))):
        known = list(places(found))
        *way, last = known[int(drawn.integers(len(known)))]
        part: Any = found
        for key in way:
            part = part[key]
        part[last] = copy.deepcopy(ODD[int(drawn.integers(len(ODD)))])
    return found


def offer(kind: str, run: str, recipe: str) -> dict[str, Any]:
    """What an honest coordinator says."""
    schema = {"shape": list(kit.SHAPE), "classes": kit.CLASSES}
    fields = {"run": run, "config": kit.config(recipe={"name": recipe}).model_dump(), "code": code_hash(), "head": ""}
    fact = {"name": "a", "epsilon": 1.0, "delta": 1e-4, "relation": "add-remove", "samples": kit.ROWS}
    fact |= {"factor": None, "group": None, "noised": {}}
    if kind == "enrol":
        return {**fields, "schema": schema, "number": 0}
    centre = wire.name_of(CENTRE) if recipe == "hush" else ""
    return {**fields, "schema": schema, "client": 0, "roster": [fact, {**fact, "name": "b"}], "centre": centre}


def task(number: int, drawn: np.random.Generator) -> Message:
    """A task with something odd about its numbers."""
    good = torch.zeros(1, 21)
    bad = [
        good.double(), good[0], good[:, 1:], torch.cat([good, good]), torch.full_like(good, torch.inf), good[:0],
        torch.zeros(1, 21, dtype=torch.int64),
    ]  # fmt: skip
    names = ("clip", "drift", "input_mean", "basis", "middle")
    tensors = {"models": bad[int(drawn.integers(len(bad)))]}
    if drawn.random() < 0.6:
        shape = [int(size) for size in drawn.integers(0, 4, size=int(drawn.integers(3)))]
        name = names[int(drawn.integers(len(names)))]
        tensors = {"models": good, f"extras.{name}": torch.full(shape, float(drawn.normal()))}
    return Message("task", {"run": "agreed", "round": number, "head": ""}, tensors)


@pytest.mark.parametrize(("seed", "messages"), [(1, 300), pytest.param(2, 10_000, marks=pytest.mark.soak)])
def test_no_order_ends_a_member_or_makes_it_pay_for_nothing(tmp_path: Path, seed: int, messages: int) -> None:
    law = "lifetime = 100000.0\nmin_noise = 0.2"
    node = kit.member(tmp_path / "a", recipes=["any"], uncovered=True, more=law)
    drawn, answers = rng(seed, "orders"), Counter[str]()
    asks = kit.Coordinator(node, "agreed")
    assert asks.begin(kit.config()).kind == "ready"
    for number in range(messages):
        kind = ("enrol", "begin", "task")[int(drawn.integers(3))]
        if kind == "task":
            message = task(int(drawn.integers(1, 5)), drawn)
        else:
            fields = offer(kind, f"r{number}", RECIPES[int(drawn.integers(len(RECIPES)))])
            message = Message(kind, changed(fields, drawn))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numbers that overflow, in what is refused
            payload, receipt = node.handle(wire.encode(message))
        answer = wire.decode(keys.opened(node._key.public_key(), payload), len(payload))
        answers[answer.kind] += 1
        answers["paid"] += receipt is not None
        assert answer.kind in (("no",) if kind == "task" else ("no", "ready", "facts")), message
        if receipt is not None:
            node.ledger.sent(receipt)
    rows = Counter(row["kind"] for row in export(tmp_path / "a" / "ledger.db"))
    assert min(answers["no"], answers["ready"], answers["facts"]) > 0, answers
    assert (rows["BURNED"], rows["RESERVED"], rows["SENT"]) == (0, answers["paid"], answers["paid"]), (rows, answers)
    assert [asks.task(number).kind for number in (1, 2)] == ["update", "update"]
