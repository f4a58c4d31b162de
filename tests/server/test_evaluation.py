"""Evaluation on held-out rows: unbiased, with the noise that is declared and charged; without a share, nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from hush.config import config_hash, parse
from hush.data import from_arrays
from hush.engines.driver import CompletedRun
from hush.engines.setup import Federation, prepare
from hush.engines.side_releases import Evidence, exact_sum, noised_sum
from hush.engines.simulator import run
from hush.privacy import noise
from hush.privacy.accounting import api
from hush.privacy.schedule import Stage
from hush.recipes.evaluation import EVALUATION, HeldOutCounts
from hush.seeds import rng
from hush.server import evaluation
from hush.types import HushError

CLIENTS, BINS = 3, 8


def config(length: int = 4, /, **asked: Any) -> Any:
    return parse(
        {
            "seed": 3, "rounds": length, "data": {"clients": CLIENTS, "test_fraction": 0.4},
            "privacy": {"budgets": [2.0, 4.0, 8.0], "delta": 1e-4, "loss_clip": 2.0},
            "local": {"batch_size": 32, "lr": 0.5}, "recipe": {"name": "robust-hdp"}, "evaluation": asked,
        }
    )  # fmt: skip


def data(classes: int = 2) -> Any:
    drawn = rng(0, "rows")
    x = drawn.normal(size=(900, 5)).astype(np.float32)
    far = x[:, 0] + 0.7 * drawn.normal(size=len(x))
    return from_arrays(x, np.digitize(far, np.quantile(far, np.linspace(0, 1, classes + 1)[1:-1])), "rows", classes)


@cache
def federation(classes: int = 2, **asked: Any) -> Federation:
    return prepare(config(**{"share": 0.3, "every": 2, "bins": BINS, **asked}), dataset=data(classes))


def evidence(classes: int = 2) -> tuple[HeldOutCounts, Stage, Evidence]:
    """A model that is neither perfect nor blind, and a client's held-out rows."""
    made = federation(classes)
    x, y = made.arrays(1)
    _, end, last = made.data.bounds()[2]
    stage = next(s for s in made.schedules[2].stages if EVALUATION in [r.what for r in s.spec.sent])
    weights = torch.zeros(made.model.layout.size)
    weights[: 5 * classes] = torch.linspace(-1, 1, 5 * classes).roll(2)
    given = Evidence(
        model=made.model, vectors=weights[None], x=x[:0], y=y[:0], plan=stage.plan, shape=made.terms.shape,
        held_x=x[end:last], held_y=y[end:last],
    )  # fmt: skip
    assert made.recipe.evaluation is not None
    return made.recipe.evaluation.release, stage, given


@pytest.mark.parametrize("classes", [2, 3])
def test_counts_are_those_of_the_rows_and_one_row_changes_them_by_the_bound_at_most(classes: int) -> None:
    release, _, given = evidence(classes)
    rows = given.for_release(release)
    whole = exact_sum(release, rows)
    logits = torch.cat([given.model.logits(given.vectors[0], each[None]) for each in rows.x]).double()
    right, chances = logits.argmax(1) == rows.y, logits.softmax(1)
    loss = torch.nn.functional.cross_entropy(logits, rows.y, reduction="none").clamp(0, 2.0)
    assert whole[0] == len(rows.y)
    assert whole[1] == right.sum()
    assert float(whole[2]) == pytest.approx(float(loss.sum()) / 2.0, rel=1e-5)
    assert whole[3:].sum() == len(rows.y)
    for at in range(len(rows.y)):
        alone = exact_sum(release, replace(rows, x=rows.x[at : at + 1], y=rows.y[at : at + 1]))
        assert float(alone.norm()) <= release.bound(given.shape) + 1e-9
    found = evaluation.figures(whole, 1e-9, classes, 2.0)
    assert found["accuracy"] == pytest.approx(float(right.double().mean()))
    if classes == 2:
        binned = (chances[:, 1] * BINS).long().clamp(max=BINS - 1)
        assert found["auc"] == pytest.approx(roc_auc_score(rows.y.numpy(), binned.numpy()))
        middle = ((binned.double() + 0.5) / BINS).mean()
        assert found["overconfidence"] == pytest.approx(float(middle - rows.y.double().mean()))


