"""A ledger in memory against a ledger with a database: the same decisions, sums and messages."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from hush.privacy.accounting import gaussian
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BudgetSpentError, Ledger, MemoryLedger
from hush.types import HushError, Policy

POLICY = Policy(1.0, 1e-5)
ROUND = (
    Cost(what="model update", kind="poisson-gaussian", noise=6.0, steps=10, rate=0.1),
    Cost(what="cluster choice", kind="gaussian", noise=60.0, steps=1),
)


def test_it_decides_and_counts_as_a_ledger_with_a_database_does() -> None:
    stored, light = Ledger.in_memory(3, POLICY), MemoryLedger(3, POLICY)
    most = max(count for count in range(1, 100) if light.affords(ROUND * count))
    for ledger in (stored, light):
        ledger.approve(ROUND * most, "run")
    for number in range(1, 100):
        assert stored.affords(ROUND) == light.affords(ROUND)
        try:
            receipt = stored.reserve(ROUND, "run", number)
        except BudgetSpentError as error:
            with pytest.raises(BudgetSpentError) as again:
                light.reserve(ROUND, "run", number)
            assert str(again.value) == str(error)
            break
        other = light.reserve(ROUND, "run", number)
        assert (receipt.client, receipt.round, receipt.serial) == (other.client, other.round, other.serial)
        assert (stored.spent(), stored.left(), stored.rounds) == (light.spent(), light.left(), light.rounds)
        assert stored.released() == light.released()
    else:
        raise AssertionError("the budget was never spent")
    assert light.rounds > 1 and stored.terms == light.terms


@pytest.mark.parametrize("made", [MemoryLedger, Ledger.in_memory], ids=["simulated", "stored"])
def test_a_budget_is_kept_to_a_thousandth(made: Callable[[int, Policy], Ledger | MemoryLedger]) -> None:
    for part, fits in ((0.999, True), (1.001, False)):
        noise = gaussian.noise_for(part * POLICY.epsilon, POLICY.delta)
        costs = [Cost(what="model update", kind="gaussian", noise=noise, steps=1)]
        assert made(0, POLICY).affords(costs) == fits
        if fits:
            made(0, POLICY).approve(costs)
            made(0, POLICY).reserve(costs, "", 1)
            continue
        ledger = made(0, POLICY)
        with pytest.raises(BudgetSpentError):
            ledger.approve(costs)
        with pytest.raises(BudgetSpentError):
            ledger.reserve(costs, "", 1)
        assert ledger.spent() == 0.0


def test_a_round_is_charged_once_and_a_refused_charge_leaves_nothing() -> None:
    ledger = MemoryLedger(0, POLICY)
    ledger.reserve(ROUND, "run", 1)
    before = ledger.spent()
    with pytest.raises(HushError, match="already charged"):
        ledger.reserve(ROUND, "run", 1)
    with pytest.raises(BudgetSpentError):
        ledger.reserve([Cost(what="model update", kind="gaussian", noise=0.1, steps=1)], "run", 2)
    with pytest.raises(HushError, match="nothing to reserve"):
        ledger.reserve([], "run", 2)
    assert ledger.spent() == before and ledger.rounds == 1


def test_what_is_approved_needs_no_further_check_and_what_is_not_is_refused() -> None:
    ledger = MemoryLedger(0, POLICY)
    ledger.approve(ROUND)
    with pytest.raises(BudgetSpentError):
        MemoryLedger(0, POLICY).approve([Cost(what="model update", kind="gaussian", noise=0.1, steps=1)])
    with pytest.raises(HushError, match="epsilon"):
        MemoryLedger(0, Policy(-1.0, 1e-5))


def test_ledgers_that_were_charged_alike_share_what_they_keep() -> None:
    ledgers = [MemoryLedger(client, POLICY) for client in range(50)]
    for ledger in ledgers:
        ledger.reserve(ROUND, "run", 1)
    assert len({id(ledger._sums) for ledger in ledgers}) == 1
    assert sys.getsizeof(ledgers[0]) < 200 and not hasattr(ledgers[0], "__dict__")
