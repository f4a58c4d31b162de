"""One suite for all recipes in both modes, on the built-in data: what holds for every algorithm, whatever it does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hush.config import parse
from hush.engines.enrolment import enrolled
from hush.engines.run_ledgers import RunLedgers
from hush.engines.setup import Federation, prepare
from hush.engines.simulator import Simulator, run
from hush.privacy.ledger import MemoryLedger
from hush.privacy.plan import UPDATE
from hush.recipes import RECIPES
from hush.recipes.presets import FAITHFUL
from hush.recipes.slots.weight import Balanced, EstimatedNoise
from hush.server.loop import Answer, ServerState, bytes_of_update, serve, start
from hush.types import Decline, RoundRecord, Task, Update

ROUNDS, CLIENTS, ABSENT, AT = 5, 6, 2, 2
CASES = [(name, "sound") for name in RECIPES] + [(name, "faithful") for name in FAITHFUL]
each_case = pytest.mark.parametrize(("name", "mode"), CASES, ids=[f"{name}-{mode}" for name, mode in CASES])

Alter = Callable[[int, list[Answer]], Sequence[Answer]]


def raw(name: str, mode: str, **privacy: Any) -> dict[str, Any]:
    budgets = [1.0, 1.0, 1.0, 1.0, 9.0, 9.0]
    partition = {"name": "label-flip", "clusters": [2, 4]}
    return {
        "seed": 3,
        "mode": mode,
        "rounds": ROUNDS,
        "data": {"name": "digits", "clients": CLIENTS, "partition": partition, "sizes": 250},
        "model": {"name": "logreg"},
        "privacy": {"budgets": budgets, "delta": 1e-4, "clip": 1.0, "accountant": "rdp", **privacy},
        "local": {"batch_size": 80, "epochs": 1, "lr": 0.2},
        "recipe": {"name": name},
    }


@cache
def federation(name: str, mode: str) -> Federation:
    return prepare(parse(raw(name, mode)))


@dataclass
class Driven:
    """A run by hand: who was asked what, what was sent, what came of it."""

    ledgers: list[MemoryLedger]
    tasks: list[list[Task]] = field(default_factory=list)
    answers: list[list[Answer]] = field(default_factory=list)
    states: list[ServerState] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)

    def everything(self) -> list[Tensor]:
        """All numbers that the server holds in the end, and all that it was sent."""
        slots = [t for _, tensors in sorted(self.states[-1].slots.items()) for _, t in sorted(tensors.items())]
        sent = [a.vector for answers in self.answers for a in answers if isinstance(a, Update)]
        return [self.states[-1].models, self.states[-1].released, *slots, *sent]


def drive(made: Federation, alter: Alter = lambda _, answers: answers, absent: tuple[int, int] = (-1, -1)) -> Driven:
    """Run to the end; `absent` is a client and the round in which it is not there to be asked."""
    driven = Driven(made.ledgers())
    books = RunLedgers(driven.ledgers)
    cohort = Simulator(made, books)

    def keep(state: ServerState, record: RoundRecord) -> None:
        driven.states.append(state)
        driven.records.append(record)

    made, enrolment = enrolled(made, books, cohort.rows)
    cohort.federation = made
    loop = serve(made.terms, start(made.terms, made.starts(), enrolment), keep)
    try:
        tasks = next(loop)
        while True:
            driven.tasks.append(tasks)
            answers = cohort.answer([task for task in tasks if (task.client, task.round) != absent])
            driven.answers.append(sorted(answers, key=lambda a: a.client))
            tasks = loop.send(list(alter(tasks[0].round, answers)))
    except StopIteration:
        return driven


@cache
def plain_run(name: str, mode: str) -> Driven:
    return drive(federation(name, mode))


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@each_case
def test_shapes(name: str, mode: str) -> None:
    made, driven = federation(name, mode), plain_run(name, mode)
    size, models = made.model.layout.size, made.recipe.assign.models
    assert [state.round for state in driven.states] == list(range(1, ROUNDS + 1))
    for state in driven.states:
        assert state.models.shape == state.released.shape == (models, size)
        assert state.models.dtype == torch.float32
        assert bool(torch.isfinite(state.models).all())
    for tasks, answers, record in zip(driven.tasks, driven.answers, driven.records, strict=True):
        assert [task.client for task in tasks] == [answer.client for answer in answers] == list(range(CLIENTS))
        for task, update in zip(tasks, answers, strict=True):
            assert isinstance(update, Update)
            assert update.vector.shape == (task.answer.size,)
            assert update.layout == task.answer
            assert task.models.shape[1] == size
        assert record.refused == {}
        assert record.charged == tuple(range(CLIENTS))
        by_model: dict[int, float] = {}
        for client, weight in record.weights.items():
            assert weight >= 0
            model = record.placed.get(client, 0)
            by_model[model] = by_model.get(model, 0.0) + weight
        assert all(total == pytest.approx(1.0) for total in by_model.values())
        # The first round of rc-dpfl moves no model.
        assert by_model or (name, record.round) == ("rc-dpfl", 1)
        assert record.bytes_up == sum(bytes_of_update(update) for update in answers if isinstance(update, Update))
        assert all(0 <= model < models for model in record.placed.values() if record.weights)


def charged(ledger: MemoryLedger) -> dict[tuple[str, str], int]:
    return {(what, str(kind)): steps for (what, kind), steps in ledger.released().items() if steps}


@each_case
def test_what_happened_is_what_was_declared(name: str, mode: str) -> None:
    made, driven = federation(name, mode), plain_run(name, mode)
    releases = made.recipe.releases()
    drawn = "fixed-gaussian" if made.schedules[0].plan.sampler == "fixed" else "poisson-gaussian"
    assert (drawn == "fixed-gaussian") == (
        mode == "faithful" and name in ("dp-fedsgd", "dp-scaffold", "dp-scaffold-warm")
    )
    declared = {(r.what, drawn if r.event == "sampled-gaussian" else r.event) for r in releases if r.covered}
    open_update = any(r.what == UPDATE and not r.covered for r in releases)
    for member, ledger in zip(made.members, driven.ledgers, strict=True):
        happened = charged(ledger)
        # An update without protection is charged too: it costs infinity.
        assert set(happened) == declared | ({(UPDATE, drawn)} if open_update else set())
        assert math.isinf(ledger.spent()) == open_update
        small = 10 if name == "hush" else math.ceil(member.samples / member.batch)
        full = 1 if name == "rc-dpfl" else 0
        trains = name != "closed-form"
        assert happened.pop((UPDATE, drawn), 0) == ((ROUNDS - full) * small + full if trains else 0)
        chosen = sum(
            isinstance(a, Update) and a.side.choice is not None
            for answers in driven.answers
            for a in answers
            if a.client == member.client
        )
        covered = any(r.covered and r.what == "cluster choice" for r in releases)
        once = {("mean of the inputs", "gaussian"): 1} if name == "hush" else {}
        once |= {} if trains else {("sufficient statistics", "gaussian"): ROUNDS}
        assert happened == once | ({("cluster choice", "gaussian"): chosen} if covered else {})
        # A choice that nothing covers is named.
        assert covered or not chosen or any(r.what == "cluster choice" for r in releases)
        limit = made.policies[member.client].epsilon
        assert open_update or 0.9 * limit < ledger.spent() <= limit
        assert name == "maximum" or open_update or limit <= member.policy.epsilon


def test_declared_events_with_batches_of_a_fixed_size() -> None:
    made = prepare(parse(raw("rc-dpfl", "sound", sampler="fixed", relation="replace-one", budgets=2.0)))
    driven = drive(made)
    events = {"sampled-gaussian": "fixed-gaussian", "gaussian": "gaussian"}
    declared = {(r.what, events[r.event]) for r in made.recipe.releases() if r.covered}
    for member, ledger in zip(made.members, driven.ledgers, strict=True):
        assert set(charged(ledger)) == declared
        assert 0 < ledger.spent() <= member.policy.epsilon


GONE = [(name, mode, "absent") for name, mode in CASES] + [
    (name, "sound", how) for name in ("dp-scaffold", "pfa-plus", "rc-dpfl") for how in ("declines", "leaves")
]


@pytest.mark.parametrize(("name", "mode", "how"), GONE, ids=["-".join(case) for case in GONE])
def test_the_run_goes_on_without_one_client(name: str, mode: str, how: str) -> None:
    made, whole = federation(name, mode), plain_run(name, mode)

    def no(number: int, answers: list[Answer]) -> list[Answer]:
        return (
            [*answers, Decline(ABSENT, number, "not now", how == "leaves")]
            if number == AT and how != "absent"
            else answers
        )

    driven = drive(made, no, (ABSENT, AT))
    assert len(driven.records) == ROUNDS
    before, record = whole.records[AT - 1], driven.records[AT - 1]
    assert driven.records[: AT - 1] == whole.records[: AT - 1]
    assert record.refused == {ABSENT: "no update" if how == "absent" else "not now"}
    assert ABSENT not in record.weights
    assert ABSENT not in record.charged
    others = [a.vector for a in whole.answers[AT - 1] if a.client != ABSENT and isinstance(a, Update)]
    # Who trains beside a client moves its update by rounding at most.
    for ours, theirs in zip([a.vector for a in driven.answers[AT - 1] if isinstance(a, Update)], others, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    if before.placed == {} or all(record.placed[c] == before.placed[c] for c in record.placed):
        home = before.placed.get(ABSENT, 0)
        for client, weight in record.weights.items():
            beside = before.placed.get(client, 0) == home
            spread = before.weights[client] / (1 - before.weights[ABSENT]) if beside else before.weights[client]
            assert isinstance(made.recipe.weight, EstimatedNoise | Balanced) or weight == pytest.approx(spread)
    later = [ABSENT in record.weights for record in driven.records[AT:]]
    assert later == [how != "leaves"] * (ROUNDS - AT)
    if "own" in driven.states[-1].slots["local"]:
        kept = [driven.states[number].slots["local"]["own"][ABSENT] for number in (AT - 2, AT - 1)]
        assert torch.equal(*kept)


@each_case
def test_the_same_seed_gives_the_same_bits_in_whatever_order_answers_come(name: str, mode: str) -> None:
    made, first = federation(name, mode), plain_run(name, mode)
    turned = drive(made, lambda number, answers: [*answers[number % 5 :], *answers[: number % 5]][::-1])
    assert same(turned.everything(), first.everything())
    assert turned.records == first.records
    assert not torch.equal(first.states[-1].models, made.starts())


class _StopError(Exception):
    pass


@each_case
def test_a_resumed_run_ends_in_the_same_bits(name: str, mode: str, tmp_path: Path) -> None:
    made = federation(name, mode)

    def stop(record: RoundRecord) -> None:
        if record.round == 3:
            raise _StopError

    with pytest.raises(_StopError):
        run(made, tmp_path, callbacks=[stop])
    assert not (tmp_path / "result.json").exists()
    result = run(made, tmp_path, resume=True).result
    whole = plain_run(name, mode)
    state = whole.states[-1]
    kept = load_file(tmp_path / f"checkpoint-{ROUNDS:06d}.safetensors")
    expected = {f"{slot}.{key}": value for slot, tensors in state.slots.items() for key, value in tensors.items()}
    expected |= {"models": state.models, "released": state.released}
    assert set(kept) == set(expected)
    assert all(torch.equal(kept[key], expected[key]) for key in kept)
    assert [card.epsilon_spent for card in result.guarantees] == [ledger.spent() for ledger in whole.ledgers]
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [{int(c): w for c, w in line["weights"].items()} for line in lines] == [r.weights for r in whole.records]


def test_a_wrong_declaration_would_be_noticed() -> None:
    """The twin of the declared events: a choice made without noise is not what the ledger of the sound one shows."""
    sound, silent = federation("f-cdpfl", "sound"), federation("f-cdpfl", "faithful")
    lying = replace(sound, recipe=replace(sound.recipe, assign=silent.recipe.assign))
    kinds = {"sampled-gaussian": "poisson-gaussian", "gaussian": "gaussian"}
    declared = {(r.what, kinds[r.event]) for r in lying.recipe.releases() if r.covered}
    assert set(charged(plain_run("f-cdpfl", "sound").ledgers[0])) != declared
