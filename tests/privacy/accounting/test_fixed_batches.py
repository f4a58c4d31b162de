"""Batches of a fixed size, drawn without replacement, under replace-one."""

from __future__ import annotations

import math

import dp_accounting as dp
import pytest
from dp_accounting.rdp import RdpAccountant

from hush.privacy.accounting import api, pld
from hush.privacy.accounting.cost import Cost
from hush.privacy.accounting.pld import Part
from hush.types import Accountant, HushError, Relation
from tests.support.reference_accountant import composed, reference_epsilon

DELTA = 1e-5


def fixed(samples: int, batch: int, noise: float, steps: int = 1) -> Cost:
    return Cost(what="model update", kind="fixed-gaussian", noise=noise, steps=steps, samples=samples, batch=batch)


def spent(*costs: Cost) -> float:
    return api.epsilon(composed(costs), DELTA, "replace-one", "rdp")


def upstream(*steps: tuple[dp.DpEvent, int]) -> float:
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    for event, count in steps:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(DELTA))


def attained(samples: int, batch: int, noise: float, steps: int) -> float:
    """An epsilon that some neighbours reach, so that no sound bound is below it.

    Let every other row have the gradient -C, and the row itself C in one dataset and -C in the other. Then the sum is
    -C per row in one, and in the other 2 C more whenever the row is drawn: a Gaussian shifted by 2 C at that rate.
    """
    return pld.epsilon([Part(batch / samples, noise / 2.0, steps)], DELTA, "add-remove")


def test_a_full_batch_is_a_plain_gaussian_under_replace_one() -> None:
    full = spent(fixed(100, 100, 2.0))
    assert full == spent(Cost(what="model update", kind="gaussian", noise=2.0, steps=1))
    exact = dp.get_epsilon_gaussian(1.0, DELTA)
    assert exact == pytest.approx(4.38, abs=0.005)
    assert exact <= full <= 1.1 * exact
    assert upstream((dp.SampledWithoutReplacementDpEvent(100, 100, dp.GaussianDpEvent(2.0)), 1)) < exact / 1.5


@pytest.mark.parametrize(
    ("samples", "batch", "noise", "steps"), [(4000, 40, 2.0, 500), (1000, 10, 1.6, 1000), (2000, 100, 3.0, 200)]
)
def test_the_factor_of_two_is_needed_and_enough(samples: int, batch: int, noise: float, steps: int) -> None:
    least = attained(samples, batch, noise, steps)
    assert spent(fixed(samples, batch, noise, steps)) >= least
    event = dp.SampledWithoutReplacementDpEvent(samples, batch, dp.GaussianDpEvent(noise))
    assert upstream((event, steps)) < least, "dp_accounting now counts the factor of two: do not halve any more"
    # Nor would Poisson sampling at the same rate do: what is attained is more than its replace-one epsilon.
    assert pld.epsilon([Part(batch / samples, noise, steps)], DELTA, "replace-one") < least


def test_it_composes_with_itself_and_with_plain_gaussians() -> None:
    halved = dp.SampledWithoutReplacementDpEvent(500, 25, dp.GaussianDpEvent(1.5))
    both = spent(
        fixed(500, 25, 3.0, 40),
        Cost(what="sample count", kind="gaussian", noise=20.0, steps=1),
        fixed(500, 25, 3.0, 60),
    )
    assert both == pytest.approx(upstream((halved, 100), (dp.GaussianDpEvent(10.0), 1)), rel=1e-12)
    assert both > spent(fixed(500, 25, 3.0, 100)) > spent(fixed(500, 25, 3.0, 99))
    nested = dp.SelfComposedDpEvent(fixed(500, 25, 3.0, 10).event(), 10)
    assert api.epsilon(nested, DELTA, "replace-one", "rdp") == spent(fixed(500, 25, 3.0, 100))


def test_no_noise_costs_everything_and_no_step_nothing() -> None:
    bare = dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(0.0))
    assert api.epsilon(bare, DELTA, "replace-one", "rdp") == math.inf
    assert spent(fixed(100, 10, 1.0, 0)) == 0.0


@pytest.mark.parametrize(
    ("relation", "accountant"), [("replace-one", "pld"), ("add-remove", "pld"), ("add-remove", "rdp")]
)
def test_elsewhere_it_is_refused(relation: Relation, accountant: Accountant) -> None:
    words = r"^event: found batches of a fixed size.*accepted for these: accountant rdp under relation replace-one$"
    for others in ([], [Cost(what="sample count", kind="gaussian", noise=9.0, steps=1)]):
        event = composed([fixed(100, 10, 2.0), *others])
        with pytest.raises(HushError, match=words):
            api.epsilon(event, DELTA, relation, accountant)
    with pytest.raises(HushError, match=words):
        reference_epsilon(event, DELTA, relation)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_two_samplers_are_never_mixed(relation: Relation, accountant: Accountant) -> None:
    event = composed(
        [fixed(100, 10, 2.0), Cost(what="model update", kind="poisson-gaussian", noise=2.0, steps=5, rate=0.1)]
    )
    with pytest.raises(HushError, match=r"^event: found Poisson batches and batches of a fixed size"):
        api.epsilon(event, DELTA, relation, accountant)


@pytest.mark.parametrize(("samples", "batch"), [(10, 11), (10, 0)])
def test_an_impossible_batch_is_refused(samples: int, batch: int) -> None:
    event = dp.SampledWithoutReplacementDpEvent(samples, batch, dp.GaussianDpEvent(1.0))
    with pytest.raises(HushError, match=r"^event: cannot account for"):
        api.epsilon(event, DELTA, "replace-one", "rdp")


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_plain_and_poisson_releases_of_all_kinds_compose(relation: Relation) -> None:
    costs = [
        Cost(what="first round on all rows", kind="gaussian", noise=12.0, steps=1),
        Cost(what="model update", kind="poisson-gaussian", noise=2.0, steps=300, rate=0.02),
        Cost(what="model update", kind="poisson-gaussian", noise=1.5, steps=40, rate=0.01),
        Cost(what="sample count", kind="gaussian", noise=30.0, steps=2),
    ]
    event = composed(costs)
    ours, theirs = api.epsilon(event, DELTA, relation), reference_epsilon(event, DELTA, relation)
    assert theirs <= ours <= theirs * (1.0 + 2e-5)
    for left_out in range(len(costs)):
        rest = composed(costs[:left_out] + costs[left_out + 1 :])
        assert api.epsilon(rest, DELTA, relation) < ours
