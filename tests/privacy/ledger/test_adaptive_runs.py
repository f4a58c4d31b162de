"""An adversarial scheduler chooses runs after seeing releases: a ledger never admits more than its lifetime.

The filter's figure is recomputed here from the rows alone, without the classes that admitted them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from hush.privacy import ledger_check
from hush.privacy.accounting import api, pld, privacy_filter
from hush.privacy.accounting.cost import Cost, Kind
from hush.privacy.accounting.events import parts_of_costs
from hush.privacy.ledger import BudgetSpentError, Ledger, book, totals
from hush.types import Accountant, Policy, Relation

Drawn = np.random.Generator


def cost(rate: float, noise: float, steps: int) -> Cost:
    kind: Kind = "gaussian" if rate == 1.0 else "poisson-gaussian"
    return Cost(what="model update", kind=kind, noise=noise, steps=steps, rate=rate)


def adversary(ledger: Ledger, rng: Drawn, runs: int = 12) -> int:
    """Choose schedules by what is left and by what was "released", stop some early, and go on after refusals."""
    admitted = 0
    kinds = [(0.1, 4.0, 20), (0.02, 1.5, 50), (1.0, 20.0, 3), (0.3, 3.0, 4), (0.05, 2.0, 10)]
    for number in range(runs):
        rate, noise, steps = kinds[int(rng.integers(len(kinds)))]
        seen = rng.normal()  # what the adversary reads from the releases so far
        noise *= float(np.exp(0.5 * seen)) if number else 1.0
        noise, steps = max(round(noise, 1), 0.5), int(steps * rng.integers(1, 4))
        costs, run = [cost(rate, noise, steps)], f"run {number}"
        if rng.random() < 0.7:
            try:
                ledger.approve(costs * 4, run)
            except BudgetSpentError:
                continue
        for count in range(int(rng.integers(1, 5))):
            try:
                ledger.reserve(costs, run, count + 1)
                admitted += 1
            except BudgetSpentError:
                break
    return admitted


def recomputed(rows: Iterable[book.Row], policy: Policy, accountant: Accountant) -> float:
    """The filter's figure from the rows, without the classes that admitted them."""
    first: list[Cost] = []
    direct: list[Cost] = []
    conversions: list[tuple[float, float]] = []
    left: dict[str, list[Cost]] = {}
    for row in rows:
        if row.kind == book.PLANNED:
            words = json.loads(row.detail)
            costs = [Cost(**each) for each in words["costs"]]
            if first:
                conversions.append((words["units"], words["doubt"]))
                left.setdefault(row.run, []).extend(costs)
            else:
                first = costs
        elif row.kind == book.RESERVED:
            costs = [Cost(**each) for each in json.loads(row.detail)]
            first = first or costs
            kinds = {(each.rate, each.noise) for each in first}
            gaussian = all(each.rate == 1.0 for each in first)
            if taken(left.get(row.run, []), costs):
                continue
            assert accountant != "pld" or all(
                (gaussian and c.rate == 1.0) or (c.rate, c.noise) in kinds for c in costs
            ), "neither nor"
            direct += costs
    converted = privacy_filter.Conversion(sum(u for u, _ in conversions), sum(d for _, d in conversions))
    state = privacy_filter.State(parts_of_costs(first), parts_of_costs(direct), converted, len(conversions))
    if privacy_filter.within_first(state):
        return api.epsilon_of(first, policy.delta, policy.relation, accountant)
    return privacy_filter.bound(state, policy, accountant)


def taken(left: list[Cost], costs: list[Cost]) -> bool:
    """Take steps from a plan, if it has them."""
    have: dict[tuple[float, float], int] = {}
    for each in left:
        have[each.rate, each.noise] = have.get((each.rate, each.noise), 0) + each.steps
    want: dict[tuple[float, float], int] = {}
    for each in costs:
        want[each.rate, each.noise] = want.get((each.rate, each.noise), 0) + each.steps
    if any(have.get(key, 0) < steps for key, steps in want.items()):
        return False
    left[:] = [cost(rate, noise, steps - want.get((rate, noise), 0)) for (rate, noise), steps in have.items()]
    return True


def rows_of(ledger: Ledger) -> list[book.Row]:
    return [book.Row._make(raw[:10]) for raw in ledger._db.execute("SELECT * FROM rows ORDER BY seq")]


def second_opinion(ledger: Ledger) -> float:
    """The filter's figure by the file for auditors, which shares no code with what admits; it checks conversions."""
    account = ledger_check.read_rows([row._asdict() for row in rows_of(ledger)])
    found = ledger_check.figures(account, {})
    assert all(each.agrees for each in found), ledger_check.report(found)
    return next(each.found for each in found if "filter" in each.name)


