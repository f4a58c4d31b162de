"""Protection: policies by budget rule, and the plans of each way to spread a budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hush.config import Config, LocalConfig, PrivacyConfig
from hush.privacy.plan import PrivacyPlan
from hush.recipes import RECIPES, Recipe, parse
from hush.recipes.slots.protect import DpSgd, NoPrivacy
from hush.server.participation import stages_of
from hush.types import HushError, Member, Policy
from tests.conformance.references import dp_scaffold

MEMBERS = [
    Member(client=c, policy=Policy(e, d), samples=100, batch=10)
    for c, (e, d) in enumerate([(1.0, 1e-4), (0.2, 1e-5), (3.0, 1e-3)])
]


def plans(protect: DpSgd | NoPrivacy, members: list[Member], rounds: int, config: Config) -> list[PrivacyPlan]:
    stage_table = Recipe(protect=protect).stage_table(rounds)
    orders = stages_of(stage_table, (tuple(range(len(members))),) * rounds, len(members))
    schedules = protect.schedules(members, stage_table, orders, config)
    return [schedule.plan for schedule in schedules]


def test_policies_by_budget_rule() -> None:
    assert [p.epsilon for p in DpSgd(budget="own").policies(MEMBERS)] == [1.0, 0.2, 3.0]
    assert {(p.epsilon, p.delta) for p in DpSgd(budget="minimum").policies(MEMBERS)} == {(0.2, 1e-5)}
    assert {(p.epsilon, p.delta) for p in DpSgd(budget="maximum").policies(MEMBERS)} == {(3.0, 1e-3)}
    assert all(p.epsilon == float("inf") for p in NoPrivacy().policies(MEMBERS))


def test_open_plan_costs_infinity() -> None:
    (plan,) = plans(NoPrivacy(), MEMBERS[:1], 3, Config(local=LocalConfig(batch_size=10)))
    assert not plan.private
    assert plan.rounds == 3
    assert plan.update_noise(0.1, 50) == 0.0


def test_equal_noise_lets_small_budgets_leave_early() -> None:
    spread = plans(DpSgd(), MEMBERS, 20, Config())
    equal = plans(DpSgd(spread="equal-noise"), MEMBERS, 20, Config())
    assert {plan.noise_multiplier for plan in equal} == {spread[2].noise_multiplier}
    assert [plan.rounds for plan in spread] == [20, 20, 20]
    assert equal[2].rounds == 20 > equal[0].rounds > equal[1].rounds >= 0
    loud = plans(DpSgd(spread="equal-noise", noise=40.0), MEMBERS, 20, Config())
    assert {plan.noise_multiplier for plan in loud} == {40.0}
    with pytest.raises(HushError, match=r"recipe.protect.noise: can be given only with"):
        parse({"protect": {"rule": "dp-sgd", "noise": 3.0}})


def test_noise_for_users_is_the_papers_step_by_step() -> None:
    """S = 2 C / s in place of 2 C / (s R): what is added to the mean of a batch, at a sigma_g of 3."""
    config = Config(privacy=PrivacyConfig(clip=0.7), local=LocalConfig(batch_size=10))
    members = [replace(MEMBERS[0], samples=samples) for samples in (100, 40)]
    for level in ("rows", "user"):
        protect = DpSgd(spread="equal-noise", noise=2 * 3.0, level=level)
        for member, plan in zip(members, plans(protect, members, 20, config), strict=True):
            expected = 3.0 * dp_scaffold.sensitivity(0.7, 10 / member.samples, member.samples, level == "user")
            assert plan.noise_multiplier * plan.clip / plan.batch == pytest.approx(expected, rel=1e-12)
    named = {release.what for release in DpSgd(level="user").releases() if not release.covered}
    assert "guarantee for a user" in named
    with pytest.raises(HushError, match=r"recipe.protect.level: .*accepted: \"rows\""):
        plans(DpSgd(level="user"), MEMBERS, 20, Config())


def test_faithful_mode_uses_the_papers_accountant() -> None:
    """Robust-HDP's accountant asks for 1.25 times the noise of a full Renyi one at epsilon 1, and 4.7 at 0.15."""
    name, recipe = parse({"name": "robust-hdp"}, "faithful")
    assert name == "robust-hdp"
    members = [Member(client=c, policy=Policy(e, 1e-4), samples=2400, batch=32) for c, e in enumerate([1.0, 0.15])]
    config = Config(privacy=PrivacyConfig(accountant="rdp"))
    full = plans(DpSgd(), members, 200, config)
    dated = plans(DpSgd(accountant="rdp-64"), members, 200, config)
    assert recipe.protect == DpSgd(accountant="rdp-64", sampler="even")
    assert {plan.accountant for plan in dated} == {"rdp-64"}
    ratios = [b.noise_multiplier / a.noise_multiplier for a, b in zip(full, dated, strict=True)]
    assert ratios == pytest.approx([1.25, 4.7], rel=0.03)
    assert parse({"name": "fedavg"}, "faithful")[1] == RECIPES["fedavg"]
