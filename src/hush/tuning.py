"""Tuning inside the budget: several candidates are trained, evaluated with noise, and the best is chosen, all of it
within each client's own budget.

Each candidate is a run of its own with a part of each client's budget. The parts are found together: all runs of a
client, and its one noised evaluation of all final models, compose to at most its budget. Against a server that sees
every update nothing less is true: it sees the runs that are not chosen as well. Private selection (Liu and Talwar 2019,
Papernot and Steinke 2022), which pays for little more than the best of many runs, hides the others from the adversary,
and cannot help here.

Guarantees:
    - For every client the accountant's epsilon for all candidates and the evaluation together is at most its budget.
    - A row, or person, moves the vector of a client's scores by at most `sqrt(candidates) / 2`, and its noise is in
      proportion. Scores are those of held-out rows, which no candidate trains on; they are charged as if they were
      training rows.

Edge cases:
    - With ledger files, runs and evaluations are charged to them, one after the other. A client whose ledger has less
      left than its budget drops out as it does from any run.
    - Seeded noise is the same for all candidates, as in any comparison: an experiment, in which nothing is private.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from hush.config import Config, unit_of, with_noise
from hush.engines import client_round
from hush.engines.driver import CompletedRun
from hush.engines.run_ledgers import RunLedgers
from hush.engines.setup import Federation
from hush.engines.simulator import execution, lockstep
from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BudgetSpentError
from hush.types import HushError, Receipt

SCORES = "evaluation scores"
EVALUATION = 0.1  # the part of a client's budget that its evaluation would cost alone
_PRECISION = 0.01
Prepare = Callable[[Config], Federation]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What one candidate came to.

    Attributes:
        name: Its settings.
        noised_score: The score that the choice is made by.
        score: The score without noise, which a simulation alone can say.
        noise_ratio: Its noise multiplier over that of a run with the whole budget, mean over the clients.
    """

    name: str
    noised_score: float
    score: float
    noise_ratio: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Tuning:
    """The choice, and its price.

    Attributes:
        chosen: The name of the best candidate by noised scores.
        candidates: All of them, in order.
        parts: The part of its budget with which each client took part in each candidate's run.
        epsilons: The epsilon of each client over all candidates and the evaluation.
        budgets: The budget of each client.
        whole_score: The score of the chosen settings with the whole budget, had they been known; a simulation's
            comparison, charged to nobody. None with ledger files.
        run: The run of the chosen candidate.
    """

    chosen: str
    candidates: tuple[Candidate, ...]
    parts: tuple[float, ...]
    epsilons: tuple[float, ...]
    budgets: tuple[float, ...]
    whole_score: float | None
    run: CompletedRun


def tuned(variants: Mapping[str, Config], federation_of: Prepare, *, ledgers: Path | None = None) -> Tuning:
    """Train all candidates within each client's budget, and choose one by noised evaluations.

    Args:
        variants: The config of each candidate, by name; they differ in what is not about budgets or data.
        federation_of: Prepares a config.
        ledgers: A directory of ledger files to charge.
    """
    if len(variants) < 2:
        raise HushError("--within-budget: one candidate leaves nothing to choose; accepted: a grid of two or more")
    configs = {name: with_noise(config, lasting=ledgers is not None) for name, config in variants.items()}
    whole = {name: federation_of(config) for name, config in configs.items()}
    _check(whole)
    first = next(iter(whole.values()))
    budgets = tuple(member.policy.epsilon for member in first.members)
    evaluations = [_evaluation(first, client) for client in range(len(budgets))]
    parts, planned = _divided(configs, federation_of, budgets, evaluations)
    if ledgers is None:
        runs = lockstep([execution(federation) for federation in planned.values()])
    else:
        runs = [lockstep([execution(federation, ledgers=ledgers)])[0] for federation in planned.values()]
    scores, counts = _scores(runs, evaluations, ledgers)
    noised = scores / max(counts, 1.0) + 0.5
    best = int(noised.argmax())
    chosen = list(planned)[best]
    compared = None
    if ledgers is None:
        compared = float(lockstep([execution(whole[chosen])])[0].result.score["mean"])
    return Tuning(
        chosen=chosen,
        candidates=tuple(
            Candidate(
                name=name,
                noised_score=float(noised[at]),
                score=float(runs[at].result.score["mean"]),
                noise_ratio=_noise_ratio(planned[name], whole[name]),
            )
            for at, name in enumerate(planned)
        ),
        parts=parts,
        epsilons=tuple(_composed(list(planned.values()), evaluations[c], c) for c in range(len(budgets))),
        budgets=budgets,
        whole_score=compared,
        run=runs[best],
    )


def _check(whole: Mapping[str, Federation]) -> None:
    """Raise a `HushError` unless budgets can be divided among the candidates and scores are bounded."""
    first = next(iter(whole.values()))
    for name, federation in whole.items():
        protect = federation.recipe.protect
        if not (protect.private and protect.own_budgets and protect.spreads_budget):
            raise HushError(f"--within-budget: {name}: accepted: recipes in which each client spends its own budget")
        if any(release.what == "noise" and not release.covered for release in federation.recipe.releases()):
            raise HushError(f"--within-budget: {name}: clients share their noise; accepted: recipes without that")
        if federation.policies != first.policies or federation.data.test_counts != first.data.test_counts:
            raise HushError(
                f"--within-budget: {name}: has other budgets, deltas or rows; accepted: candidates that share them"
            )
    if first.model.objective.task == "regression" or unit_of(first.config) == "client":
        raise HushError(
            '--within-budget: scores must be bounded for a row or a person; accepted: classification, with unit "row" '
            'or "person"'
        )


