"""Set-up of a run: what clients declare to the server, where that is not what they keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hush
from hush.config import parse
from hush.engines.setup import prepare
from hush.server.loop import enrolled
from hush.types import HushError, RoundRecord

BASE: dict[str, Any] = {
    "seed": 1,
    "rounds": 3,
    "data": {"name": "digits", "clients": 4},
    "privacy": {"budgets": [0.3, 0.3, 2.0, 2.0], "delta": 1e-4},
    "local": {"lr": 0.2},
}


def declaring(declared: Any, recipe: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    name = {"name": recipe} if isinstance(recipe, str) else recipe
    return {**BASE, **more, "recipe": name, "privacy": {**BASE["privacy"], "declared": declared}}


def test_the_server_believes_what_is_declared_and_clients_keep_their_own() -> None:
    honest = prepare(parse({**BASE, "recipe": {"name": "weiavg"}}))
    lied = prepare(parse(declaring({0: 6.0}, "weiavg")))
    assert enrolled(lied.terms).epsilon.tolist() == [6.0, 0.3, 2.0, 2.0]
    assert [policy.epsilon for policy in lied.policies] == [0.3, 0.3, 2.0, 2.0]
    assert lied.schedules == honest.schedules
    expected = prepare(parse({**BASE, "recipe": {"name": "weiavg"}, "privacy": {"budgets": [6.0, 0.3, 2.0, 2.0]}}))
    torch.testing.assert_close(lied.terms.planned_noise, expected.terms.planned_noise)


def test_estimated_noise_does_not_follow_a_false_budget_and_declared_weights_do() -> None:
    moved = {}
    for recipe in ("robust-hdp", "weiavg", "hush"):
        honest: list[RoundRecord] = []
        false: list[RoundRecord] = []
        kept = hush.simulate({**BASE, "recipe": {"name": recipe}}, progress=honest.append)
        lied = hush.simulate(declaring([6.0, 0.3, 2.0, 2.0], recipe), progress=false.append)
        moved[recipe] = [record.weights for record in honest] != [record.weights for record in false]
        assert [card.epsilon_spent for card in lied.guarantees] == [card.epsilon_spent for card in kept.guarantees]
    assert moved == {"robust-hdp": False, "weiavg": True, "hush": False}


def test_a_resumed_run_goes_on_with_what_was_declared(tmp_path: Path) -> None:
    config = declaring({0: 6.0}, "weiavg")
    whole = hush.simulate(config)
    hush.simulate({**config, "rounds": 2}, out=str(tmp_path / "run"))
    disclosed = prepare(parse(config)).counted([360, 360, 360, 357])
    assert enrolled(disclosed.terms).epsilon.tolist() == [6.0, 0.3, 2.0, 2.0]
    assert whole.trained


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (declaring({0: 6.0}, "minimum"), r"privacy.declared: under this recipe all clients train at a budget"),
        (declaring({9: 6.0}, "weiavg"), r"privacy.declared: no client is called 9"),
        (declaring([1.0], "weiavg"), r"privacy.declared: 1 numbers for 4 clients"),
        (
            declaring({0: 6.0}, {"name": "dp-fedavg", "weight": {"rule": "samples", "counts": "noisy"}}),
            r"privacy.declared: cannot be combined with noisy counts",
        ),
    ],
)
def test_what_cannot_be_declared(config: dict[str, Any], message: str) -> None:
    with pytest.raises(HushError, match=message):
        prepare(parse(config))