def noised(release: HeldOutCounts, stage: Stage, given: Evidence, times: int) -> Tensor:
    # The exact sum is the same every time: it is computed once, and what the engine adds to it is drawn each time.
    found = [noised_sum(release, stage, given, noise.Secure()) for _ in range(2)]
    total, spread = exact_sum(release, given.for_release(release)), stage.noise_of(EVALUATION) * 2.0
    assert float((torch.stack(found) - total).abs().max()) < 8 * spread
    return torch.stack([noised_sum(release, stage, given, noise.Secure()) for _ in range(times)])


def faults(drawn: Tensor, exact: Tensor, spread: float) -> list[str]:
    """What is wrong with repeated counts; each check fails for correct ones with probability 10^-6 at most."""
    number, width = drawn.shape
    found = []
    z = (drawn - exact).mean(0) / (spread / math.sqrt(number))
    if float(z.abs().max()) > stats.norm.isf(1e-6 / (2 * width)):
        found.append(f"biased by {float(z.abs().max()):.1f} standard errors")
    energy = float(((drawn - exact) ** 2).sum()) / spread**2
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], number * width)
    if not low <= energy <= high:
        found.append(f"noise {math.sqrt(energy / (number * width)):.4f} times the declared one")
    return found


def check_repetitions(times: int) -> dict[str, float]:
    release, stage, given = evidence()
    exact, spread = exact_sum(release, given.for_release(release)), stage.noise_of(EVALUATION) * 2.0
    drawn = noised(release, stage, given, times)
    assert faults(drawn, exact, spread) == []
    # The planted twins: a tenth less noise, and a count that is off by a twentieth of its noise (in many repetitions).
    assert faults(exact + 0.9 * (drawn - exact), exact, spread)
    assert faults(drawn + 6 / math.sqrt(times) * spread, exact, spread)
    # The standard error of each figure is the spread of that figure. Counts of many members, so that noise is small.
    many = 40.0
    truth = evaluation.figures(many * exact, spread, 2, 2.0)
    figures = [evaluation.figures(many * exact + each - exact, spread, 2, 2.0) for each in drawn]
    seen = {}
    for name in ("accuracy", "loss", "auc", "overconfidence"):
        values = np.array([each[name] for each in figures])
        error = float(np.mean([each[f"{name}_error"] for each in figures]))
        seen[name] = float(values.std() / error)
        assert abs(values.mean() - truth[name]) < 6 * error / math.sqrt(times), name
        assert abs(seen[name] - 1) < 6 / math.sqrt(2 * times) + 0.02, f"{name}: {seen[name]}"
    return seen


def test_counts_are_unbiased_with_the_declared_noise() -> None:
    check_repetitions(250)


@pytest.mark.soak
def test_ten_thousand_repetitions() -> None:
    print(check_repetitions(10_000))


def test_evaluation_costs_its_share_and_is_charged() -> None:
    made = federation()
    ledgers = made.ledgers()
    for schedule, policy, ledger in zip(made.schedules, made.policies, ledgers, strict=True):
        own = [cost for cost in schedule.costs() if cost.what == EVALUATION]
        assert sum(cost.steps for cost in own) == 2
        alone = api.epsilon_of(own, policy.delta, policy.relation, "pld")
        assert 0.999 * 0.3 * policy.epsilon < alone <= 0.3 * policy.epsilon
        assert 0.998 * policy.epsilon < api.epsilon_of(schedule.costs(), policy.delta, policy.relation, "pld")
        for number in range(1, 5):
            ledger.reserve(made.stage(int(ledger.terms.client), number).round_costs, "", number)
        assert 0.998 * policy.epsilon < ledger.spent() <= policy.epsilon
    done = run(federation(choose="last"))
    assert all(
        c.epsilon_spent is not None and c.epsilon_spent <= c.epsilon_budget + 1e-9 for c in done.result.guarantees
    )
    kinds = {cost["what"] for stage in done.result.guarantees[0].stages for cost in stage}
    assert EVALUATION in kinds
    assert [each["round"] for each in done.result.evaluation] == [2, 4]