def examine(seed: int, *, twice: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    relation: Relation = "replace-one" if seed % 3 == 2 else "add-remove"
    accountant: Accountant = "rdp" if seed % 5 == 4 and relation == "add-remove" else "pld"
    policy = Policy(float(rng.choice([0.5, 1.0, 3.0])), 1e-5, relation)
    with Ledger.in_memory(1, policy, accountant) as ledger:
        admitted = adversary(ledger, rng)
        found = recomputed(rows_of(ledger), policy, accountant)
        assert found <= policy.epsilon + totals.SLACK
        assert ledger.spent() <= ledger.filtered() + 1e-9 <= policy.epsilon + 2e-9
        if twice:
            assert second_opinion(ledger) == pytest.approx(ledger.filtered(), rel=5e-3, abs=2e-3)
        return {"admitted": admitted, "filter": ledger.filtered(), "fixed": ledger.spent(), "lifetime": policy.epsilon}


def test_adaptive_sequences_stay_within_the_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_check, "GRID", 1e-3)
    found = [examine(seed, twice=seed in (0, 2, 4)) for seed in range(15)]
    assert sum(one["admitted"] > 0 for one in found) > 11
    assert sum(one["filter"] > 0.5 * one["lifetime"] for one in found) > 5, "the adversary did not try hard"


def test_the_filter_alone_keeps_a_lifetime() -> None:
    """A schedule of another kind whose fixed composition fits, and whose conversion just does, or just does not."""
    policy, first = Policy(1.0, 1e-5), [cost(0.1, 6.0, 20)]

    def filtered(noise: float) -> float:
        schedules = [parts_of_costs(first), parts_of_costs([cost(0.02, noise, 400)])]
        state = privacy_filter.of_schedules(schedules, policy, "pld")
        return privacy_filter.bound(state, policy, "pld")

    low, high = 0.5, 20.0
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if filtered(middle) <= policy.epsilon else (middle, high)
    # Units are whole numbers, so that the figure has steps: the next one above the budget is a few percent above it.
    beyond = low
    assert policy.epsilon < filtered(beyond) < 1.05 * policy.epsilon
    assert api.epsilon_of([*first, cost(0.02, beyond, 400)], policy.delta) < policy.epsilon
    for noise, fits in ((high, True), (beyond, False)):
        with Ledger.in_memory(1, policy) as ledger:
            ledger.approve(first, "one")
            ledger.reserve(first, "one", 1)
            assert ledger.affords([cost(0.02, noise, 400)], "two") == fits


@pytest.mark.soak
def test_a_thousand_adaptive_sequences_stay_within_the_lifetime() -> None:
    for seed in range(1000):
        examine(seed, twice=seed % 10 == 0)


def test_a_ledger_that_forgets_conversions_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong twin: schedules of another kind cost nothing, as if they were post-processing."""
    monkeypatch.setattr(privacy_filter, "_converted", lambda *_: privacy_filter.Conversion(0.0, 0.0))
    policy = Policy(1.0, 1e-5)
    with Ledger.in_memory(1, policy) as ledger:
        ledger.approve([cost(0.1, 8.0, 100)], "one")
        ledger.reserve([cost(0.1, 8.0, 100)], "one", 1)
        with pytest.raises(BudgetSpentError):
            for number in range(50):
                ledger.reserve([cost(0.2, 9.0, 10 + number)], "other", number + 1)
        monkeypatch.undo()
        privacy_filter._converted.cache_clear()
        state = privacy_filter.State(parts_of_costs([cost(0.1, 8.0, 100)]), parts_of_costs([cost(0.1, 8.0, 100)]))
        for row in rows_of(ledger):
            if row.kind == book.RESERVED and row.run == "other":
                steps = parts_of_costs([Cost(**each) for each in json.loads(row.detail)])
                state = privacy_filter.after(state, steps, policy, "pld")
        worst = privacy_filter.bound(state, policy, "pld")
    assert worst > policy.epsilon


def test_stopping_early_leaves_the_rest_to_schedules_of_its_kind() -> None:
    noise = api.noise_multiplier(1.0, 1e-5, 0.1, 100)
    with Ledger.in_memory(1, Policy(1.0, 1e-5)) as ledger:
        ledger.approve([cost(0.1, noise, 100)], "first")
        for number in range(3):
            ledger.reserve([cost(0.1, noise, 10)], "first", number + 1)
        assert ledger.filtered() == ledger.spent() < 0.7
        ledger.approve([cost(0.1, noise, 70)], "second")
        ledger.reserve([cost(0.1, noise, 70)], "second", 1)
        with pytest.raises(BudgetSpentError, match="by the privacy filter"):
            ledger.reserve([cost(0.3, 20.0 * noise, 1)], "third", 1)


def test_a_converted_schedule_is_counted_once_however_it_is_charged() -> None:
    policy = Policy(2.0, 1e-5)
    with Ledger.in_memory(1, policy) as ledger:
        ledger.approve([cost(0.1, 10.0, 100)], "a")
        ledger.reserve([cost(0.1, 10.0, 100)], "a", 1)
        ledger.approve([cost(0.2, 15.0, 60)], "b")
        after = ledger.filtered()
        for number in range(6):
            ledger.reserve([cost(0.2, 15.0, 10)], "b", number + 1)
        assert ledger.filtered() == after
        fixed = pld.epsilon([pld.Part(0.1, 10.0, 100), pld.Part(0.2, 15.0, 60)], 1e-5, "add-remove")
        assert ledger.spent() == pytest.approx(fixed, rel=1e-9)
        assert fixed <= after <= 1.02 * fixed
        assert not math.isinf(after)
