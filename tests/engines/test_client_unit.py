"""The client as the unit: its whole update is clipped and noised once a round, and what that costs is charged."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hush.config import parse
from hush.engines.setup import Federation, prepare
from hush.engines.simulator import run
from hush.privacy import noise
from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.privacy.plan import UPDATE, PrivacyPlan
from hush.types import HushError, Relation
from tests.deploy.member.test_persons import member
from tests.statistical import release_harness as harness
from tests.support import federation_kit as kit
from tests.support.paths import ROOT

CASE = harness.Case(UPDATE, "whole updates", changes={"privacy": {"unit": "client"}})


def federation(
    recipe: str | Mapping[str, Any] = "dp-fedavg", relation: Relation = "add-remove", **more: Any
) -> Federation:
    privacy = {"unit": "client", "budgets": [1.0, 4.0] * 5, "delta": 1e-3, "relation": relation, **more}
    named = {"name": recipe} if isinstance(recipe, str) else dict(recipe)
    config = {"rounds": 6, "participation": 0.5, "data": {"clients": 10}, "privacy": privacy, "recipe": named}
    return prepare(parse({**config, "local": {"batch_size": 16}}))


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_each_round_is_charged_as_a_gaussian_and_each_budget_is_kept(relation: Relation) -> None:
    found = federation(relation=relation)
    for client, schedule in enumerate(found.schedules):
        rounds, plan = schedule.rounds, schedule.plan
        wanted = Cost(what=UPDATE, kind="gaussian", noise=plan.noise_multiplier, steps=rounds)
        assert schedule.costs() == (wanted,), "nothing is gained by sampling rows, nor by who takes part"
        # One client may move an update by two clips where it is replaced.
        halved = plan.noise_multiplier / (2 if relation == "replace-one" else 1)
        epsilon = api.epsilon_after(1.0, halved, [rounds], 1e-3)[0]
        budget = found.policies[client].epsilon
        assert 0.98 * budget < epsilon <= budget
    done = run(found).result
    for card in done.guarantees:
        assert card.unit == "client"
        assert card.epsilon_spent is not None and card.epsilon_budget is not None
        assert card.epsilon_spent <= card.epsilon_budget
    assert any("number of rows of a client" in text for text in done.not_covered)


@pytest.mark.parametrize("source", ["seeded", "secure"])
@pytest.mark.parametrize("kind", ["noise", "draws"])
def test_the_noise_of_an_update_is_what_is_charged(kind: str, source: str) -> None:
    found = harness.CHECKS[kind](CASE, source)
    assert found.ok, found.figure


def test_halved_noise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PrivacyPlan.release
    monkeypatch.setattr(
        PrivacyPlan, "release", lambda plan, update, source: 0.5 * (real(plan, update, source) + update * 0)
    )
    assert not harness.CHECKS["noise"](CASE, "seeded").ok


class _Silent(noise.Seeded):
    def normal(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype)


def test_any_update_whatever_is_cut_to_the_clip() -> None:
    """10,000 updates of every size: what the client sends but for its noise is never longer than the clip."""
    plan = PrivacyPlan(
        samples=10, batch=2, epochs=1, rounds=1, clip=0.7, noise_multiplier=1.0, relation="add-remove",
        accountant="pld", whole_update=True,
    )  # fmt: skip
    rng, longest = np.random.default_rng(0), 0.0
    for _ in range(10_000):
        update = rng.normal(size=8) * 10.0 ** rng.uniform(-45, 38)
        if rng.random() < 0.1:
            update[rng.integers(8)] = rng.choice([math.inf, -math.inf, math.nan, 3e38, 1e-45, 0.0])
        with np.errstate(over="ignore"):
            sent = plan.release(torch.from_numpy(update.astype(np.float32)).double(), _Silent(0, 0, 0))
        assert bool(sent.isfinite().all())
        longest = max(longest, float(sent.norm()))
    assert 0.69 < longest <= 0.7


@pytest.mark.parametrize(
    ("recipe", "privacy", "says"),
    [
        ("hush", {}, "mean of the inputs"),
        ("pfa", {"discrete": True}, "discrete = false"),
        ("dp-scaffold", {}, "control variates|fixed size|accepted"),
        ({"protect": {"rule": "dp-sgd", "clip": "adaptive"}}, {}, "clip quantile"),
        ({"weight": {"rule": "samples", "counts": "noisy"}}, {}, "number of training samples"),
    ],
)
def test_what_rows_change_otherwise_is_refused(recipe: Any, privacy: dict[str, Any], says: str) -> None:
    with pytest.raises(HushError, match=says):
        federation(recipe, **privacy)


def test_a_member_protects_itself_as_a_whole(tmp_path: Path) -> None:
    node = member(tmp_path / "a", unit="client", keys=None)
    asks, offer = kit.Coordinator(node), kit.config(privacy__unit="client")
    assert asks.enrol(offer).fields["unit"] == "client"
    assert asks.begin(offer, unit="client").kind == "ready"
    answer = asks.task(1)
    (cost,) = node.ledger.charged(kit.RUN)
    assert (cost.kind, cost.steps) == ("gaussian", 1)
    size = answer.tensors["vector"].numel()
    assert 0.4 < float(answer.tensors["vector"].norm()) / (cost.noise * math.sqrt(size)) < 1.8
    assert "not accepted" in asks.enrol(kit.config()).fields["reason"]


def test_groups_by_budget_are_a_weight_of_a_few_lines() -> None:
    spec = importlib.util.spec_from_file_location("budget_groups_example", ROOT / "examples" / "budget_groups.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    config = {
        "rounds": 2, "data": {"clients": 6}, "local": {"batch_size": 16}, "recipe": {"weight": module.BudgetGroups()},
        "privacy": {"unit": "client", "budgets": [1.0, 1.0, 1.0, 1.0, 8.0, 8.0], "delta": 1e-3},
    }  # fmt: skip
    done = run(prepare(parse(config)))
    noises = [schedule.plan.noise_multiplier**2 for schedule in done.federation.schedules]
    # The noise of the mean of four is a quarter of theirs, that of two a half.
    groups = torch.tensor([4 / noises[0], 2 / noises[4]])
    wanted = groups / groups.sum() / torch.tensor([4, 2])
    weights = done.records[0].weights
    assert [weights[c] for c in range(6)] == pytest.approx([float(wanted[0])] * 4 + [float(wanted[1])] * 2, rel=1e-6)