def test_recipes_that_cannot_charge_it_are_refused() -> None:
    for changes, key in (
        ({"recipe": {"name": "fedavg"}}, "evaluation.share"),
        ({"evaluation": {"share": 0.1, "rounds": [9]}}, "evaluation.rounds"),
        ({"evaluation": {"patience": 2}}, "evaluation"),
        ({"evaluation": {"choose": "best"}}, "evaluation"),
    ):
        raw = {**config(share=0.1).model_dump(), **changes}
        with pytest.raises(HushError) as caught:
            prepare(parse(raw), dataset=data())
        assert caught.value.key == key


def test_a_config_without_evaluation_keeps_its_hash() -> None:
    assert config_hash(config()) != config_hash(config(share=0.1))
    assert config_hash(config()) == config_hash(config(share=0.0))


def finished(**asked: Any) -> CompletedRun:
    made = prepare(config(8, **asked), dataset=data())
    return run(made)


def test_without_a_share_held_out_rows_change_nothing_and_with_one_only_the_counts() -> None:
    """Two federations that differ in held-out rows alone release the same numbers, but for the counts."""

    def vectors(asked: dict[str, Any], change: bool) -> tuple[list[Tensor], Any]:
        made = prepare(config(2, **asked), dataset=data())
        rows = made.data.dataset
        if change:
            for train, test in zip(made.data.train, made.data.test, strict=True):
                assert not set(train.tolist()) & set(test.tolist())
                rows.x[test] = 9.0
                rows.y[test] = 1 - rows.y[test]
        done = run(made)
        return [done.models], [record.evaluation for record in done.records]

    for asked in ({}, {"share": 0.3, "rounds": [2]}):
        (same, figures), (other, changed) = vectors(asked, False), vectors(asked, True)
        assert torch.equal(same[0], other[0])
        assert (figures == changed) == (not asked)
        assert (figures == [{}, {}]) == (not asked)


def test_early_stopping_and_the_choice_of_a_round() -> None:
    asked: Any = federation(metric="accuracy", patience=2, choose="best").recipe.evaluation
    state: Any = {}
    models = [torch.full((1, 3), float(number)) for number in range(6)]
    for number, score in enumerate((0.5, 0.7, None, 0.6, 0.65)):
        found = {"model_of_round": number, **({} if score is None else {"accuracy": score})}
        state = evaluation.absorbed(asked, state, found, models[number])
        stopped = evaluation.stops(asked, state)
        assert (stopped is not None) == (number in (3, 4)), (number, stopped)
    assert evaluation.chosen(asked, state) is not None
    assert torch.equal(evaluation.chosen(asked, state), models[1])
    assert "after round 1" in str(stopped)
    loss = replace(asked, metric="loss", patience=0)
    assert evaluation.score_of(loss, {"loss": 2.0}) == -2.0
    assert evaluation.stops(loss, state) is None
    assert evaluation.chosen(replace(asked, choose="last"), state) is None


def test_a_run_ends_early_and_releases_the_model_that_it_chose() -> None:
    generous = {"budgets": 500.0, "delta": 1e-4}
    raw = {**config(30, share=0.5, every=1, patience=3, choose="best").model_dump(), "privacy": generous}
    done = run(prepare(parse(raw), dataset=data()))
    assert done.result.rounds < 30
    assert "early stopping: 3 evaluations in a row" in done.result.ended
    best = max(done.result.evaluation, key=lambda each: each["accuracy"])
    whole = run(prepare(parse({**raw, "rounds": 30, "evaluation": {"share": 0.5, "every": 1}}), dataset=data()))
    assert not torch.equal(whole.models, done.models)
    assert f"after round {best['model_of_round']}" in done.result.ended


@pytest.mark.soak
def test_an_audit_attacks_evaluation_and_finds_too_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    from hush.auditing import side_releases
    from hush.auditing.run import audit

    raw = config(2, share=0.9, rounds=[1, 2]).model_dump()
    made = parse({**raw, "privacy": {"budgets": 1.0, "delta": 1e-4}})
    honest = audit(made)
    assert not honest.refuted
    assert EVALUATION in [each.what for each in honest.releases if each.audited]

    def quieter(release: Any, stage: Stage, given: Evidence, source: Any) -> Tensor:
        exact = exact_sum(release, given.for_release(release))
        return exact + 0.1 * (noised_sum(release, stage, given, source) - exact)

    monkeypatch.setattr(side_releases, "noised_sum", quieter)
    assert audit(made).refuted
