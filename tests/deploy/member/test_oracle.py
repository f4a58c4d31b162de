"""What a member answers before a charge depends on no row: neighbouring members answer the same, byte for byte."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from hush.data.datasets import Dataset, from_arrays
from hush.deploy.admin import keys
from hush.deploy.member.process import Node
from hush.deploy.shared.protocol import code_hash
from hush.deploy.shared.refusal import REFUSAL, RefusalCode
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from tests.support import federation_kit as kit
from tests.support.questions import ROWS, questions

QUICK, SOAK = 160, 10_000
SOAK_SECONDS = 600.0
NOISY_RECIPES: tuple[dict[str, Any], ...] = (
    {"name": "dp-fedavg", "weight": {"rule": "samples", "counts": "noisy"}}, {"name": "hush"},
)  # fmt: skip
PUBLIC, NOISED = 'samples = "public"', 'samples = "noised"'


def rows(number: int = ROWS, shift: float = 0.0) -> Dataset:
    whole = kit.data(ROWS + 1)
    x, y = whole.x[:number].copy(), whole.y[:number].copy()
    x[-1] += shift
    return from_arrays(x, y, "rows")


def relabelled() -> Dataset:
    found = rows()
    return from_arrays(found.x, np.concatenate([found.y[:-1], [5]]), "rows")


# Where the policy makes the count public, neighbours have as many rows; elsewhere one has a row more.
NEIGHBOURS = {
    "a changed row": (PUBLIC, rows(), rows(shift=1e6)),
    "another label": (PUBLIC, rows(), relabelled()),
    "a row more": (NOISED, rows(), rows(ROWS + 1)),
    "a row less": (NOISED, rows(), rows(ROWS - 1)),
}


class Pair:
    """Two members that differ in their rows alone."""

    def __init__(self, path: Path, more: str, data: Sequence[Dataset]) -> None:
        self._path, self._more, self._data, self._turn = path, more, data, 0
        self.nodes: list[Node] = []
        self.reset()

    def reset(self) -> None:
        """Members anew: a ledger of which one row was charged is never used again."""
        self.close()
        self._turn += 1
        folder = self._path / str(self._turn)
        folder.mkdir(parents=True)
        for name, data in zip("xy", self._data, strict=True):
            words: dict[str, Any] = {"recipes": ["any"], "seeded": True, "accountant": "rdp", "uncovered": True}
            node = kit.member(folder / name, more=f"{self._more}\nmax_steps = 500\nlifetime = 3.0", **words)
            node.data = replace(data, schema=None)
            self.nodes.append(node)

    def close(self) -> None:
        for node in self.nodes:
            node.ledger.close()
        self.nodes = []

    def ask(self, question: bytes) -> bool:
        """Ask both, and compare the answers; whether anything was charged."""
        heads = [node.ledger.head for node in self.nodes]
        answers = [node.handle(question)[0] for node in self.nodes]
        charged = {node.ledger.head != head for node, head in zip(self.nodes, heads, strict=True)}
        assert len(charged) == 1
        if charged == {False}:
            first, second = (
                _opened(node, answer, head) for node, answer, head in zip(self.nodes, answers, heads, strict=True)
            )
            assert first == second
        else:
            run = messages.decode(question, len(question)).fields["run"]
            first_costs, second_costs = (node.ledger.charged(run) for node in self.nodes)
            assert first_costs == second_costs
        return charged == {True}


def _opened(node: Node, payload: bytes, head: str) -> bytes:
    """An answer without its signature, and without the name of the ledger's newest row: both hold random numbers.

    A refusal holds nothing but a code of the fixed list.
    """
    content = keys.opened(node._key.public_key(), payload)
    message = messages.decode(content, len(content))
    if message.kind == REFUSAL:
        assert set(message.fields) == {"run", "code", "final"}
        assert message.fields["code"] in set(RefusalCode)
    return messages.encode(message).replace(head.encode(), b"*" * 8)


@contextmanager
def pair(path: Path, neighbours: str) -> Iterator[Pair]:
    more, *data = NEIGHBOURS[neighbours]
    made = Pair(path, more, data)
    try:
        yield made
    finally:
        made.close()


def interrogate(neighbour_pair: Pair, number: int, start: int = 0) -> int:
    """Ask so many series of questions; returns the number of questions that were answered alike."""
    asked = 0

    @seed(start)
    @settings(max_examples=number, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(questions(), min_size=1, max_size=4))
    def series(given: list[bytes]) -> None:
        nonlocal asked
        for question in given:
            asked += 1
            if neighbour_pair.ask(question):
                neighbour_pair.reset()
                return

    series()
    return asked


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_neighbours_answer_alike_until_a_charge(tmp_path: Path, neighbours: str) -> None:
    with pair(tmp_path / "pair", neighbours) as neighbour_pair:
        assert interrogate(neighbour_pair, QUICK // len(NEIGHBOURS)) >= QUICK // len(NEIGHBOURS)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_limits_that_lie_between_two_numbers_of_rows_tell_them_not_apart(tmp_path: Path, neighbours: str) -> None:
    """With 500 steps at most, 25 epochs of batches of 2 are allowed for 40 rows and not for 41, were they counted."""
    work = ((25, 2), (12, 1), (250, ROWS // 2), (1, ROWS - 1), (1, ROWS), (1, ROWS + 1))
    charged = []
    with pair(tmp_path / "pair", neighbours) as neighbour_pair:
        for recipe, (epochs, batch) in itertools.product(NOISY_RECIPES, work):
            offer = kit.config(
                recipe=recipe, rounds=2, privacy__accountant="rdp", privacy__noise="secure",
                local__epochs=epochs, local__batch_size=batch,
            )  # fmt: skip
            fields = {"run": "a", "config": offer.model_dump(), "code": code_hash(), "number": 0, "head": ""}
            fields["schema"] = {"shape": list(kit.SHAPE), "classes": kit.CLASSES}
            charged.append(neighbour_pair.ask(messages.encode(Message("enrol", fields))))
            if charged[-1]:
                neighbour_pair.reset()
    assert any(charged)


class Unread:
    """Rows of which only the number can be asked; whatever else is done with them is noted."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __len__(self) -> int:
        return ROWS

    def __getattr__(self, name: str) -> Any:
        self.read.append(name)
        raise AttributeError(name)

    def _noted(self, *_: Any, **__: Any) -> Any:
        self.read.append("numbers")
        raise TypeError

    # Python looks these up in the class alone.
    __getitem__ = __iter__ = __array__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __sub__ = __mul__ = _noted


