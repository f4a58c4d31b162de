"""Secure sums as recipes plan them: nothing wraps, what is rounded is bounded, and recipes that need more are named."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import hush
from hush.config import parse
from hush.engines import setup
from hush.privacy.update_bounds import largest_entry
from hush.recipes import RECIPES
from hush.recipes.context import DenseRows
from hush.recipes.secure_sums import SumPlan, check_recipe, excess, majority, summed
from hush.seeds import rng
from hush.server.loop import plans_of_sums
from hush.types import HushError


def plan(members: int = 5, seed: int = 0) -> SumPlan:
    drawn = rng(seed, "plan")
    weights = torch.from_numpy(drawn.dirichlet([0.3] * members))
    ranges = torch.from_numpy(10.0 ** drawn.uniform(-3, 3, members))
    step = float(weights @ ranges) / ((1 << 31) - (1 << 16))
    return SumPlan(
        group=0, clients=tuple(range(members)), weights=weights, ranges=ranges, step=step, threshold=majority(members)
    )


def config(recipe: Any = None, clients: int = 6, **more: Any) -> Any:
    budgets = [[1.0, 2.0, 4.0][c % 3] for c in range(clients)]
    return parse(
        {
            "rounds": 2, "data": {"name": "digits", "clients": clients}, "privacy": {"budgets": budgets},
            "local": {"batch_size": 32, "lr": 0.5}, "recipe": recipe or {"name": "weiavg"}, "secure_aggregation": True,
            **more,
        }
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("sign", [1.0, -1.0, math.inf, -math.inf])
def test_the_largest_numbers_of_all_do_not_wrap(seed: int, sign: float) -> None:
    made = plan(3 + seed % 40, seed)
    vectors = torch.stack([made.ranges.float() * sign * 3] * 2, 1).nan_to_num(posinf=math.inf, neginf=-math.inf)
    total = torch.stack([made.quantised(c, vector).long() for c, vector in enumerate(vectors)]).sum(0)
    assert bool((total.abs() < 1 << 31).all())
    (found,) = summed([made], list(made.clients), DenseRows(vectors))
    assert torch.equal(found.total.long(), total)
    # Cut to the ranges, which is the weighted mean of their ends.
    assert made.mean(total, made.clients).double() == pytest.approx(
        math.copysign(1, sign) * float(made.weights @ made.ranges)
    )


def test_a_range_that_were_not_public_would_wrap() -> None:
    """The bug that the test above must detect: numbers beyond the range are not cut."""
    made = plan(4)
    honest = torch.stack([made.quantised(c, 3 * made.ranges[c : c + 1].float()).long() for c in range(4)]).sum()
    uncut = sum(3 * float(made.weights[c] * made.ranges[c]) / made.step for c in range(4))
    assert abs(int(honest)) < 1 << 31 < abs(uncut)


def test_means_are_exact_up_to_half_a_step_each() -> None:
    made = plan(7, 3)
    vectors = torch.from_numpy(rng(0, "v").uniform(-1, 1, (7, 1000)) * made.ranges.numpy()[:, None]).float()
    for present in ((0, 1, 2, 3, 4, 5, 6), (0, 2, 3, 6)):
        (found,) = summed([made], list(present), DenseRows(vectors[list(present)]))
        wanted = made.shares(present) @ vectors[list(present)].double()
        error = (made.mean(found.total, present).double() - wanted).abs().max()
        rounding = 2.0**-23 * float(wanted.abs().max())
        assert float(error) <= 0.5 * len(present) * made.step / made.mass(present) + rounding
    assert summed([made], [0, 1, 2], DenseRows(vectors[:3])) == []


def test_what_is_not_a_number_counts_as_zero() -> None:
    made = plan(3)
    assert made.quantised(0, torch.tensor([math.nan, 0.0])).tolist() == [0, 0]


def test_the_step_is_far_below_the_noise_and_ranges_are_kept_by_honest_updates() -> None:
    federation = setup.prepare(config())
    terms = federation.terms
    (made,) = plans_of_sums(terms, 1)
    deviation = float((terms.planned_noise[0] / terms.layout.size).sqrt().min())
    assert made.step / float(made.weights.min()) < 1e-5 * deviation
    for schedule in federation.schedules:
        bound = largest_entry(schedule.plan, 0.5, terms.layout.size)
        assert bound > 6 * deviation
    assert largest_entry(replace(federation.schedules[0].plan, noise_multiplier=0.0), 0.5, 10) == math.inf


def test_longer_sums_than_the_plans_allow_are_not_used() -> None:
    made = plan(3)
    vectors = torch.stack([made.ranges[c].float().expand(100) for c in range(3)])
    sums = summed([made], [0, 1, 2], DenseRows(vectors))
    longest = {c: 10 * float(made.ranges[c]) for c in range(3)}
    assert excess(sums, longest) is None
    words = excess(sums, {c: 0.5 * bound for c, bound in longest.items()})
    assert words is not None
    assert "above the" in words


def test_each_recipe_can_be_summed_or_says_what_it_needs() -> None:
    found = {}
    for name, recipe in RECIPES.items():
        try:
            check_recipe(recipe)
        except HushError as error:
            found[name] = str(error).partition("; accepted")[0].removeprefix("secure_aggregation: recipe.")
    assert found == {
        "fedavg": "protect has no noise that bounds an update, from which its range follows",
        "fedsgd": "protect has no noise that bounds an update, from which its range follows",
        "fedprox": "protect has no noise that bounds an update, from which its range follows",
        "scaffold": "protect has no noise that bounds an update, from which its range follows",
        "scaffold-warm": "protect has no noise that bounds an update, from which its range follows",
        "pfa": "project needs each member's update, to find a subspace",
        "pfa-plus": "project needs each member's update, to find a subspace",
        "dp-scaffold": "local needs each member's update, for its control variate",
        "dp-scaffold-warm": "local needs each member's update, for its control variate",
        "rc-dpfl": "assign needs each member's update or choice, to find its cluster",
        "km-cdpfl": "assign needs each member's update or choice, to find its cluster",
        "f-cdpfl": "assign needs each member's update or choice, to find its cluster",
        "o-cdpfl": "assign needs each member's update or choice, to find its cluster",
        "closed-form": "step needs each member's statistics, which are no updates",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": {"name": "hush"}}, "it needs 3 budgets with 3 members each"),
        ({"recipe": {"name": "robust-hdp"}, "clients": 9, "participation": 0.9}, "participation = 1.0"),
        ({"clients": 2}, "a sum of 2 clients; accepted: 3 to 200"),
        ({"participation": 0.3}, "a sum of 2 clients"),
        ({"recipe": {"name": "dp-fedavg", "protect": {"rule": "dp-sgd", "clip": "adaptive"}}}, "noisy count of short"),
        ({"local": {"batch_size": 32, "lr": 0.5, "weight_decay": 0.1}}, "leaves updates without a bound"),
        ({"recipe": {"name": "hush", "weight": {"rule": "estimated-noise", "estimator": "declared", "when": "once"}}},
         "needs each member's update, to find its weight"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(HushError, match=words) as raised:
        setup.prepare(config(**changes))
    assert str(raised.value).startswith("secure_aggregation: ")
    assert raised.value.key == "secure_aggregation"


def test_a_sum_needs_a_majority_or_the_quorum_if_that_is_more() -> None:
    federation = setup.prepare(config())
    assert federation.terms.quorum == 4
    (made,) = plans_of_sums(federation.terms, 1)
    assert made.threshold == 4
    assert setup.prepare(config(quorum=5)).terms.quorum == 5


def test_a_server_step_learns_the_weights_of_sums_as_of_updates() -> None:
    """Its noise follows the weights of the round: without them the two-sided step would add none."""
    base: dict[str, Any] = {
        "seed": 1,
        "rounds": 3,
        "data": {"name": "digits", "clients": 4},
        "privacy": {"budgets": 4.0, "delta": 1e-4, "noise": "seeded"},
        "local": {"lr": 0.2},
    }
    losses = {
        (step, secure): hush.simulate(
            {**base, "recipe": {"name": "padpfl", "step": step}, "secure_aggregation": secure}
        ).loss
        for step in ("two-sided", "add")
        for secure in (False, True)
    }
    for step in ("two-sided", "add"):
        assert losses[step, True] == pytest.approx(losses[step, False], rel=1e-5)
    assert abs(losses["two-sided", True] - losses["add", True]) > 1e-4
