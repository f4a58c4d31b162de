"""Runs of an audit never exceed a true claim, and come near it in the worst case."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hush.auditing import run as engine
from hush.auditing import side_releases
from hush.auditing import statistics as statistics
from hush.auditing.canaries import effects, plant, rivals
from hush.auditing.run import audit, examine
from hush.auditing.target import Target, target
from hush.config import parse
from hush.engines import enrolment
from hush.engines.setup import prepare
from hush.privacy.side_release import ReleaseShape, RowModel, SideRelease
from hush.terminal import show_audit
from hush.training.queries import bounded_losses
from hush.types import HushError, Relation
from tests.statistical.checks import BESIDE, releasing
from tests.support.worst_case import worst_case


def holds(found: engine.AuditResult, share: float) -> bool:
    return share * found.epsilon_claimed <= found.epsilon_lower <= found.epsilon_claimed


def occurrences(found: engine.AuditResult) -> tuple[tuple[str, int, int], ...]:
    return tuple((each.what, each.times, each.audited) for each in found.releases)


def loud(relation: Relation, seed: int) -> engine.AuditResult:
    """A full batch at a large delta: of 500 audits of simulated normal scores none had less than 0.77 of the claim."""
    return examine(worst_case(delta=1e-2, relation=relation), runs=4_000, confidence=0.999, seed=seed)


def at_once(relation: Relation, seed: int) -> engine.AuditResult:
    """A thousand canaries in one run. Of 100 simulated audits the mean was 0.40 of the claim, the least 0.28."""
    audited = worst_case(epsilon=8.0, delta=1e-8, samples=1000, batch=1000, relation=relation)
    return examine(audited, kind="one-run", canaries=1000, runs=1, confidence=0.999, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_worst_case_reaches_most_of_the_claim_and_never_exceeds_it(seed: int) -> None:
    found = loud("replace-one" if seed % 2 else "add-remove", seed)
    assert found.kind == "two-datasets"
    assert found.epsilon_claimed == pytest.approx(4.0, abs=1e-4)
    assert holds(found, 0.75)
    assert 0.0 < found.epsilon_lower_any < found.epsilon_lower
    # Full batches are the plain Gaussian mechanism, so here the assumption of the closer estimate is true.
    assert 3.5 < found.epsilon_if_gaussian < 4.2


@pytest.mark.parametrize("seed", range(3))
def test_one_run_finds_much_and_never_exceeds_the_claim(seed: int) -> None:
    found = at_once("replace-one" if seed % 2 else "add-remove", seed)
    assert (found.canaries, found.runs) == (1000, 1)
    assert holds(found, 0.2)
    assert found.guesses > 50 and found.accuracy_lower is None


def test_sampled_batches() -> None:
    found = examine(worst_case(batch=4), runs=2000, seed=1)
    assert found.steps == 2
    assert holds(found, 0.5)


def test_secure_noise() -> None:
    found = examine(worst_case(secure=True), runs=1500)
    assert found.noise == "secure"
    # Every run differs, so with room: of 2,000 simulated audits all were between 0.67 and 1.08 of the claim.
    assert 0.5 * found.epsilon_claimed < found.epsilon_lower < 1.15 * found.epsilon_claimed


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_worst_case_at_high_confidence(relation: Relation, seed: int) -> None:
    assert holds(loud(relation, seed), 0.75)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_steps_on_sampled_batches_at_high_confidence(seed: int) -> None:
    assert holds(examine(worst_case(batch=4, rounds=3, delta=1e-2), runs=2000, confidence=0.999, seed=seed), 0.4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_one_run_at_high_confidence(relation: Relation, seed: int) -> None:
    assert holds(at_once(relation, seed), 0.2)


@pytest.fixture
def images(small: dict[str, Any]) -> dict[str, Any]:
    return {**small, "rounds": 2, "model": {"name": "cnn"}, "local": {"batch_size": 64, "lr": 0.1}}


def test_a_config_is_audited_for_the_client_with_the_largest_budget(small: dict[str, Any]) -> None:
    found = audit(parse(small), kind="one-run", runs=10, seed=3)
    assert (found.client, found.kind, found.rounds, found.confidence) == (5, "one-run", 4, 0.95)
    assert found.epsilon_claimed == pytest.approx(8.0, rel=0.02)
    assert found.canaries * found.runs > 500
    assert holds(found, 0.1)
    assert not found.refuted
    assert audit(parse(small), kind="one-run", runs=10, seed=3).epsilon_lower == found.epsilon_lower
    assert audit(parse(small), kind="one-run", client=0, runs=1).epsilon_claimed == pytest.approx(0.3, rel=0.02)


def test_a_network_on_images_is_audited(images: dict[str, Any]) -> None:
    found = audit(parse(images), runs=4, seed=1)
    assert found.kind == "one-run", "a network is too large to be repeated a thousand times"
    assert 0.0 < found.epsilon_lower <= found.epsilon_claimed


def test_replaced_rows_of_a_config(small: dict[str, Any]) -> None:
    small["privacy"]["relation"] = "replace-one"
    found = audit(parse(small), kind="one-run", runs=10, seed=2)
    assert found.relation == "replace-one"
    assert holds(found, 0.05)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "both"}, "kind: unknown kind of audit 'both'; .*accepted: auto, one-run, two-datasets"),
        ({"runs": 0}, "runs: found 0; accepted: an integer, 1 or more"),
        ({"client": 6}, "client: found 6; accepted: 0 to 5"),
        ({"confidence": 1.0}, "confidence: found 1.0; accepted"),
        ({"kind": "two-datasets", "runs": 3}, "at least 4 runs"),
    ],
)
def test_mistakes_are_named(small: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(HushError, match=words):
        audit(parse(small), **changes)


def test_a_client_that_promises_nothing_is_refused(small: dict[str, Any]) -> None:
    small["recipe"] = {"name": "fedavg"}
    with pytest.raises(HushError, match="client 0 has no guarantee to audit"):
        audit(parse(small))


@pytest.mark.parametrize("secure", [False, True])
def test_every_round_of_every_run_draws_afresh(secure: bool) -> None:
    audited = worst_case(secure=secure)
    drawn = [
        engine._source(audited, run, number, 0).normal(1, torch.float64).item() for run in (0, 1) for number in (0, 1)
    ]
    assert len(set(drawn)) == 4


def test_an_audit_with_noise_drawn_twice_would_refute_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong twin: what fresh noise is for."""
    fresh = engine._source

    def stale(audited: Target, run: int, number: int, seed: int) -> object:
        return fresh(audited, 0, number, seed)

    monkeypatch.setattr(engine, "_source", stale)
    assert examine(worst_case(), runs=600).refuted


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_canary_is_as_loud_as_a_row_may_be(relation: Relation) -> None:
    audited = worst_case(relation=relation)
    canary = plant(audited.model, audited.x[:-1], clip=audited.plan.clip, relation=relation, count=1, seed=1)
    effect = effects(audited.model, audited.model.start, canary, audited.plan.clip)
    assert float(effect.gaps.norm()) == pytest.approx(2.0 if relation == "replace-one" else 1.0, rel=1e-5)
    assert float((audited.x[:-1] @ canary.x[0]).abs().max()) < 1e-6