def test_no_row_is_looked_at_before_a_charge(tmp_path: Path) -> None:
    """So that how long an answer takes cannot depend on one either."""
    x, y = Unread(), Unread()
    fake: Any = Dataset(name="rows", x=x, y=y, classes=2)  # type: ignore[arg-type]
    with pair(tmp_path / "pair", "a changed row") as neighbour_pair:
        schema = neighbour_pair.nodes[0].schema

        @seed(5)
        @settings(max_examples=QUICK // 4, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(questions())
        def ask(question: bytes) -> None:
            node = neighbour_pair.nodes[0]
            node.data, node.schema = fake, schema
            head = node.ledger.head
            node.handle(question)
            if node.ledger.head != head:
                neighbour_pair.reset()
                x.read.clear()
                y.read.clear()
            assert (x.read, y.read) == ([], [])

        ask()


EPOCHS = ((14, 20), (2, 2))


def test_after_a_noised_count_is_disclosed_nothing_else_reveals_the_true_one(tmp_path: Path) -> None:
    """Members with other numbers of rows that disclosed the same: refusals, agreements and charges are the same."""
    more = f"{NOISED}\nlifetime = 50.0\nmax_steps = 40\nmax_rate = 0.8"
    numbers = (ROWS - 9, ROWS, ROWS + 9)
    members = [kit.Coordinator(kit.member(tmp_path / f"m{number}", more=more, accountant="rdp")) for number in numbers]
    for member, number in zip(members, numbers, strict=True):
        member.node.data = kit.data(number)
    answers: dict[str, list[Any]] = {}
    offers: dict[str, dict[str, Any]] = {"more steps": {"local__epochs": 25, "local__batch_size": 20}}
    # Steps that are within the limit for some of these numbers of rows alone.
    offers |= {f"epochs {n} of {batch}": {"local__epochs": n, "local__batch_size": batch} for n, batch in EPOCHS}
    offers |= {f"batch {batch}": {"local__batch_size": batch} for batch in (2, *numbers)}
    offers |= {"fixed": {"privacy__sampler": "fixed"}}
    for what, changes in offers.items():
        disclosed = None
        for member in members:
            member.run = what.replace(" ", "")
            offer = kit.config(privacy__accountant="rdp", **changes)
            first = member.enrol(offer)
            path = member.node._disclosed_file(member.run)
            # As if the noise had made the same number of each.
            disclosed = disclosed or path.read_bytes()
            path.write_bytes(disclosed)
            begun = member.begin(offer, samples=json.loads(disclosed)["samples"], noised=first.fields["noised"])
            costs = ""
            if begun.kind == "ready":
                assert member.task(1).kind == "update"
                costs = str(member.node.ledger.charged(member.run))
            answers.setdefault(what, []).append((begun.kind, begun.fields.get("code"), costs))
    assert all(len(set(found)) == 1 for found in answers.values()), answers
    kinds = {found[0][0] for found in answers.values()}
    assert kinds == {"ready", "no"}


@pytest.mark.soak
def test_neighbours_answer_alike_for_ten_minutes(tmp_path: Path) -> None:
    began, asked, turn = time.monotonic(), 0, 0
    while asked < SOAK and time.monotonic() - began < SOAK_SECONDS:
        neighbours = list(NEIGHBOURS)[turn % len(NEIGHBOURS)]
        with pair(tmp_path / f"pair{turn}", neighbours) as neighbour_pair:
            asked += interrogate(neighbour_pair, 100, 1 + turn)
        turn += 1
    assert asked >= SOAK or time.monotonic() - began >= SOAK_SECONDS
