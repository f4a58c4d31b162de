"""Tuning inside the budget: several candidates are trained, evaluated with noise, and the best is chosen, all of it
within each client's own budget.

Every candidate is a training of its own on the same rows. The noise of all of them is raised by one factor for each
client, so that all trainings together, and one noised evaluation of all final models on held-out rows, satisfy its
policy. Against a server that sees every update nothing cheaper is true: it sees the candidates that are not chosen as
well. Private selection (Liu and Talwar 2019; Papernot and Steinke 2022) pays for little more than the best of many
candidates because it hides the others from the adversary, which cannot be done here.

Guarantees:
    - For every client, all candidates and the evaluation together are one schedule, fixed before its first release and
      admitted as a whole; the accountant's epsilon for it is at most the client's budget.
    - A row, or person, changes the vector of a client's scores by at most `bound(candidates)`, to which the noise is
      relative (Theorem 14 of docs/proofs.md). It is a row that no candidate trains on, and is charged as if they did.

Edge cases:
    - With ledger files, the files cover the held-out rows as well. A client whose ledger has less left than its budget
      takes part until that is spent, as in any run.
    - Seeded noise is the same for all candidates, as in any comparison: an experiment, in which nothing is private.
    - Rows with budgets of their own, and noisy numbers of rows, from which later noise follows, are refused.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from hush import comparison
from hush.callbacks import Callbacks
from hush.config import Config, unit_of, with_noise
from hush.engines import client_round
from hush.engines.driver import CompletedRun
from hush.engines.round_costs import round_costs_of
from hush.engines.run_ledgers import RunLedgers
from hush.engines.setup import Federation
from hush.engines.simulator import execution, lockstep
from hush.engines.trained import trained_model
from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BudgetSpentError
from hush.privacy.schedule import least_noise
from hush.privacy.source import Source
from hush.server.run_directory import RunDir, to_json, write_atomically
from hush.trained_model import contents
from hush.types import HushError, NothingTrainedError, Receipt

SCORES = "evaluation of candidates"
TUNING = "tuning.json"
PART = 0.1  # the part of a client's epsilon that the evaluation costs, alone
_CLEAR = 3.0  # standard deviations of its noise by which a count must exceed 0, for means to be shown
Prepare = Callable[[Config], Federation]
Observers = Callable[[str, int], Callbacks]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What one candidate came to.

    Attributes:
        name: Its settings.
        noised_score: The mean score of held-out rows by which the choice is made; None where the noise hides it.
        score: The score without noise, which only a simulation can tell, and which decides nothing.
        epsilon: What the training of each client costs by itself.
    """

    name: str
    noised_score: float | None
    score: float
    epsilon: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tuning:
    """The choice, and its price.

    Attributes:
        chosen: The name of the candidate with the best noised scores.
        candidates: All of them, in order.
        noise_ratio: For each client, its noise over that of a run with its whole budget, mean over the candidates.
        score_error: The standard deviation of the noise in a noised score; None where the noise hides it.
        epsilons: What each client has spent, on all candidates and the evaluation.
        budgets: The budget of each client.
        whole_score: The score of the chosen settings with the whole budget, had they been known beforehand: a
            comparison that only a simulation can make. None with ledger files.
        runs: The run of each candidate, with the cards as they are after the evaluation.
    """

    chosen: str
    candidates: tuple[Candidate, ...]
    noise_ratio: tuple[float, ...]
    score_error: float | None
    epsilons: tuple[float, ...]
    budgets: tuple[float, ...]
    whole_score: float | None
    runs: Mapping[str, CompletedRun]

    def facts(self) -> dict[str, Any]:
        """Everything but the runs, as it is written to `tuning.json`."""
        named = ("chosen", "noise_ratio", "score_error", "epsilons", "budgets", "whole_score")
        listed = [{**vars(each), "epsilon": list(each.epsilon)} for each in self.candidates]
        return {**{name: getattr(self, name) for name in named}, "candidates": listed}