def test_canaries_of_a_config_are_loud_and_apart(small: dict[str, Any]) -> None:
    audited = target(prepare(parse(small)))
    canaries = plant(audited.model, audited.x, clip=audited.plan.clip, relation="add-remove", count=100, seed=1)
    gaps = effects(audited.model, audited.model.start, canaries, audited.plan.clip).gaps
    assert bool((gaps.norm(dim=1) > 0.99).all())
    likeness = (gaps @ gaps.T - torch.eye(100)).abs()
    assert float(likeness.mean()) < 0.15


# What is released beside updates.

SLOW = ("clip quantile", "cluster choice", "evaluation on held-out rows")


ALONE = ("sufficient statistics",)  # released in rounds that train nothing, so that one run has no updates to look at


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.soak if n in SLOW else ()) for n in BESIDE if n not in ALONE]
)
def test_one_run_looks_at_what_goes_with_updates(name: str) -> None:
    found = examine(releasing(BESIDE[name]), kind="one-run", runs=4, confidence=0.999, seed=1)
    assert occurrences(found) == (("model update", 1, 1), (name, 1, 1))
    assert name not in found.not_audited
    assert not found.refuted


def test_one_run_refutes_a_mean_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    real = enrolment.noised_mean
    monkeypatch.setattr(enrolment, "noised_mean", lambda x, spread, *rest: real(x, 0.0, *rest))
    assert examine(releasing(BESIDE["mean of the inputs"]), kind="one-run", runs=4, confidence=0.999).refuted