def _evaluation(federation: Federation, client: int) -> Cost:
    """What the noised scores of a client cost: a part of its budget, were they all that it spent."""
    policy, plan = federation.policies[client], federation.schedules[client].plan
    noise = api.noise_multiplier(EVALUATION * policy.epsilon, policy.delta, 1.0, 1, policy.relation, plan.accountant)
    return Cost(what=SCORES, kind="gaussian", noise=noise, steps=1)


def _divided(
    configs: Mapping[str, Config], federation_of: Prepare, budgets: Sequence[float], evaluations: Sequence[Cost]
) -> tuple[tuple[float, ...], dict[str, Federation]]:
    """The largest part of its budget that each client can give every candidate, and the candidates planned with it."""
    low, high = np.zeros(len(budgets)), np.ones(len(budgets))
    tried = np.full(len(budgets), 1.0 / math.sqrt(len(configs)))
    kept: dict[str, Federation] = {}
    fitting = np.zeros(len(budgets), bool)
    while not (fitting.all() and (high - low <= _PRECISION * high).all()):
        kept = {
            name: federation_of(_with_budgets(config, tried * budgets, budgets)) for name, config in configs.items()
        }
        spent = [_composed(list(kept.values()), evaluations[c], c) for c in range(len(budgets))]
        fitting = np.array([epsilon <= budget for epsilon, budget in zip(spent, budgets, strict=True)])
        low, high = np.where(fitting, tried, low), np.where(fitting, high, tried)
        if (high < 1e-4).any():
            raise HushError("--within-budget: too many candidates for the smallest budget; accepted: fewer")
        settled = high - low <= _PRECISION * high
        # A client that is settled keeps a part that fits, while others are still searched for.
        tried = np.where(settled, low, 0.5 * (low + high))
        if settled.all() and not fitting.all():
            continue
        if settled.all():
            break
    return tuple(float(part) for part in low), kept


def _with_budgets(config: Config, parts: np.ndarray, budgets: Sequence[float]) -> Config:
    lifetime = list(budgets) if config.privacy.lifetime is None else config.privacy.lifetime
    changed = {"budgets": [float(part) for part in parts], "lifetime": lifetime}
    return config.model_copy(update={"privacy": config.privacy.model_copy(update=changed)})


def _composed(candidates: Sequence[Federation], evaluation: Cost, client: int) -> float:
    """The epsilon of a client over all candidates and its evaluation."""
    policy = candidates[0].policies[client]
    costs = [cost for federation in candidates for cost in federation.costs(client)]
    accountant = candidates[0].schedules[client].plan.accountant
    return api.epsilon_of([*costs, evaluation], policy.delta, policy.relation, accountant)


def _noise_ratio(part: Federation, whole: Federation) -> float:
    pairs = zip(part.schedules, whole.schedules, strict=True)
    return float(np.mean([one.plan.noise_multiplier / other.plan.noise_multiplier for one, other in pairs]))


def _scores(
    runs: Sequence[CompletedRun], evaluations: Sequence[Cost], ledgers: Path | None
) -> tuple[np.ndarray, float]:
    """The noised sums of centred scores over all clients, by candidate, and the number of units that they are over."""
    federation = runs[0].federation
    bound = 0.5 * math.sqrt(len(runs))
    total, units = np.zeros(len(runs)), 0.0
    held = None if ledgers is None else RunLedgers(federation.ledgers(ledgers), uuid.uuid4().hex, durable=True)
    try:
        for member, cost in zip(federation.members, evaluations, strict=True):
            client = member.client
            source = client_round.source(federation.config, client, federation.config.rounds + 1, shared=False)
            receipt = None
            if held is not None:
                try:
                    charged = held.charge(client, 1, [cost])
                except BudgetSpentError:
                    continue
                assert isinstance(charged, Receipt)
                receipt = charged
            exact, count = _exact(runs, client)
            noised = exact + cost.noise * bound * source.normal(len(runs), torch.float64)
            if held is not None and receipt is not None:
                held.seal(client, receipt, lambda noised=noised: save({"scores": noised}))  # type: ignore[misc]
                held.sent(client, 1)
            # Sums by the inverse of their noise variance: clients with small budgets say little.
            weight = 1.0 / (cost.noise * bound) ** 2
            total += weight * noised.numpy()
            units += weight * count
    finally:
        if held is not None:
            held.close()
    return total, units


def _exact(runs: Sequence[CompletedRun], client: int) -> tuple[Tensor, float]:
    """The sum over a client's held-out rows (of persons, of their means) of each candidate's score less a half."""
    federation = runs[0].federation
    x, y = federation.arrays(federation.config.rounds)
    _, first, end = federation.data.bounds()[client]
    weights = torch.ones(end - first, dtype=torch.float64)
    if unit_of(federation.config) == "person" and federation.data.dataset.person is not None:
        _, who, counts = np.unique(
            federation.data.dataset.person[federation.data.test[client]], return_inverse=True, return_counts=True
        )
        weights = torch.from_numpy(1.0 / counts[who])
    sums = []
    for run in runs:
        model = run.federation.model
        outputs = model.logits(run.models[run.homes[client]].to(x.device), x[first:end])
        scores = model.objective.row_scores(outputs, y[first:end]).double().cpu().nan_to_num(0.0).clamp(0.0, 1.0)
        sums.append(float(weights @ (scores - 0.5)))
    return torch.tensor(sums, dtype=torch.float64), float(weights.sum())
