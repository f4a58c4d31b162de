from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hush.config import Config, LocalConfig, PrivacyConfig
from hush.engines.server_rng import server_rng
from hush.privacy.plan import PrivacyPlan
from hush.recipes import RECIPES, SUMMARIES, Recipe, RoundView, parse
from hush.recipes.slots.protect import DpSgd, NoPrivacy
from hush.recipes.slots.step import Add, Ema, Momentum, Tail
from hush.recipes.slots.weight import Epsilon, EstimatedNoise, Samples, Uniform
from hush.server.participation import stages_of
from hush.types import HushError, Member, Policy


def view(updates: Tensor) -> RoundView:
    n = len(updates)
    numbers = torch.arange(1, n + 1, dtype=torch.float64)
    return RoundView(
        round=1,
        clients=tuple(range(n)),
        updates=updates,
        samples=10 * numbers,
        epsilon=numbers / 2,
        planned_noise=1 / numbers,
    )


MEMBERS = [
    Member(client=c, policy=Policy(e, d), samples=100, batch=10)
    for c, (e, d) in enumerate([(1.0, 1e-4), (0.2, 1e-5), (3.0, 1e-3)])
]


def test_every_recipe_is_summed_up() -> None:
    asked = (
        "robust-hdp weiavg pfa dp-fedavg minimum maximum dp-scaffold dp-scaffold-warm scaffold scaffold-warm fedavg "
        "fedsgd dp-fedsgd pfa-plus rc-dpfl km-cdpfl f-cdpfl o-cdpfl padpfl fedprox hush"
    )
    assert set(RECIPES) == set(SUMMARIES) == set(asked.split())


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (Samples(), [1 / 6, 2 / 6, 3 / 6]),
        (Uniform(), [1 / 3, 1 / 3, 1 / 3]),
        (Epsilon(), [1 / 6, 2 / 6, 3 / 6]),
        (EstimatedNoise("declared"), [1 / 6, 2 / 6, 3 / 6]),
    ],
)
def test_weights(option: Samples, expected: list[float]) -> None:
    weighing, state = option.weight(view(torch.zeros(3, 4)), {})
    torch.testing.assert_close(weighing.weights, torch.tensor(expected, dtype=torch.float64))
    assert state == {}


@pytest.mark.parametrize("estimator", ["rpca", "pairwise"])
def test_estimated_noise_prefers_the_quiet_client(estimator: str) -> None:
    generator = torch.Generator().manual_seed(1)
    scale = torch.tensor([0.1, 1.0, 1.0, 3.0])
    updates = 0.2 + scale[:, None] * torch.randn(4, 2000, generator=generator)
    weighing, _ = EstimatedNoise(estimator).weight(view(updates), {})  # type: ignore[arg-type]
    assert weighing.weights.argmax() == 0
    assert weighing.weights.argmin() == 3
    assert weighing.weights.sum().item() == pytest.approx(1.0)
    assert weighing.noise is not None


def test_policies_by_budget_rule() -> None:
    assert [p.epsilon for p in DpSgd(budget="own").policies(MEMBERS)] == [1.0, 0.2, 3.0]
    assert {(p.epsilon, p.delta) for p in DpSgd(budget="minimum").policies(MEMBERS)} == {(0.2, 1e-5)}
    assert {(p.epsilon, p.delta) for p in DpSgd(budget="maximum").policies(MEMBERS)} == {(3.0, 1e-3)}
    assert all(p.epsilon == float("inf") for p in NoPrivacy().policies(MEMBERS))


def test_what_is_not_covered_is_declared() -> None:
    gaps = {name: [r.what for r in recipe.releases() if not r.covered] for name, recipe in RECIPES.items()}
    assert gaps["robust-hdp"] == []
    assert gaps["fedavg"] == ["model update", "number of training samples"]
    assert gaps["maximum"] == ["privacy beyond the client's own budget", "number of training samples"]
    assert gaps["weiavg"] == ["privacy budget"]


def plans(protect: DpSgd | NoPrivacy, members: list[Member], rounds: int, config: Config) -> list[PrivacyPlan]:
    stage_table = Recipe(protect=protect).stage_table(rounds)
    orders = stages_of(stage_table, (tuple(range(len(members))),) * rounds, len(members))
    schedules = protect.schedules(members, stage_table, orders, config)
    return [schedule.plan for schedule in schedules]


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


