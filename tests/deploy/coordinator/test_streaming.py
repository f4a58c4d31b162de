"""Rows 14 and 16: streams in any order give the same bits, and no client pulls further than its plan could."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

import torch

from hush.deploy.shared.roster import RosterEntry
from hush.deploy.shared.run_spec import assemble
from hush.engines.setup import Federation
from hush.privacy.ledger.ledger import claimed_receipt
from hush.seeds import rng
from hush.server.loop import serve, start
from hush.types import RoundRecord, Task, Update
from tests.support import federation_kit as kit

CLIENTS, ROUNDS = 10, 3


@pytest.fixture(scope="module")
def federation() -> Federation:
    facts = [
        RosterEntry(name=f"m{c}", epsilon=2.0, delta=1e-4, relation="add-remove", samples=kit.ROWS)
        for c in range(CLIENTS)
    ]
    offer = kit.config(rounds=ROUNDS, data__clients=CLIENTS, recipe={"name": "dp-fedavg"})
    return assemble(offer, facts, kit.data())


def honest(federation: Federation, task: Task) -> Update:
    """An update of the length that a plan makes: a step toward one model for all, and the plan's noise."""
    drawn = torch.from_numpy(rng(task.client, "update", task.round).normal(size=task.layout.size))
    noise = (federation.terms.planned_noise[0][task.client] / task.layout.size) ** 0.5
    pull = 0.5 * federation.terms.reach[0][task.client] * torch.ones(task.layout.size) / task.layout.size**0.5
    vector = (pull + noise * drawn).float()
    receipt = claimed_receipt(task.client, task.round, task.round, "r", "1:0")
    return Update(client=task.client, round=task.round, vector=vector, layout=task.answer, receipt=receipt)


Stream = Callable[[Sequence[Task], list[Update]], list[Update]]


def run(federation: Federation, stream: Stream, bounded: bool = True) -> tuple[torch.Tensor, list[RoundRecord]]:
    records: list[RoundRecord] = []
    terms = federation.terms if bounded else replace(federation.terms, bounds=None, noise_bounds=None)
    loop = serve(terms, start(terms, federation.starts()), lambda state, record: records.append(record))
    tasks = next(loop)
    try:
        while True:
            tasks = loop.send(list(stream(tasks, [honest(federation, task) for task in tasks])))
    except StopIteration as end:
        return end.value.models, records


@pytest.mark.parametrize("streams", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_replayed_repeated_late_and_shuffled_answers_change_no_bit(federation: Federation, streams: int) -> None:
    plain, _ = run(federation, lambda tasks, updates: updates)
    for seed in range(streams):
        drawn, old = rng(seed, "stream"), list[Update]()

        def jumbled(tasks: Sequence[Task], updates: list[Update], drawn=drawn, old=old) -> list[Update]:  # type: ignore[no-untyped-def]
            again = [updates[int(i)] for i in drawn.integers(len(updates), size=3)]
            early = [replace(update, round=update.round + 1) for update in updates[:2]]
            stranger = replace(updates[0], client=77)
            mixed = [*updates, *again, *old, *early, stranger]
            old.extend(updates)
            return [mixed[int(i)] for i in drawn.permutation(len(mixed))]

        found, records = run(federation, jumbled)
        assert torch.equal(found, plain)
        assert all(len(record.weights) == CLIENTS for record in records)


def test_a_stream_that_lacks_an_answer_does_change_the_model(federation: Federation) -> None:
    plain, _ = run(federation, lambda tasks, updates: updates)
    less, _ = run(federation, lambda tasks, updates: updates[1:])
    assert not torch.equal(less, plain)


def poisoned(scale: float) -> Stream:
    """Two of ten clients send their update turned round and scaled."""
    return lambda tasks, updates: [
        replace(update, vector=-scale * update.vector) if update.client < 2 else update for update in updates
    ]


@pytest.mark.parametrize("scale", [1.0, 2.0, 10.0, 1e3, 1e12])
def test_a_poisoned_update_pulls_no_further_than_its_plan(federation: Federation, scale: float) -> None:
    plain, _ = run(federation, lambda tasks, updates: updates)
    found, records = run(federation, poisoned(scale))
    shares = [sum(record.weights.get(client, 0.0) for client in (0, 1)) for record in records]
    cap = sum(share * float(federation.terms.bounds[0].max()) for share in shares)
    missing = sum(0.2 * float(federation.terms.bounds[0].max()) for share in shares if share == 0)
    assert float((found - plain).norm()) <= 2 * cap + 2 * missing
    if scale >= 10:
        assert all("norm exceeds" in record.refused[0] for record in records)
    unbounded, _ = run(federation, poisoned(scale), bounded=False)
    if scale >= 1e3:
        assert float((unbounded - plain).norm()) > 10 * cap + 10 * missing


def test_honest_updates_are_within_their_bound(federation: Federation) -> None:
    _, records = run(federation, lambda tasks, updates: updates)
    assert all(record.refused == {} for record in records)
    bounds = federation.terms.bounds[0]
    size = federation.model.layout.size
    for seed in range(2000):
        drawn = torch.from_numpy(rng(seed, "noise").normal(size=size))
        noise = (federation.terms.planned_noise[0][0] / size) ** 0.5 * drawn
        most = federation.terms.reach[0][0] * federation.schedules[0].plan.clip
        assert float(noise.norm()) + most < bounds[0]


def test_coefficients_are_capped_too() -> None:
    """Who sends how far its update goes in some directions (PFA+) cannot send how far it likes."""
    budgets = [0.5] * 4 + [4.0] * 6
    facts = [
        RosterEntry(name=f"m{c}", epsilon=epsilon, delta=1e-4, relation="add-remove", samples=kit.ROWS)
        for c, epsilon in enumerate(budgets)
    ]
    private = assemble(kit.config(rounds=3, data__clients=10, recipe={"name": "pfa-plus"}), facts, kit.data())
    short: list[int] = []

    def sent(tasks: Sequence[Task], updates: list[Update], greed: float) -> list[Update]:
        found = []
        for task, update in zip(tasks, updates, strict=True):
            vector = private.recipe.project.encode(update.vector, task.layout, task.extras)
            short.append(task.answer != task.layout)
            scale = greed if task.client == 0 and short[-1] else 1.0
            found.append(replace(update, vector=scale * vector))
        return found

    _, records = run(private, lambda tasks, updates: sent(tasks, updates, 1.0))
    assert sum(short) == 8
    assert all(not record.refused for record in records)
    _, records = run(private, lambda tasks, updates: sent(tasks, updates, 1e4))
    assert [list(record.refused) for record in records[1:]] == [[0], [0]]
    assert "norm exceeds" in records[1].refused[0]
