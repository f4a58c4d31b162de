from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hush.engines.server_rng import server_rng
from hush.privacy.schedule import RoundSpec, StageTable
from hush.recipes import RECIPES, Recipe, parse
from hush.recipes.context import RoundView, ServerRng, State, Weights
from hush.recipes.interfaces import Project, Weight
from hush.server.loop import RunTerms, ServerState, serve, short_of_quorum, start
from hush.server.participation import draw_participants, stages_of
from hush.server.run_directory import RunDir
from hush.server.validation import validate
from hush.types import Decline, HushError, Layout, Member, Policy, Receipt, RoundRecord, Task, Update

LAYOUT = Layout(("w", "b"), ((2, 2), (1,)))


def task(client: int, round_number: int = 1) -> Task:
    return Task(client=client, round=round_number, models=torch.zeros(1, 5), layout=LAYOUT, answer=LAYOUT)


def update(client: int, value: float = 1.0, round_number: int = 1) -> Update:
    receipt = Receipt(client, round_number, 1)
    return Update(client=client, round=round_number, vector=torch.full((5,), value), layout=LAYOUT, receipt=receipt)


def terms(recipe: str = "dp-fedavg", rounds: int = 3) -> RunTerms:
    members = tuple(Member(client=c, policy=Policy(1.0 + c, 1e-4), samples=10 * (c + 1), batch=5) for c in range(3))
    made, facts = RECIPES[recipe], torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    return RunTerms(
        recipe=made,
        members=members,
        stage_table=made.stage_table(rounds),
        planned_noise=facts,
        reach=facts,
        layout=LAYOUT,
        participants=((0, 1, 2),) * rounds,
        rng=server_rng(0, False),
    )


def test_schedule_is_fixed_size_and_repeatable() -> None:
    plan = draw_participants(1, 10, 50, 0.3)
    assert plan == draw_participants(1, 10, 50, 0.3) != draw_participants(2, 10, 50, 0.3)
    assert all(len(members) == 3 == len(set(members)) for members in plan)
    stage_table = StageTable.from_rounds([RoundSpec(train=False), RoundSpec(full_batch=True), *[RoundSpec()] * 49])
    assert stage_table.of[:3] == (-1, 0, 1)
    orders = stages_of(stage_table, plan, 10)
    assert sum(map(len, orders)) == 150
    assert sum(order.count(0) for order in orders) == 3
    assert draw_participants(1, 4, 2, 1.0) == ((0, 1, 2, 3),) * 2
    assert all(len(members) == 1 for members in draw_participants(1, 4, 5, 0.01))


def bad(**changes: Any) -> Update:
    return replace(update(1), **changes)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (bad(round=2), "answers round 2"),
        (bad(client=7), "not invited"),
        (bad(receipt=Receipt(2, 1, 1)), "receipt"),
        (bad(vector=torch.ones(4)), "layout"),
        (bad(layout=Layout(("w",), ((5,),))), "layout"),
        (bad(vector=torch.ones(5, dtype=torch.float64)), "float64"),
        (bad(vector=torch.tensor([1.0, float("nan"), 0, 0, 0])), "not finite"),
        (bad(vector=torch.tensor([1.0, float("inf"), 0, 0, 0])), "not finite"),
    ],
)
def test_gate_refuses_and_goes_on(wrong: Update, words: str) -> None:
    accepted, refused = validate([task(0), task(1)], [update(0), wrong])
    assert [u.client for u in accepted] == [0]
    assert words in refused[wrong.client]


def test_gate_takes_one_update_a_client_in_client_order() -> None:
    accepted, refused = validate([task(0), task(1), task(2)], [update(1), update(0), update(1, 9.0)])
    assert [(u.client, u.vector[0].item()) for u in accepted] == [(0, 1.0), (1, 1.0)]
    assert refused == {1: "a second update in the same round", 2: "no update"}


def run(made: RunTerms, answers: list[list[Update]]) -> tuple[ServerState, list[RoundRecord]]:
    records: list[RoundRecord] = []
    loop = serve(made, start(made, torch.zeros(1, 5)), lambda _, record: records.append(record))
    next(loop)
    try:
        for answer in answers:
            loop.send(answer)
    except StopIteration as end:
        return end.value, records
    raise AssertionError("the loop did not end")


def test_rounds_add_weighted_updates() -> None:
    answer = [[update(c, float(c), r) for c in range(3)] for r in (1, 2, 3)]
    state, records = run(terms(), answer)
    mean = (0 * 10 + 1 * 20 + 2 * 30) / 60
    torch.testing.assert_close(state.models, torch.full((1, 5), 3 * mean))
    assert [record.round for record in records] == [1, 2, 3]
    assert records[0].weights == {0: pytest.approx(1 / 6), 1: pytest.approx(1 / 3), 2: pytest.approx(1 / 2)}
    assert records[0].noise_planned == {0: 1.0, 1: 2.0, 2: 3.0}


def test_a_round_without_updates_moves_nothing() -> None:
    state, records = run(terms(rounds=2), [[], [update(1, 2.0, 2)]])
    assert records[0].weights == {}
    assert records[0].refused == {0: "no update", 1: "no update", 2: "no update"}
    torch.testing.assert_close(state.models, torch.full((1, 5), 2.0))


def declined(client: int, number: int) -> Decline:
    return Decline(client, number, "budget spent", final=True)


