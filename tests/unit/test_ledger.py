from __future__ import annotations

import math

import pytest

from hush.privacy.ledger import BudgetSpentError, MemoryLedger
from hush.privacy.plan import calibrated, open_plan
from hush.types import HushError, Policy

POLICY = Policy(1.0, 1e-4)


def plan(rounds: int = 5, epsilon: float = 1.0) -> object:
    return calibrated(Policy(epsilon, 1e-4), samples=100, batch=20, epochs=1, rounds=rounds, clip=1.0)


def test_rounds_are_charged_until_the_budget_is_spent() -> None:
    ledger = MemoryLedger(3, POLICY, "pld")
    five = plan(5)
    ledger.approve(five)
    assert ledger.spent() == 0.0
    receipts = [ledger.reserve(five, number) for number in range(1, 6)]
    assert [(r.client, r.round, r.serial) for r in receipts] == [(3, n, n) for n in range(1, 6)]
    assert 0.98 < ledger.spent() <= 1.0
    with pytest.raises(BudgetSpentError, match=r"client 3: epsilon .* would exceed the budget of 1"):
        ledger.reserve(five, 6)
    assert ledger.rounds == 5


def test_an_unapproved_plan_is_checked_round_by_round() -> None:
    ledger = MemoryLedger(0, POLICY, "pld")
    loose = plan(5, epsilon=2.0)
    charged = 0
    with pytest.raises(BudgetSpentError):
        for number in range(1, 6):
            ledger.reserve(loose, number)
            charged += 1
    assert 0 < charged < 5
    assert ledger.spent() <= 1.0


def test_a_plan_beyond_the_budget_is_not_approved() -> None:
    with pytest.raises(BudgetSpentError):
        MemoryLedger(0, POLICY, "pld").approve(plan(5, epsilon=1.2))


def test_different_plans_compose() -> None:
    ledger = MemoryLedger(0, POLICY, "pld")
    ledger.reserve(plan(5, epsilon=0.3), 1)
    before = ledger.spent()
    ledger.reserve(plan(7, epsilon=0.5), 2)
    assert before < ledger.spent() < 1.0


def test_a_round_is_charged_once() -> None:
    ledger = MemoryLedger(0, POLICY, "pld")
    ledger.reserve(plan(), 1)
    with pytest.raises(HushError, match="already charged"):
        ledger.reserve(plan(), 1)


def test_no_privacy_costs_infinity() -> None:
    everything = Policy(math.inf, 1e-4)
    ledger = MemoryLedger(0, everything, "pld")
    bare = open_plan(everything, samples=100, batch=20, epochs=1, rounds=5)
    ledger.approve(bare)
    ledger.reserve(bare, 1)
    assert ledger.spent() == math.inf
    with pytest.raises(BudgetSpentError):
        MemoryLedger(0, POLICY, "pld").reserve(bare, 1)