def bound(candidates: int) -> float:
    """Return by how much one row changes a client's evaluation: a score less a half of each, and a half for itself."""
    return 0.5 * math.sqrt(candidates + 1)


def tuned(
    variants: Mapping[str, Config],
    federation_of: Prepare,
    *,
    out: Path | None = None,
    ledgers: Path | None = None,
    command: str = "",
    callbacks: Observers | None = None,
    compare: bool = True,
) -> Tuning:
    """Train all candidates within each client's budget, and choose one by noised evaluations.

    Args:
        variants: The config of each candidate, by name; they differ in what is not about budgets or data.
        federation_of: Prepares a config.
        out: The directory of the runs, as of a sweep, and of `tuning.json`.
        ledgers: A directory of ledger files to charge.
        command: What to note in the manifests.
        callbacks: Those of a candidate and seed.
        compare: Whether to train the chosen settings once more with the whole budget, without ledger files.

    Raises:
        HushError: The candidates have different budgets or rows, their scores are not bounded, or the budget of a
            client cannot be divided among them.
    """
    if len(variants) < 2:
        raise HushError("within_budget: one candidate leaves nothing to choose; accepted: a grid of two or more")
    configs = {name: with_noise(config, lasting=ledgers is not None) for name, config in variants.items()}
    whole = {name: federation_of(config) for name, config in configs.items()}
    _check(whole)
    first = next(iter(whole.values()))
    evaluations = [evaluation(first, member.client) for member in first.members]
    planned = _divided(configs, whole, federation_of, evaluations)
    costs = [_all_releases(tuple(planned.values()), cost, client) for client, cost in enumerate(evaluations)]
    warned: list[str] = []
    name = uuid.uuid4().hex
    opened = first.ledgers(ledgers, warned.append, name, costs)
    durable, apart = ledgers is not None, 1 + max(federation.config.rounds for federation in planned.values())
    run_ledgers = [RunLedgers(opened, name, durable=durable, first=at * apart) for at in range(len(planned) + 1)]
    try:
        runs = lockstep(
            [
                execution(
                    federation,
                    None if out is None else out / comparison.path_of(label, federation.config.seed),
                    command=command,
                    callbacks=() if callbacks is None else callbacks(label, federation.config.seed),
                    ledgers=ledgers,
                    run_ledgers=run_ledgers[at],
                )
                for at, (label, federation) in enumerate(planned.items())
            ]
        )
        if not any(run.result.trained for run in runs):
            raise NothingTrainedError(
                f"within_budget: {runs[0].result.ended}; accepted: larger budgets, or ledgers with remaining budget",
                runs[0].result,
            )
        scores, error = _evaluated(runs, evaluations, run_ledgers[-1], apart)
        runs = [_with_cards(run, run_ledgers[0], warned, out, label) for label, run in zip(planned, runs, strict=True)]
        epsilons = tuple(ledger.filtered() for ledger in opened)
    finally:
        run_ledgers[0].close()
    chosen = list(planned)[int(scores[:-1].argmax())]
    compared = None
    if ledgers is None and compare:
        compared = float(lockstep([execution(whole[chosen])])[0].result.score["mean"])
    shown = 0.5 * scores[:-1] / scores[-1] + 0.5 if error is not None else None
    found = Tuning(
        chosen=chosen,
        candidates=tuple(
            Candidate(
                name=label,
                noised_score=None if shown is None else float(shown[at]),
                score=float(runs[at].result.score["mean"]),
                epsilon=tuple(_epsilon(federation, client) for client in range(len(evaluations))),
            )
            for at, (label, federation) in enumerate(planned.items())
        ),
        noise_ratio=_noise_ratios(planned, whole),
        score_error=error,
        epsilons=epsilons,
        budgets=tuple(member.policy.epsilon for member in first.members),
        whole_score=compared,
        runs=dict(zip(planned, runs, strict=True)),
    )
    if out is not None:
        write_atomically(out / TUNING, to_json(found.facts()))
    return found


