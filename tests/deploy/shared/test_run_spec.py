"""What a federation of several machines is planned for, from the config that both sides have."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.shared.run_spec import assemble, check_objective
from hush.types import HushError
from tests.support import federation_kit as kit


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
