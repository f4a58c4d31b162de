"""The spec of a run: what is planned from the config, by the coordinator for all and by a member for itself."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush import recipes
from hush.data.schema import Schema
from hush.deploy.shared import run_spec
from hush.deploy.shared.roster import RosterEntry, roster
from hush.deploy.shared.run_spec import assemble, check_objective
from hush.engines.schedules import privacy_schedules, timetable
from hush.privacy import schedule
from hush.recipes.slots import protect
from hush.types import HushError
from tests.support import federation_kit as kit

PROTECTS: dict[str, dict[str, Any]] = {
    "own": {},
    "minimum": {"budget": "minimum"},
    "maximum": {"budget": "maximum"},
    "equal noise": {"spread": "equal-noise"},
    "equal noise, minimum": {"spread": "equal-noise", "budget": "minimum"},
    "equal noise, given": {"spread": "equal-noise", "noise": 3.0},
    "none": {"rule": "none"},
}


def facts(number: int) -> list[RosterEntry]:
    """Members with all kinds of budgets, the same ones also more than once."""
    return [
        RosterEntry(
            name=f"m{at}", epsilon=(2.0, 0.5, 4.0, 0.5, 4.0)[at % 5], delta=(1e-4, 1e-5)[at % 3 == 1],
            relation="add-remove", samples=100 + 37 * at,
        )
        for at in range(number)
    ]  # fmt: skip


def offer(number: int, protect: dict[str, Any], **changes: Any) -> Any:
    recipe = {"name": "robust-hdp", "protect": {"rule": "dp-sgd", **protect}}
    return kit.config(recipe=recipe, rounds=3, data__clients=number, privacy__accountant="rdp", **changes)


def own(config: Any, declared: list[RosterEntry], client: int) -> run_spec.MemberSpec:
    policy = roster(config, declared)[client].policy
    return run_spec.member_spec(config, declared, client, policy, Schema(shape=kit.SHAPE, classes=kit.CLASSES))


@pytest.mark.parametrize("name", PROTECTS)
def test_a_member_plans_what_is_planned_for_all_at_once(name: str) -> None:
    config, declared = offer(6, PROTECTS[name]), facts(6)
    _, recipe = recipes.parse(config.recipe, config.mode)
    members, rounds = roster(config, declared), timetable(config, recipe, 6)
    everyone = privacy_schedules(config, recipe, members, rounds.stage_table, rounds.orders, [()] * 6)
    assert [own(config, declared, client).schedule for client in range(6)] == list(everyone)


@pytest.mark.parametrize("name", PROTECTS)
def test_a_member_does_not_plan_for_two_hundred_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers come from a coordinator, who could choose them so that planning takes minutes."""
    planned = []
    for function in ("calibrated", "first"):

        def counted(*given: Any, function: str = function) -> Any:
            planned.append(function)
            return getattr(schedule, function)(*given)

        monkeypatch.setattr(protect, function, counted)
    own(offer(200, PROTECTS[name]), facts(200), 117)
    assert len(planned) <= 4


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({"task": "regression"}, 'task "regression" with loss "auto" cannot be trained in a federation'),
        ({"task": "multilabel"}, "accepted: binary or multiclass, with cross-entropy"),
        ({"loss": "huber"}, 'loss "huber" cannot be trained'),
        ({"loss": "planted:loss"}, 'loss "planted:loss" cannot be trained'),
        ({"metrics": ["planted:metric"]}, "accepted: metrics by name"),
        ({"task": "binary"}, '"binary" needs two classes, the run has 3'),
    ],
)
def test_an_objective_that_members_cannot_train_is_refused(objective: dict[str, Any], words: str) -> None:
    with pytest.raises(HushError, match=words):
        check_objective(kit.config(objective=objective), 3)


def test_the_coordinator_knows_the_objective_of_the_run() -> None:
    config = kit.config(objective={"metrics": ["f1"]})
    check_objective(config, 3)
    entry = {"epsilon": 1.0, "delta": 1e-4, "relation": "add-remove", "samples": kit.ROWS}
    facts = [kit.RosterEntry(name=name, **entry) for name in ("a", "b")]  # type: ignore[arg-type]
    objective = assemble(config, facts, kit.data()).model.objective
    assert objective.task == "multiclass" and objective.outputs == 3
    assert [metric.name for metric in objective.reported] == ["accuracy", "f1"]