def _check(whole: Mapping[str, Federation]) -> None:
    """Raise a `HushError` unless budgets can be divided among the candidates, and scores are bounded."""
    first = next(iter(whole.values()))
    for name, federation in whole.items():
        protect = federation.recipe.protect
        if not (protect.private and protect.own_budgets and protect.spreads_budget):
            raise HushError(f"within_budget: {name}: accepted: recipes in which each client spends its own budget")
        if protect.shared_draws:
            raise HushError(f"within_budget: {name}: clients share their noise; accepted: recipes without that")
        if federation.offers:
            raise HushError(
                f"within_budget: {name}: noise that follows from a noisy number of rows is not known beforehand; "
                'accepted: weight.counts = "true"'
            )
        if any(member.row_groups for member in federation.members):
            raise HushError("within_budget: rows have budgets of their own; accepted: one budget for each client")
        rows = [np.concatenate([*federation.data.train, *federation.data.test]) for federation in (federation, first)]
        same = len(rows[0]) == len(rows[1]) and bool((rows[0] == rows[1]).all())
        facts = [(each.policies, each.data.test_counts) for each in (federation, first)]
        if facts[0] != facts[1] or not same:
            raise HushError(
                f"within_budget: {name}: has other budgets, deltas or rows; accepted: candidates that share them"
            )
    objective = first.model.objective
    if objective.task not in ("binary", "multiclass", "multilabel") or unit_of(first.config) == "client":
        raise HushError(
            "within_budget: the score of a row or a person must be bounded; accepted: classification, with "
            'privacy.unit "row" or "person"'
        )
    if first.config.engine.name == "ray":
        raise HushError('within_budget: not available on Ray; accepted: engine "process"')


def evaluation(federation: Federation, client: int) -> Cost:
    """Return what the noised scores of a client cost: `PART` of its epsilon, were they all that it spent."""
    policy, plan = federation.policies[client], federation.schedules[client].plan
    noise = api.noise_multiplier(PART * policy.epsilon, policy.delta, 1.0, 1, policy.relation, plan.accountant)
    return Cost(what=SCORES, kind="gaussian", noise=noise, steps=1)


def _divided(
    configs: Mapping[str, Config],
    whole: Mapping[str, Federation],
    federation_of: Prepare,
    evaluations: Sequence[Cost],
) -> dict[str, Federation]:
    """Return the candidates, planned with the budgets that leave room for all of them and the evaluation."""
    first = next(iter(whole.values()))
    budgets = np.zeros((len(configs), len(evaluations)))
    for client, cost in enumerate(evaluations):
        policy, accountant = first.policies[client], first.schedules[client].plan.accountant
        each = [federation.costs(client) for federation in whole.values()]
        factor = least_noise(tuple(one for costs in each for one in costs), (cost,), policy, accountant)
        for at, costs in enumerate(each):
            scaled = [replace(one, noise=factor * one.noise) for one in costs]
            budgets[at, client] = api.epsilon_of(scaled, policy.delta, policy.relation, accountant)
    while True:
        planned = {
            name: federation_of(_with_budgets(config, budgets[at])) for at, (name, config) in enumerate(configs.items())
        }
        over = np.array(
            [
                api.epsilon_of(
                    _all_releases(tuple(planned.values()), cost, client),
                    first.policies[client].delta,
                    first.policies[client].relation,
                    first.schedules[client].plan.accountant,
                )
                > first.policies[client].epsilon
                for client, cost in enumerate(evaluations)
            ]
        )
        if not over.any():
            return planned
        # What is calibrated to these budgets may have the last digit less noise.
        budgets[:, over] *= 0.998


def _with_budgets(config: Config, budgets: np.ndarray) -> Config:
    changed = {"budgets": [float(each) for each in budgets], "lifetime": None}
    return config.model_copy(update={"privacy": config.privacy.model_copy(update=changed)})


def _all_releases(candidates: Sequence[Federation], cost: Cost, client: int) -> tuple[Cost, ...]:
    """All that a client releases: every candidate, and the evaluation."""
    return (*(one for federation in candidates for one in federation.costs(client)), cost)


