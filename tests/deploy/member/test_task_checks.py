"""A task carries what its recipe declares, of the declared types and shapes: all else is refused by its header."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.deploy.coordinator.replies import task_message
from hush.deploy.shared.extras import packed
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.shared.run_spec import assemble
from hush.deploy.transport import messages
from hush.privacy.ledger.statement import export
from hush.recipes import RECIPES
from hush.recipes.interfaces import TaskShape
from hush.server.loop import serve, start
from tests.support import federation_kit as kit

SIZE = 21
BAD: dict[str, torch.Tensor] = {
    "drift": torch.zeros(1, SIZE),
    "basis": torch.zeros(1, SIZE, dtype=torch.float64),
    "middle": torch.zeros(SIZE, dtype=torch.float64),
    "input_mean": torch.zeros(kit.SHAPE),
    "clip": torch.ones(1, dtype=torch.float64),
    "anything": torch.zeros(10_000_000),
}


@pytest.mark.parametrize("name", BAD)
def test_what_the_recipe_does_not_send_is_refused_and_costs_nothing(tmp_path: Path, name: str) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    assert asks.begin(kit.config()).kind == "ready"
    assert asks.task(1, **{name: BAD[name]}).kind == "no"  # type: ignore[arg-type]
    assert [row["kind"] for row in export(tmp_path / "a" / "ledger.db")].count("RESERVED") == 0
    assert asks.task(1).kind == "update"


@pytest.mark.parametrize("weight", [1e5, -1e9, 3e38])
def test_weights_that_enlarge_what_is_rounded_are_refused_and_cost_nothing(tmp_path: Path, weight: float) -> None:
    """Such weights, cancelling each other, made the last digits of one row's output decide about another's."""
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    assert asks.begin(kit.config()).kind == "ready"
    model = torch.zeros(1, SIZE)
    model[0, 3] = weight
    assert asks.task(1, model).fields["code"] == "task"
    assert [row["kind"] for row in export(tmp_path / "a" / "ledger.db")].count("RESERVED") == 0
    model[0, 3] = 6e4
    assert asks.task(1, model).kind == "update"


def test_a_large_tensor_is_refused_by_its_header_alone(tmp_path: Path) -> None:
    """40 MB of numbers that nobody declared: not one of them is decoded."""
    node = kit.member(tmp_path / "a")
    asks = kit.Coordinator(node)
    asks.begin(kit.config())
    tensors = {"models": torch.zeros(1, SIZE), "extras.more": torch.zeros(10_000_000)}
    content = messages.encode(messages.Message("task", {"run": asks.run, "round": 1, "head": ""}, tensors))
    tracemalloc.start()
    try:
        node.handle(content)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("recipe", "good", "bad"),
    [
        ("dp-scaffold", {"drift": torch.zeros(1, SIZE)}, [{}, {"drift": torch.zeros(2, SIZE)}]),
        ("dp-scaffold", {"drift": torch.zeros(1, SIZE)}, [{"drift": torch.zeros(1, SIZE, dtype=torch.float64)}]),
        ("pfa-plus", {"basis": BAD["basis"], "middle": BAD["middle"]}, [{"basis": BAD["basis"]}]),
        ("pfa-plus", {}, [{"basis": torch.zeros(2, SIZE, dtype=torch.float64), "middle": BAD["middle"]}]),
    ],
)
def test_what_the_recipe_sends_has_the_declared_shape(
    tmp_path: Path, recipe: str, good: dict[str, Any], bad: list[dict[str, Any]]
) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", recipes=["any"]))
    begun = asks.begin(kit.config(recipe={"name": recipe}))
    assert begun.kind == "ready", begun.fields
    for extras in bad:
        assert asks.task(1, **extras).kind == "no"
    assert asks.task(1, **good).kind == "update"


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "hush"])
def test_every_recipe_declares_what_its_tasks_carry(recipe: str) -> None:
    """Against the tasks that the server's loop makes, over all rounds."""
    budgets = [0.5] * 3 + [4.0] * 3
    facts = [
        RosterEntry(name=f"m{c}", epsilon=e, delta=1e-4, relation="add-remove", samples=kit.ROWS, group=c % 2)
        for c, e in enumerate(budgets)
    ]
    offer = kit.config(rounds=6, data__clients=6, recipe={"name": recipe}, local__lr=0.1)
    federation = assemble(offer, facts, kit.data())
    loop = serve(federation.terms, start(federation.terms, federation.starts()), lambda state, record: None)
    tasks, seen = next(loop), set[str]()
    while True:
        for task in tasks:
            message = task_message("run", task)
            declared = federation.recipe.extras(TaskShape(task.layout.size, len(task.models)))
            names = {"F32": torch.float32, "F64": torch.float64}
            sent = packed(task.extras)
            for name, tensor in sent.items():
                assert (tensor.dtype, tuple(tensor.shape)) == (names[declared[name].dtype], declared[name].shape)
            assert {name for name, extra in declared.items() if extra.always} <= set(sent)
            assert set(message.tensors) == {"models", *(f"extras.{name}" for name in sent)}
            seen |= set(sent)
        try:
            tasks = loop.send([kit.answer(federation, task) for task in tasks])
        except StopIteration:
            break
    assert seen == set(federation.recipe.extras(TaskShape(SIZE, 1)))