@dataclass(frozen=True)
class Labels(SideRelease):
    """A release of a user's own: how often each label occurs."""

    def width(self, shape: ReleaseShape) -> int:
        return shape.classes

    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        return torch.nn.functional.one_hot(y, self.classes)

    classes: int = 3


def with_labels(ratio: float) -> Target:
    audited = releasing({"recipe": {"name": "dp-fedavg"}})
    (stage,) = audited.rounds
    labels = Labels("label counts", 0.1, classes=audited.shape.classes)
    telling = replace(stage, spec=replace(stage.spec, side_releases=(labels,)), ratios=(ratio,))
    return replace(audited, rounds=(telling,))


def test_a_release_of_ones_own_is_audited(capsys: pytest.CaptureFixture[str]) -> None:
    found = examine(with_labels(1.0), kind="two-datasets", runs=100)
    assert occurrences(found) == (("model update", 1, 1), ("label counts", 1, 1))
    assert found.not_audited == ("number of training samples",)
    show_audit(asdict(found))
    shown = capsys.readouterr().out
    assert "audited: model update (1 of 1), alone at least " in shown
    assert "audited: label counts (1 of 1), alone at least " in shown
    assert all(sentence in shown for sentence in found.meaning)


def test_a_release_of_ones_own_without_its_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_releases, "noised", lambda total, *_rest: total)
    found = examine(with_labels(1.0), kind="one-run", runs=1, confidence=0.999)
    assert found.refuted
    assert [each.what for each in found.releases if each.epsilon_lower > each.epsilon_claimed] == ["label counts"]
    assert "(label counts)" in found.meaning[3]


def test_all_stages_of_a_course_are_audited(small: dict[str, Any]) -> None:
    small["recipe"] = {"assign": {"rule": "gmm-then-loss", "every": 1}}
    audited = target(prepare(parse(small)))
    assert [stage.plan.rate for stage in audited.rounds].count(1.0) == 1
    found = examine(audited, kind="two-datasets", runs=30, seed=1)
    assert (found.rounds, found.steps) == (4, 1 + 3 * audited.plan.steps)
    assert occurrences(found) == (
        ("model update", 4, 4),
        ("cluster choice", 1, 1),
    )


def test_models_to_choose_from_are_turned_by_one_row() -> None:
    audited = releasing(BESIDE["cluster choice"])
    bound = audited.config.privacy.loss_clip
    canary = plant(audited.model, audited.x[:-1], clip=audited.plan.clip, relation="add-remove", count=1, seed=1)
    models = rivals(audited.model, audited.starts[0], audited.x[:-1], audited.y[:-1], canary, bound, 3)
    usual, alike, tempting = bounded_losses(audited.model, models, audited.x[:-1], audited.y[:-1], bound)
    assert usual == alike
    assert float(tempting - usual) == pytest.approx(0.5 * bound, rel=0.05)
    usual, _, tempting = bounded_losses(audited.model, models, canary.x, canary.y, bound)
    assert float(usual - tempting) > 0.9 * bound


def test_an_update_that_is_never_finite_is_no_clean_bill() -> None:
    audited = worst_case()
    with pytest.raises(HushError, match="no released update is finite"):
        examine(replace(audited, starts=torch.full_like(audited.starts, math.nan)), runs=10, kind="two-datasets")