def walk(step: Add | Momentum | Ema | Tail, rounds: int) -> tuple[Tensor, Tensor]:
    models = torch.zeros(1, 1)
    state = step.start(models)
    for _ in range(rounds):
        models, state = step.step(models, torch.ones(1, 1), state, server_rng(0, False)(1))
    return models, step.released(models, state)


def test_steps() -> None:
    assert walk(Add(lr=0.5), 4)[1].item() == 2.0
    assert walk(Momentum(lr=1.0, beta=0.5), 3)[1].item() == pytest.approx(1 + 1.5 + 1.75)
    trained, released = walk(Ema(decay=0.5), 3)
    assert trained.item() == 3.0
    assert released.item() == pytest.approx((0.125 * 1 + 0.25 * 2 + 0.5 * 3) / 0.875)
    trained, released = walk(Tail(start_round=3), 5)
    assert (trained.item(), released.item()) == (5.0, 4.0)
    assert walk(Tail(start_round=9), 5)[1].item() == 5.0
    assert walk(Ema(decay=0.5, inner=Momentum(beta=0.5)), 1)[1].item() == 1.0


def test_parse_names_slots_and_mixtures() -> None:
    assert parse({"name": "weiavg"}) == ("weiavg", RECIPES["weiavg"])
    name, recipe = parse({"weight": {"rule": "estimated-noise", "estimator": "pairwise"}})
    assert (name, recipe.weight) == ("custom", EstimatedNoise("pairwise"))
    name, recipe = parse({"name": "robust-hdp", "step": {"rule": "ema", "decay": 0.8, "inner": {"rule": "momentum"}}})
    assert name == "robust-hdp (modified)"
    assert recipe.step == Ema(0.8, Momentum())
    assert parse({"weight": "uniform"})[1].weight == Uniform()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "robust-hpd"}, r"recipe.name: unknown recipe 'robust-hpd'; did you mean robust-hdp\?"),
        ({"name": 3}, "recipe.name: unknown recipe 3"),
        ({"wiegh": "uniform"}, "recipe.wiegh: unknown key 'wiegh'; did you mean weight?"),
        ({"weight": "unifrom"}, "recipe.weight.rule: unknown rule 'unifrom'; did you mean uniform"),
        ({"weight": {"estimator": "rpca"}}, "recipe.weight: expected a rule name or a table"),
        (
            {"weight": {"rule": "estimated-noise", "estimator": "svd"}},
            "recipe.weight.estimator: expected 'rpca', 'pair",
        ),
        ({"weight": {"rule": "uniform", "x": 1}}, "recipe.weight.x: unknown key"),
        ({"step": {"rule": "momentum", "beta": 1.0}}, "recipe.step.beta: expected a number from 0 to below 1"),
        ({"step": {"rule": "ema", "inner": {"rule": "ad"}}}, "recipe.step.inner.rule: unknown rule 'ad'"),
        ({"step": {"rule": "add", "lr": "fast"}}, "recipe.step.lr: expected a valid number"),
    ],
)
def test_mistakes(table: dict[str, object], words: str) -> None:
    with pytest.raises(HushError, match=words) as caught:
        parse(table)
    assert "\n" not in str(caught.value)


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


def test_noise_can_be_estimated_once() -> None:
    """What was heard of a client first is kept; who comes later is estimated then."""
    once = EstimatedNoise("pairwise", "once")
    quiet = torch.ones(3, 400) + torch.tensor([[0.1], [1.0], [3.0]]) * torch.randn(3, 400, generator=_seeded(1))
    loud = torch.ones(3, 400) + 9.0 * torch.randn(3, 400, generator=_seeded(2))
    both = replace(view(quiet), budgets=torch.ones(4))
    first, state = once.weight(both, {})
    again, kept = once.weight(replace(both, updates=loud, round=2), state)
    assert torch.equal(first.weights, again.weights) and torch.equal(state["noise"][:3], kept["noise"][:3])
    later = replace(both, updates=loud, clients=(0, 1, 3), round=3)
    joined, learnt = once.weight(later, kept)
    assert torch.equal(learnt["noise"][:3], state["noise"][:3]) and bool(learnt["noise"].isfinite().all())
    assert len(joined.weights) == 3
    each, _ = EstimatedNoise("pairwise").weight(replace(both, updates=loud), {})
    assert not torch.allclose(each.weights, first.weights)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