def test_a_client_that_leaves_is_not_asked_again() -> None:
    made = terms(rounds=3)
    asked: list[list[int]] = []
    records: list[RoundRecord] = []
    loop = serve(made, start(made, torch.zeros(1, 5)), lambda _, record: records.append(record))
    tasks = next(loop)
    try:
        while True:
            asked.append([t.client for t in tasks])
            number = tasks[0].round
            tasks = loop.send([declined(1, number) if t.client == 1 else update(t.client, 1.0, number) for t in tasks])
    except StopIteration:
        pass
    assert asked == [[0, 1, 2], [0, 2], [0, 2]]
    assert records[0].refused == {1: "budget spent"}
    assert records[0].charged == (0, 2)


def test_the_run_ends_below_the_quorum() -> None:
    made = replace(terms(rounds=5), quorum=2)
    answers = [[update(0), declined(1, 1), declined(2, 1)]]
    state, records = run(made, answers)  # type: ignore[arg-type]
    assert state.round == 1
    assert records[0].weights == {}, "one update is below the quorum: nothing moves"
    assert short_of_quorum(made, state) == "after round 1: 1 of 3 clients have remaining budget, quorum 2"


def test_order_of_arrival_changes_nothing() -> None:
    forward, _ = run(terms(rounds=1), [[update(c, 0.1 * c) for c in (0, 1, 2)]])
    backward, _ = run(terms(rounds=1), [[update(c, 0.1 * c) for c in (2, 1, 0)]])
    assert torch.equal(forward.models, backward.models)


def saved(path: Path, recipe: str = "dp-fedavg") -> tuple[RunDir, ServerState]:
    directory = RunDir.create(path, {"config_hash": "abc"})
    _, made = parse({"name": recipe, "step": {"rule": "ema", "inner": {"rule": "momentum"}}})
    state = start(replace(terms(), recipe=made), torch.arange(5.0)[None])
    for number in (1, 2):
        state = replace(state, round=number, models=state.models + 1)
        directory.save(
            state,
            RoundRecord(
                round=number,
                weights={0: 0.5},
                noise_estimated={},
                noise_planned={0: 1.0},
                refused={1: "no update"},
                charged=(0,),
                accuracy_per_client=(0.1, 0.2),
                loss=1.5,
                seconds=0.1,
            ),
        )
    return directory, state


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    directory, state = saved(tmp_path / "run")
    kept = directory.restore()
    assert kept is not None
    restored, records = kept
    assert restored.round == 2
    assert torch.equal(restored.models, state.models)
    assert set(restored.slots["step"]) == {"velocity", "sum", "mass"}
    assert records[1] == RoundRecord(
        round=2,
        weights={0: 0.5},
        noise_estimated={},
        noise_planned={0: 1.0},
        refused={1: "no update"},
        charged=(0,),
        accuracy_per_client=(0.1, 0.2),
        loss=1.5,
        seconds=0.1,
    )


def test_restore_drops_lines_beyond_the_checkpoint(tmp_path: Path) -> None:
    directory, _ = saved(tmp_path / "run")
    with (directory.path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 3, "weig')
    kept = directory.restore()
    assert kept is not None
    assert [record.round for record in kept[1]] == [1, 2]
    assert len((directory.path / "rounds.jsonl").read_bytes().splitlines()) == 2


def test_run_directory_mistakes(tmp_path: Path) -> None:
    directory, _ = saved(tmp_path / "run")
    with pytest.raises(HushError, match="not empty"):
        RunDir.create(directory.path, {})
    with pytest.raises(HushError, match="a different config"):
        RunDir.reopen(directory.path, "abd")
    (tmp_path / "file").write_text("")
    with pytest.raises(HushError, match="cannot write a run directory"):
        RunDir.create(tmp_path / "file" / "run", {})
    next(directory.path.glob("checkpoint-*")).write_bytes(b"rubbish")
    with pytest.raises(HushError, match="not a checkpoint"):
        directory.restore()


@dataclass(frozen=True)
class KeepsMask(Project):
    """Needs a state of its own in the first round."""

    def start(self, clients: int, size: int) -> State:
        return {"mask": torch.ones(size)}

    def project(self, view: RoundView, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        return view.updates * state["mask"], {"mask": torch.zeros_like(state["mask"])}


@dataclass(frozen=True)
class Counts(Weight):
    """Counts the rounds of each client."""

    def start(self, clients: int) -> State:
        return {"rounds": torch.zeros(clients)}

    def weight(self, view: RoundView, state: State) -> tuple[Weights, State]:
        rounds = state["rounds"].index_add(0, torch.tensor(view.clients), torch.ones(len(view.clients)))
        return Weights(self.foreseen(view)), {"rounds": rounds}


def test_project_and_weight_start_with_a_state_of_their_own() -> None:
    with_state = replace(terms(rounds=2), recipe=Recipe(project=KeepsMask(), weight=Counts()))
    first = start(with_state, torch.zeros(1, 5))
    assert first.slots["project-0"]["mask"].tolist() == [1.0] * 5
    states: list[ServerState] = []
    loop = serve(with_state, first, keep=lambda state, record: states.append(state))
    next(loop)
    loop.send([update(0), update(1), update(2)])
    assert states[0].models.tolist() == [[1.0] * 5]
    with pytest.raises(StopIteration):
        loop.send([update(client, round_number=2) for client in range(3)])
    assert states[1].models.tolist() == [[1.0] * 5]
    assert states[1].slots["weight-0"]["rounds"].tolist() == [2.0] * 3
