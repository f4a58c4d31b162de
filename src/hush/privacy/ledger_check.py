"""A check of a ledger by a second opinion: every figure computed again from the charges, with dp-accounting alone.

This file does not import Hush. An auditor can read it from top to bottom and run it on another machine:

    pip install dp-accounting
    python ledger_check.py ROWS.jsonl FIGURES.json    a ledger: hush ledger export FILE, hush ledger show FILE --json
    python ledger_check.py ROWS.jsonl RUN/result.json the card of this client in a run that was charged to the ledger
    python ledger_check.py RUN                        a run without ledger files, by the files in its directory

It prints each figure as stated and as recomputed, and ends with status 1 if any differs: an epsilon that is lower than
the one found here by more than a thousandth, or higher by more than a hundredth, since bounds on other grids differ a
little; any other number that is not the same.

What is recomputed, from the charges alone:

    chain          the hash of every row, which contains the hash of the row before (ledger files)
    fixed          epsilon of all charges, as if all had been fixed beforehand: `epsilon_spent`
    filter         epsilon by the rule that admits runs chosen after earlier releases: `epsilon_filter`
                   (docs/proofs.md, theorems 2 and 3), with the recorded conversions checked
    left           the budget minus the filter's figure
    groups         epsilon of rows that have budgets of their own
    rounds, steps  how many charges there are, and how many noisy steps of training they contain

A unit of privacy (a row, a person, a client) changes what one unit of noise is relative to, and no formula here. Noise
of the discrete Gaussian is charged as that of the continuous one; `--discrete PARAMETERS` adds the part of delta by
which they differ at most (docs/proofs.md, theorem 7).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import dp_accounting as dp
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as Loss
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism, identity
from dp_accounting.rdp import RdpAccountant, compute_epsilon

UPDATE = "model update"
BELOW, ABOVE, LEAST = 1e-3, 1e-2, 1e-3  # relative, relative, and absolute: differences that are not reported
RESERVE = 0.01  # the part of delta that the filter keeps for conversions
GRID = 1e-4  # the interval of the losses' grid
# A step: how it is sampled ("poisson-gaussian", "gaussian", "fixed-gaussian"), noise, rate, rows, rows in a batch.
Kind = tuple[str, float, float, int, int]
Steps = dict[Kind, int]


@dataclass(kw_only=True)
class Account:
    """What a ledger holds: the policy, and what was charged, in the words of the filter.

    `first` is the schedule that the filter counts in. Charges of its kinds are `direct`; other schedules were
    `converted` when they were admitted, each to units and a doubt. `unplanned` are charges of versions that recorded no
    schedules, by run, and `admitted` the schedules of a run without ledger files, where there were several. `kinds` are
    noise and rate of the steps of training, and `updates` is how many these are.
    """

    client: Any
    epsilon: float
    delta: float
    relation: str
    accountant: str
    charges: int = 0
    total: Steps = field(default_factory=dict)
    first: Steps = field(default_factory=dict)
    direct: Steps = field(default_factory=dict)
    converted: list[tuple[Steps, float, float]] = field(default_factory=list)
    unplanned: dict[str, Steps] = field(default_factory=dict)
    admitted: list[Steps] = field(default_factory=list)
    updates: int = 0
    kinds: set[tuple[float, float]] = field(default_factory=set)
    groups: dict[float, Steps] = field(default_factory=dict)


# ---------------------------------------------------------------- epsilon of steps


def epsilon_of(steps: Steps, delta: float, relation: str, accountant: str) -> float:
    """Epsilon of these steps at this delta, as if all of them had been fixed beforehand."""
    present = {kind: count for kind, count in steps.items() if count}
    if not present:
        return 0.0
    if any(kind[1] == 0 for kind in present):
        return math.inf
    if accountant != "pld":
        return min(renyi_epsilons(present, delta, relation, accountant))
    return losses(present, relation).get_epsilon_for_delta(delta) if delta > 0 else math.inf


def losses(steps: Steps, relation: str) -> Loss:
    """The privacy loss distribution of all these steps, rounded up."""
    return _losses(tuple(sorted((kind, count) for kind, count in steps.items() if count)), relation)


@lru_cache(maxsize=256)
def _losses(steps: tuple[tuple[Kind, int], ...], relation: str) -> Loss:
    found = identity(GRID)
    # Releases on all rows add up to one: their precisions add.
    precision = sum(count / noise**2 for (_, noise, rate, _, _), count in steps if rate == 1.0)
    if precision:
        found = found.compose(_step(1.0 / math.sqrt(precision), 1.0, relation))
    for (kind, noise, rate, _, _), count in steps:
        if kind == "fixed-gaussian":
            raise ValueError(
                "batches of a fixed size have no privacy loss distribution; the ledger's accountant is rdp"
            )
        if rate < 1.0:
            found = found.compose(_step(noise, rate, relation).self_compose(count))
    return found


@lru_cache(maxsize=256)
def _step(noise: float, rate: float, relation: str) -> Loss:
    return from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=GRID, neighboring_relation=_relation(relation)
    )


def _relation(name: str) -> dp.NeighboringRelation:
    relations = dp.NeighboringRelation
    return relations.REPLACE_ONE if name == "replace-one" else relations.ADD_OR_REMOVE_ONE


def renyi(steps: Steps, relation: str, accountant: str) -> tuple[Any, Any]:
    """The Renyi orders, and the divergence of all these steps at each."""
    # "rdp-64" is the accountant of Robust-HDP's code: orders up to 64, and an older conversion to epsilon.
    dated = [*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 65)]
    made = RdpAccountant(dated if accountant == "rdp-64" else None)
    fixed = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    # dp-accounting's Renyi accountant leaves the factor 2 of replace-one to the noise.
    halved = 2.0 if relation == "replace-one" else 1.0
    for (kind, noise, rate, rows, batch), count in steps.items():
        event = dp.GaussianDpEvent(noise / halved)
        if kind == "fixed-gaussian":
            fixed.compose(dp.SampledWithoutReplacementDpEvent(rows, batch, event), count)
        else:
            made.compose(event if rate == 1.0 else dp.PoissonSampledDpEvent(rate, event), count)
    divergences = made.rdp
    if any(kind[0] == "fixed-gaussian" for kind in steps):
        divergences = divergences + fixed.rdp
    return made.orders, divergences


def renyi_epsilons(steps: Steps, delta: float, relation: str, accountant: str) -> list[float]:
    """The epsilon at each Renyi order."""
    orders, divergences = renyi(steps, relation, accountant)
    return [_converted(order, each, delta, accountant) for order, each in zip(orders, divergences, strict=True)]


def _converted(order: float, divergence: float, delta: float, accountant: str) -> float:
    if accountant == "rdp-64":
        return float(divergence - math.log(delta) / (order - 1))
    return float(compute_epsilon([order], [divergence], delta)[0])


# ---------------------------------------------------------------- the privacy filter (docs/proofs.md, theorem 2)


def filter_epsilon(account: Account) -> float:
    """Epsilon by the filter: it counts in multiples of the first schedule, which were fixed before any release."""
    fixed = epsilon_of(account.total, account.delta, account.relation, account.accountant)
    first, direct, converted = account.first, account.direct, list(account.converted)
    if account.admitted:
        # Without a file there are no recorded conversions: they are found here.
        first, direct = account.admitted[0], dict(account.admitted[0])
        for steps in account.admitted[1:]:
            direct, converted = _counted(account, first, direct, converted, steps)
    for steps in account.unplanned.values():
        direct, converted = _counted(account, first, direct, converted, steps)
    if not first or not math.isfinite(account.epsilon) or not math.isfinite(fixed):
        return fixed
    if not converted and _within(direct, first):
        return fixed
    return max(fixed, _bound(account, first, direct, converted))


def _counted(
    account: Account, first: Steps, direct: Steps, converted: list[tuple[Steps, float, float]], steps: Steps
) -> tuple[Steps, list[tuple[Steps, float, float]]]:
    if is_direct(first, steps, account.accountant):
        return added(direct, steps), converted
    doubt = reserve(account, first) / ((len(converted) + 1) * (len(converted) + 2))
    return direct, [*converted, (steps, least_units(account, first, steps, doubt), doubt)]


def _bound(account: Account, first: Steps, direct: Steps, converted: list[tuple[Steps, float, float]]) -> float:
    if account.accountant != "pld":
        order = _order(account, first)
        return renyi_epsilons(direct, account.delta, account.relation, account.accountant)[order]
    units, doubt = sum(each[1] for each in converted), sum(each[2] for each in converted)
    delta = account.delta - max(reserve(account, first), doubt)
    if _gaussian(first):
        precision = _precision(direct) + units
        return epsilon_of({_plain(1.0 / math.sqrt(precision)): 1}, delta, account.relation, "pld") if precision else 0.0
    return epsilon_of(chain(first, _needed(first, direct, units)), delta, account.relation, "pld")


def is_direct(first: Steps, steps: Steps, accountant: str) -> bool:
    """Whether the filter counts these steps as what they are."""
    if accountant != "pld":
        return True
    if _gaussian(first):
        return _gaussian(steps)
    return {_same(kind) for kind in steps} <= {_same(kind) for kind in first}


def chain(first: Steps, units: int) -> Steps:
    """The first schedule, extended or cut to so many units: the other steps in proportion, rounded up."""
    main, count = _main(first)
    return {
        kind: units if kind == main else -(-units * steps // count) for kind, steps in _merged(first).items() if steps
    }


def reserve(account: Account, first: Steps) -> float:
    """The part of delta that is kept for conversions: a hundredth, or what the first schedule leaves of it."""
    usual, whole = RESERVE * account.delta, _merged(first)

    def costs(kept: float) -> float:
        return epsilon_of(whole, account.delta - kept, account.relation, "pld")

    if costs(usual) <= account.epsilon:
        return usual
    if costs(0.0) > account.epsilon:
        return 0.0
    low, high = 0.0, usual
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if costs(middle) <= account.epsilon else (low, middle)
    return low


def dominated(account: Account, first: Steps, steps: Steps, units: float, doubt: float) -> bool:
    """Whether so many units are at least as revealing as these steps, but for a probability of `doubt`.

    Compared: the probabilities by which two neighbouring data sets can be distinguished in each order, at 400 epsilons.
    """
    one = losses(steps, account.relation)
    if _gaussian(first):
        other = losses({_plain(1.0 / math.sqrt(units)): 1}, account.relation) if units else identity(GRID)
    else:
        other = losses({_main(first)[0]: int(units)}, account.relation) if units else identity(GRID)
    # dp-accounting has the two orders as attributes of their own alone.
    for name in ("_pmf_remove", "_pmf_add"):
        end = getattr(one, name).get_epsilon_for_delta(0.5 * doubt)
        if not math.isfinite(end):
            return False
        for at in range(401):
            epsilon = end * at / 400
            asked = getattr(one, name).get_delta_for_epsilon(epsilon)
            if asked > doubt + (1.0 - doubt) * getattr(other, name).get_delta_for_epsilon(epsilon) + 1e-12:
                return False
    return True


def least_units(account: Account, first: Steps, steps: Steps, doubt: float) -> float:
    """The fewest units that dominate these steps; of a Gaussian unit, to a thousandth."""
    if doubt <= 0.0:
        return math.inf
    low, high = 0.0, 1.0
    while not dominated(account, first, steps, high, doubt):
        low, high = high, 2.0 * high
        if high > 1e6:
            return math.inf
    close = 1e-3 * high if _gaussian(first) else 1.0
    while high - low > close:
        middle = 0.5 * (low + high) if _gaussian(first) else float((low + high) // 2)
        low, high = (low, middle) if dominated(account, first, steps, middle, doubt) else (middle, high)
    return high


def _order(account: Account, first: Steps) -> int:
    """The Renyi order that the first schedule fixes: where the budget covers the largest multiple of it."""
    orders, divergences = renyi(first, account.relation, account.accountant)

    def multiple(at: int) -> float:
        if not 0.0 < divergences[at] < math.inf:
            return -math.inf
        offset = _converted(orders[at], 1e3, account.delta, account.accountant) - 1e3
        return (account.epsilon - offset) / float(divergences[at])

    return max(range(len(orders)), key=multiple)


def _needed(first: Steps, direct: Steps, converted: float) -> int:
    """The least number of units that covers these steps and converted units."""
    main, count = _main(first)
    own, needed = _merged(first), [math.ceil(converted)]
    for kind, steps in _merged(direct).items():
        if kind == main:
            needed[0] += steps
        elif steps:
            needed.append((steps - 1) * count // own[kind] + 1)
    return max(needed)


def _main(first: Steps) -> tuple[Kind, int]:
    """The unit: the most frequent sampled step."""
    sampled = [(kind, count) for kind, count in _merged(first).items() if kind[2] < 1.0]
    return max(sampled, key=lambda each: (each[1], each[0][2], -each[0][1]))


def _within(direct: Steps, first: Steps) -> bool:
    if _gaussian(first) and _gaussian(direct):
        return _precision(direct) <= _precision(first) * (1.0 + 1e-12)
    own = _merged(first)
    return all(count <= own.get(kind, 0) for kind, count in _merged(direct).items())


def _merged(steps: Steps) -> Steps:
    found: Steps = {}
    for kind, count in steps.items():
        found[_same(kind)] = found.get(_same(kind), 0) + count
    return found


def _same(kind: Kind) -> Kind:
    """A step on all rows is the same whatever it is called."""
    return ("gaussian", *kind[1:]) if kind[0] == "poisson-gaussian" and kind[2] == 1.0 else kind


def _plain(noise: float) -> Kind:
    return ("gaussian", noise, 1.0, 0, 0)


def _gaussian(steps: Steps) -> bool:
    return all(kind[0] != "fixed-gaussian" and kind[2] == 1.0 for kind in steps)


def _precision(steps: Steps) -> float:
    return sum(count / kind[1] ** 2 for kind, count in steps.items())


# ---------------------------------------------------------------- reading


def steps_of(costs: list[dict[str, Any]], times: int = 1) -> Steps:
    """The steps of costs as they are stored."""
    found: Steps = {}
    for cost in costs:
        kind = (cost["kind"], float(cost["noise"]), float(cost["rate"]), int(cost["samples"]), int(cost["batch"]))
        found[kind] = found.get(kind, 0) + times * int(cost["steps"])
    return found


def added(one: Steps, other: Steps) -> Steps:
    """The sum of two counts of steps."""
    return {kind: one.get(kind, 0) + other.get(kind, 0) for kind in {**one, **other}}


def charge(account: Account, costs: list[dict[str, Any]], times: int = 1) -> None:
    """Add charges to totals, updates and groups of rows."""
    before = dict(account.total)
    account.total = added(account.total, steps_of(costs, times))
    for cost in costs:
        if cost["what"] == UPDATE:
            account.updates += times * int(cost["steps"])
            rate = cost["batch"] / cost["samples"] if cost["kind"] == "fixed-gaussian" else cost["rate"]
            account.kinds.add((float(cost["noise"]), float(rate)))
    named = {float(budget) for cost in costs for budget, _ in cost.get("groups", ())}
    for budget in named | set(account.groups):
        # A budget that is seen for the first time was at the full rates before.
        rates = [{**cost, "rate": dict(map(tuple, cost.get("groups", ()))).get(budget, cost["rate"])} for cost in costs]
        sampled = [cost for cost in rates if cost["rate"] > 0.0]
        account.groups[budget] = added(account.groups.get(budget, before), steps_of(sampled, times))


def read_rows(rows: list[dict[str, Any]], charges: int | None = None) -> Account:
    """Read the rows of a ledger, and check their hashes; at most so many charges."""
    account = Account(client="", epsilon=0.0, delta=0.0, relation="", accountant="")
    previous, left = "0" * 64, dict[str, Steps]()
    for number, row in enumerate(rows, 1):
        names = ("seq", "at", "salt", "kind", "round", "attempt", "previous")
        text = " ".join(str(row[name]) for name in names) + f"\n{row['run']}\n{row['detail']}"
        if row["hash"] != hashlib.sha256(text.encode()).hexdigest() or (row["seq"], row["previous"]) != (
            number,
            previous,
        ):
            raise ValueError(f"row {number} was changed, or one before it is missing")
        previous = row["hash"]
        if row["kind"] in ("OPENED", "POLICY"):
            words = json.loads(row["detail"])
            account.epsilon = math.inf if words["epsilon"] is None else float(words["epsilon"])
            account.delta, account.relation = float(words["delta"]), words["relation"]
            account.client, account.accountant = (
                words.get("client", account.client),
                words.get("accountant", account.accountant),
            )
        elif row["kind"] == "PLANNED":
            words = json.loads(row["detail"])
            if account.first:
                account.converted.append((steps_of(words["costs"]), float(words["units"]), float(words["doubt"])))
                left[row["run"]] = added(left.get(row["run"], {}), steps_of(words["costs"]))
            else:
                account.first = steps_of(words["costs"])
        elif row["kind"] == "RESERVED":
            costs = json.loads(row["detail"])
            account.charges += 1
            charge(account, costs)
            _filtered(account, left, row["run"], steps_of(costs))
            if account.charges == charges:
                break
    return account


def _filtered(account: Account, left: dict[str, Steps], run: str, steps: Steps) -> None:
    account.first = account.first or steps
    planned = left.get(run, {})
    if all(count <= planned.get(kind, 0) for kind, count in steps.items()):
        left[run] = {kind: count - steps.get(kind, 0) for kind, count in planned.items()}
    elif is_direct(account.first, steps, account.accountant):
        account.direct = added(account.direct, steps)
    else:
        account.unplanned[run] = added(account.unplanned.get(run, {}), steps)


def read_run(folder: Path) -> list[Account]:
    """Read what the clients of a run without ledger files were charged: its costs, and how often each was charged."""
    costs = json.loads((folder / "privacy.json").read_bytes())
    kinds = [costs["kinds"][number] for number in costs["clients"]]
    accounts = []
    for client, kind in enumerate(kinds):
        policy = kind["policy"]
        budget = math.inf if policy["epsilon"] is None else float(policy["epsilon"])
        account = Account(
            client=client, epsilon=budget, delta=policy["delta"], relation=policy["relation"],
            accountant=kind["accountant"],
        )  # fmt: skip
        charge(account, kind["earlier"])
        account.charges, account.updates = kind.get("charges", 0), kind.get("updates", 0)
        account.admitted = [steps_of(each) for each in kind.get("admitted", [])]
        accounts.append(account)
    for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for client in record["charged"]:
            accounts[client].charges += 1
            charge(accounts[client], kinds[client]["stages"][record["stage"]])
    for account in accounts:
        account.first, account.direct = account.total, account.total
    return accounts


# ---------------------------------------------------------------- comparing


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure as it was stated, and as it was recomputed here.

    Bounds on epsilon may differ by what grids explain, and what is left of a `budget` as the part that is spent does.
    Numbers that are no bounds (`exact`) have to be the same.
    """

    client: Any
    name: str
    stated: float | None
    found: float
    exact: bool = False
    budget: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the two agree; what is not stated is not compared."""
        if self.stated is None:
            return True
        if self.exact or not (math.isfinite(self.found) and math.isfinite(self.stated)):
            return self.found == self.stated
        stated, found = (self.budget - each if self.budget else each for each in (self.stated, self.found))
        return -max(BELOW * found, LEAST) <= stated - found <= max(ABOVE * found, LEAST)


def figures(account: Account, stated: dict[str, Any], discrete: int = 0) -> list[Figure]:
    """Every figure of a client, beside what its ledger or card states."""
    fixed = epsilon_of(account.total, account.delta, account.relation, account.accountant)
    by_filter = filter_epsilon(account)
    left = math.inf if math.isinf(account.epsilon) else max(0.0, account.epsilon - by_filter)

    def said(name: str) -> float | None:
        # JSON has no infinity: null stands for it.
        return None if name not in stated else math.inf if stated[name] is None else float(stated[name])

    def figure(name: str, stated: float | None, found: float, *, exact: bool = False, budget: float = 0.0) -> Figure:
        return Figure(
            client=account.client, name=name, stated=stated, found=found, exact=exact, budget=budget
        )  # fmt: skip

    found = [
        figure("epsilon, fixed schedules", said("epsilon_spent"), fixed),
        figure("epsilon, privacy filter", said("epsilon_filter"), by_filter),
        figure("epsilon left", said("epsilon_left"), left, budget=account.epsilon),
        figure("delta", said("delta"), account.delta, exact=True),
        figure("charges", said("rounds"), account.charges, exact=True),
        figure("steps of training", said("steps"), account.updates, exact=True),
    ]
    if account.kinds and "noise_multiplier" in stated:
        noise, rate = float(stated["noise_multiplier"]), float(stated["sample_rate"])
        noises, rates = ([kind[at] for kind in account.kinds] for at in (0, 1))
        found.append(figure("noise multiplier", noise, min(noises, key=lambda n: abs(n - noise)), exact=True))
        if stated.get("unit") != "client":
            found.append(figure("sampling rate", rate, min(rates, key=lambda r: abs(r - rate)), exact=True))
    by_group = {float(key): value for key, value in stated.get("spent_by_row_budget", {}).items()}
    by_group |= {float(each["budget"]): each["epsilon"] for each in stated.get("row_groups", ())}
    for budget in sorted({*by_group, *account.groups}):
        steps = account.groups.get(budget, account.total)
        of_rows = epsilon_of(steps, account.delta, account.relation, account.accountant)
        found.append(figure(f"epsilon of rows with budget {budget:g}", by_group.get(budget), of_rows))
    for steps, units, doubt in account.converted:
        holds = _holds(account, steps, units, doubt)
        found.append(figure(f"conversion to {units:.6g} units", 1.0, float(holds), exact=True))
    if account.converted:
        kept, used = reserve(account, account.first), sum(doubt for _, _, doubt in account.converted)
        found.append(figure("conversions keep their part of delta", 1.0, float(used <= kept * 1.01), exact=True))
    if discrete:
        found.append(figure("delta with discrete noise", None, _discrete_delta(account, fixed, discrete)))
    return found


def _holds(account: Account, steps: Steps, units: float, doubt: float) -> bool:
    """Whether a recorded conversion dominates its schedule."""
    gaussian = _gaussian(account.first)
    if not doubt:
        # Steps with at most the unit's rate and at least its noise count one unit each.
        _, noise, rate, _, _ = _main(account.first)[0]
        return sum(steps.values()) <= units and all(kind[2] <= rate and kind[1] >= noise for kind in steps)
    # A little more than recorded, since both sides are rounded up here.
    return dominated(account, account.first, steps, units * 1.005 + (0.0 if gaussian else 1.0), doubt)


def _discrete_delta(account: Account, epsilon: float, parameters: int) -> float:
    """Delta at this epsilon where the noise is discrete: theorem 7, with 4096 grid units for a standard deviation."""
    less = math.sqrt(1.0 - 1.0 / 12.0 / 4096.0**2)
    steps = {(kind[0], less * kind[1], *kind[2:]): count for kind, count in account.total.items()}
    apart = 0.5 * math.sqrt(parameters * 3e-6 / 4096.0**8)
    continuous = losses(steps, account.relation).get_delta_for_epsilon(epsilon)
    return float(continuous + sum(account.total.values()) * (1.0 + math.exp(epsilon)) * apart)


def compared_rows(rows: list[dict[str, Any]], stated: dict[str, Any], discrete: int = 0) -> list[Figure]:
    """Compare the rows of a ledger with its own statement, or with the card of its client in the result of a run."""
    account = read_rows(rows)
    if "guarantees" in stated:
        card = next(each for each in stated["guarantees"] if account.client in (each["name"], each["client"]))
        # The ledger may have been charged after the run.
        account = read_rows(rows, int(card["rounds"]))
        if card["epsilon_budget"] is not None:
            account.epsilon = float(card["epsilon_budget"])
        return figures(account, card, discrete)
    names = {"spent": "epsilon_spent", "filtered": "epsilon_filter", "left": "epsilon_left"}
    found = {card: stated[name] for name, card in names.items() if name in stated}
    found["spent_by_row_budget"] = stated.get("spent_by_row_budget", {})
    if "charges" in stated:
        found |= {"rounds": sum(stated["charges"].values()), "delta": stated["policy"]["delta"]}
    return figures(account, found, discrete)


def compared_run(folder: Path, discrete: int = 0) -> list[Figure]:
    """Compare the costs and rounds of a run without ledger files with the cards in its result."""
    cards = json.loads((folder / "result.json").read_bytes())["guarantees"]
    return [
        figure for account, card in zip(read_run(folder), cards, strict=True)
        for figure in figures(account, card, discrete)
    ]  # fmt: skip


def report(found: list[Figure]) -> list[str]:
    """One line for each figure, and a last one that counts the differences."""
    lines = []
    for each in found:
        stated = "not stated" if each.stated is None else f"{each.stated:.6g}"
        verdict = "" if each.agrees else "   DIFFERS"
        lines.append(f"client {each.client}: {each.name}: stated {stated}, recomputed {each.found:.6g}{verdict}")
    wrong = sum(not each.agrees for each in found)
    lines.append(f"{len(found)} figures, {wrong} of them differ" if wrong else f"{len(found)} figures, none differs")
    return lines


def main() -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path, help="exported rows of a ledger, or the directory of a run")
    parser.add_argument("stated", type=Path, nargs="?", help="the figures to compare with, where rows are given")
    parser.add_argument("--discrete", type=int, default=0, metavar="PARAMETERS", help="noise was discrete")
    given = parser.parse_args()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if given.export.is_dir():
                found = compared_run(given.export, given.discrete)
            else:
                rows = [json.loads(line) for line in given.export.read_text(encoding="utf-8").splitlines() if line]
                words = {} if given.stated is None else json.loads(given.stated.read_bytes())
                found = compared_rows(rows, words, given.discrete)
    except (ValueError, KeyError, OSError, StopIteration) as error:
        print(f"cannot be checked: {error!r}", file=sys.stderr)
        return 1
    print("\n".join(report(found)))
    return 0 if all(each.agrees for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
