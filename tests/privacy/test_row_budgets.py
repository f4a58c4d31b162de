"""Row budgets: rates at which every group keeps its own epsilon, with the batch that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hush.privacy import noise, row_budgets
from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost, from_json, of_group, to_json
from hush.privacy.plan import PrivacyPlan
from hush.types import HushError, Relation

GROUPS = ((0.5, 300), (2.0, 100), (8.0, 100))


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_every_group_keeps_its_budget_and_uses_nearly_all_of_it(relation: Relation) -> None:
    z, groups = row_budgets.rates(GROUPS, 50, 100, 1e-4, relation, "pld")
    assert sum(group.rate * group.units for group in groups) == pytest.approx(50, rel=1e-9)
    for group in groups:
        epsilon = api.epsilon_after(group.rate, z, [100], 1e-4, relation)[0]
        assert 0.93 * group.budget < epsilon <= group.budget
    rates = [group.rate for group in groups]
    assert rates == sorted(rates)


def test_one_group_is_a_plan_without_row_budgets() -> None:
    z, (group,) = row_budgets.rates(((2.0, 500),), 50, 100, 1e-4, "add-remove", "pld")
    assert group.rate == pytest.approx(0.1)
    assert z == pytest.approx(api.noise_multiplier(2.0, 1e-4, 0.1, 100), rel=0.01)


def test_no_row_has_more_than_its_client() -> None:
    assert row_budgets.capped(((8.0, 3), (0.5, 2), (4.0, 1)), 4.0) == ((0.5, 2), (4.0, 4))


def test_rows_are_sampled_at_the_rates_of_their_groups() -> None:
    z, groups = row_budgets.rates(GROUPS, 50, 100, 1e-4, "add-remove", "pld")
    plan = PrivacyPlan(
        samples=500, batch=50, epochs=1, rounds=10, clip=1.0, noise_multiplier=z, relation="add-remove",
        accountant="pld", groups=groups,
    )  # fmt: skip
    source, counts, draws = noise.Secure(), np.zeros(500), 2000
    for _ in range(draws):
        counts[plan.sample(source).numpy()] += 1
    first = 0
    for group in groups:
        total, tried = int(counts[first : first + group.units].sum()), draws * group.units
        assert 2 * min(stats.binom.cdf(total, tried, group.rate), stats.binom.sf(total - 1, tried, group.rate)) > 1e-6
        first += group.units
    # The planted twin: every row at the highest rate.
    assert stats.binom.sf(int(counts.sum()), draws * 500, plan.rate) > 1 - 1e-9
    cost = plan.cost()
    assert cost.rate == max(group.rate for group in groups)
    assert from_json(to_json([cost])) == (cost,)
    (small,) = of_group([cost], 0.5)
    assert (small.rate, small.groups) == (groups[0].rate, ())


def test_costs_without_groups_are_written_as_before() -> None:
    cost = Cost(what="model update", kind="poisson-gaussian", noise=1.0, steps=2, rate=0.1)
    assert "groups" not in to_json([cost])
    assert of_group([cost], 1.0) == (cost,)
    with pytest.raises(HushError, match="invalid groups"):
        Cost(what="x", kind="poisson-gaussian", noise=1.0, steps=1, rate=0.1, groups=((1.0, 0.2),))
