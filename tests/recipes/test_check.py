"""Recipes that make no sense are refused before anything is trained, in one line that names the key."""

from __future__ import annotations

from typing import Any

import pytest

from hush.config import parse
from hush.engines.setup import Federation, prepare
from hush.privacy.schedule import epsilon
from hush.types import HushError

BUDGETS = [1.0, 1.0, 1.0, 1.0, 10.0, 10.0]


def federation(recipe: dict[str, Any], **changes: Any) -> Federation:
    data = {"clients": 6, "partition": {"name": "rotation", "clusters": [2, 2, 2]}}
    return prepare(parse({"rounds": 5, "data": data, "privacy": {"budgets": BUDGETS}, "recipe": recipe, **changes}))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"name": "rc-dpfl", "assign": {"rule": "gmm-then-loss", "clusters": 7}}, r"assign\.clusters: 7 is more than"),
        ({"name": "o-cdpfl"}, r"assign\.clusters: 2 models for 3 true clusters"),
        ({"name": "rc-dpfl", "assign": {"rule": "gmm-then-loss", "switch": 5}}, r"assign\.switch: 5 leaves no round"),
        (
            {"name": "pfa", "project": {"rule": "public-subspace", "k": 2}},
            r"project\.k: 2 is above the rank of 2",
        ),
        ({"name": "pfa", "project": {"rule": "public-subspace", "k": 2, "centred": False}}, r"project\.k: 2 is above"),
        ({"weight": {"rule": "impact", "factors": [0.3] * 6}}, r"weight\.factors: impact factors sum to 1\.8"),
        ({"weight": {"rule": "impact", "factors": [0.3] * 4}}, r"weight\.factors: 4 numbers; accepted: 6 .* or 3 "),
        (
            {"weight": {"rule": "impact", "changes": {"3": [0.5, 0.5, 0.5]}}},
            r"weight\.factors: impact factors sum to 3",
        ),
        ({"weight": {"rule": "impact", "factors": [-1.0, 1.0, 0.5]}}, r"weight\.factors: expected numbers from 0 to 1"),
        ({"name": "dp-scaffold-warm", "local": {"rule": "control-variates", "warm": 5}}, r"local\.warm: 5 of 5 rounds"),
        (
            {"name": "pfa-plus", "assign": {"rule": "by-loss", "clusters": 2}},
            r"project: delayed-public-subspace",
        ),
        ({"name": "pfa-plus", "weight": "estimated-noise"}, r"weight: noise cannot be estimated from updates"),
        ({"name": "pfa-plus", "local": "control-variates"}, r"local: control variates need complete updates"),
        ({"protect": "none", "assign": "by-loss"}, r"assign\.share: a noisy choice requires a privacy budget"),
        (
            {"protect": "none", "weight": {"rule": "samples", "counts": "noisy"}},
            r"weight\.counts: a noisy count requires a privacy budget",
        ),
        (
            {"local": "control-variates", "weight": {"rule": "samples", "counts": "noisy"}},
            r"local: control variates",
        ),
        (
            {"protect": {"rule": "dp-sgd", "budget": "minimum"}, "weight": "epsilon"},
            r"weight: weights by declared",
        ),
        (
            {"protect": "none", "weight": {"rule": "estimated-noise", "estimator": "declared"}},
            r"weight\.estimator: decl",
        ),
    ],
)
def test_refused(recipe: dict[str, Any], words: str) -> None:
    with pytest.raises(HushError, match=r"recipe\." + words) as caught:
        federation(recipe)
    assert "\n" not in str(caught.value)


def test_batches_of_a_fixed_size_name_what_they_need() -> None:
    with pytest.raises(HushError, match=r"privacy\.sampler: batches of a fixed size"):
        federation({"name": "dp-fedavg"}, privacy={"sampler": "fixed"})
    with pytest.raises(HushError, match="accountant rdp under relation replace-one"):
        federation({"name": "dp-fedavg"}, privacy={"sampler": "fixed", "relation": "replace-one"})
    federation({"name": "dp-fedavg"}, privacy={"sampler": "fixed", "relation": "replace-one", "accountant": "rdp"})


@pytest.mark.parametrize(
    "recipe",
    [
        {"weight": {"rule": "estimated-noise", "estimator": "pairwise"}, "local": {"rule": "control-variates"},
         "assign": {"rule": "gmm-then-loss", "clusters": 2}},
        {"weight": {"rule": "impact", "factors": [0.1, 0.2, 0.2], "changes": {"3": [0.2, 0.2, 0.1]}}},
        {"project": {"rule": "random-subspace", "k": 3}, "local": "proximal", "step": "adam"},
        {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "clip": "adaptive"}},
    ],
)  # fmt: skip
def test_accepted(recipe: dict[str, Any]) -> None:
    made = federation(recipe)
    assert [schedule.rounds for schedule in made.schedules] == [5] * 6
    assert all(epsilon(c, p) <= p.epsilon for c, p in zip(made.schedules, made.policies, strict=True))