def _epsilon(federation: Federation, client: int) -> float:
    policy, plan = federation.policies[client], federation.schedules[client].plan
    return api.epsilon_of(federation.costs(client), policy.delta, policy.relation, plan.accountant)


def _noise_ratios(planned: Mapping[str, Federation], whole: Mapping[str, Federation]) -> tuple[float, ...]:
    def of(federation: Federation) -> np.ndarray:
        return np.array([schedule.plan.noise_multiplier for schedule in federation.schedules])

    return tuple(np.mean([of(planned[name]) / of(whole[name]) for name in planned], axis=0).tolist())


def _evaluated(
    runs: Sequence[CompletedRun], evaluations: Sequence[Cost], run_ledgers: RunLedgers, number: int
) -> tuple[np.ndarray, float | None]:
    """Return the noised sums over all clients, and the noise of a mean score; None where it hides the number of rows.

    Clients count by the inverse of the variance of their noise. `number` is that of no round of any candidate.
    """
    config = runs[0].federation.config
    total, variance = np.zeros(len(runs) + 1), 0.0
    for member, cost in zip(runs[0].federation.members, evaluations, strict=True):
        client = member.client
        try:
            receipt = run_ledgers.charge(client, 0, [cost])
        except BudgetSpentError:
            continue
        assert isinstance(receipt, Receipt)
        source = client_round.source(config, client, number, shared=False)
        noised = noised_scores(runs, client, cost, source)
        run_ledgers.seal(client, receipt, partial(_packed, noised))
        run_ledgers.sent(client, 0)
        deviation = cost.noise * bound(len(runs))
        total += noised.numpy() / deviation**2
        variance += deviation**-2
    clear = total[-1] > _CLEAR * math.sqrt(variance)
    return total, 0.5 * math.sqrt(variance) / float(total[-1]) if clear else None


def noised_scores(runs: Sequence[CompletedRun], client: int, cost: Cost, source: Source) -> Tensor:
    """Return the evaluation of a client: sums over its held-out rows, and noise."""
    exact = _sums(runs, client)
    return exact + cost.noise * bound(len(runs)) * source.normal(len(exact), torch.float64)


def _sums(runs: Sequence[CompletedRun], client: int) -> Tensor:
    """The sum over a client's held-out rows (over persons, of their means) of each score less a half, and of a half."""
    federation = runs[0].federation
    x, y = federation.arrays(federation.config.rounds)
    _, first, end = federation.data.bounds()[client]
    weights = torch.ones(end - first, dtype=torch.float64)
    keys = federation.data.dataset.person
    if unit_of(federation.config) == "person" and keys is not None:
        _, who, counts = np.unique(keys[federation.data.test[client]], return_inverse=True, return_counts=True)
        weights = torch.from_numpy(1.0 / counts[who])
    columns = []
    for run in runs:
        model = run.federation.model
        outputs = model.logits(run.models[run.assignments[client]].to(x.device), x[first:end])
        scores = model.objective.row_scores(outputs, y[first:end]).double().cpu().nan_to_num(0.0).clamp(0.0, 1.0)
        columns.append(scores - 0.5)
    columns.append(torch.full_like(weights, 0.5))
    return weights @ torch.stack(columns, dim=1)


def _packed(noised: Tensor) -> bytes:
    packed: bytes = save({"scores": noised})
    return packed


def _with_cards(
    run: CompletedRun, run_ledgers: RunLedgers, warned: list[str], out: Path | None, name: str
) -> CompletedRun:
    """Return a run with the cards as they are after all candidates and the evaluation, and write them."""
    result = replace(
        run.result,
        # Models of all candidates, and the choice among them, are more than the models of one run.
        guarantees=run.federation.guarantees(run_ledgers.ledgers, complete=False),
        warnings=(*warned, *run.result.warnings),
    )
    if out is not None:
        model = trained_model(run.federation, run.models, run.assignments, result)
        directory = RunDir(out / comparison.path_of(name, result.seed))
        directory.write_costs(round_costs_of(run.federation, run_ledgers.ledgers, run.records).to_json())
        directory.finish(result, contents(model))
    return replace(run, result=result)
