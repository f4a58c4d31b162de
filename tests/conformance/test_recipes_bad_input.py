"""Recipes that cannot be, and rounds in which something is missing: a clear word, or the documented behaviour."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import hush
from hush.types import HushError, NothingTrainedError, RoundRecord

Raw = dict[str, Any]
SILENT = {"protect": "none"}  # where noise does not matter: it takes time to find how much
FILES = {"manifest.json", "rounds.jsonl", "result.json", "model.safetensors"}


def raw(recipe: Raw, **more: Any) -> Raw:
    return {
        "seed": 1,
        "rounds": 4,
        "data": {"clients": 6, "sizes": 100},
        "privacy": {"budgets": [0.5, 0.5, 0.5, 0.5, 8.0, 9.0], "accountant": "rdp"},
        "local": {"batch_size": 40},
        "recipe": recipe,
        **more,
    }


def simulated(recipe: Raw, out: Path, **more: Any) -> tuple[list[RoundRecord], dict[str, torch.Tensor], Raw]:
    records: list[RoundRecord] = []
    with suppress(NothingTrainedError):
        hush.simulate(raw(recipe, **more), out=out, progress=records.append)
    assert {path.name for path in out.iterdir()} >= FILES
    return records, load_file(out / "model.safetensors"), json.loads((out / "result.json").read_text())


@pytest.mark.parametrize(
    ("slot", "table", "words"),
    [
        ("project", {"rule": "public-subspace", "k": 2, "centred": False}, "k: 2 is above the rank"),
        ("project", {"rule": "delayed-public-subspace", "k": 0}, "k: expected 1 or more, found 0"),
        ("weight", {"rule": "impact", "factors": [1.2, -0.2]}, "factors: expected numbers from 0 to 1 from round 1 on"),
        (
            "weight",
            {"rule": "impact", "changes": {"3": [2.0]}},
            "factors: expected numbers from 0 to 1 from round 3 on",
        ),
        ("weight", {"rule": "impact", "changes": [3]}, "changes: expected a valid dictionary"),
        ("assign", {"rule": "kmeans-each-round", "clusters": 0}, "clusters: expected 1 or more, found 0"),
        ("assign", {"rule": "by-loss", "clusters": 0}, "clusters: expected 1 or more, found 0"),
        ("assign", {"rule": "oracle", "clusters": -1}, "clusters: expected 1 or more, found -1"),
        ("assign", {"rule": "gmm-then-loss", "clusters": -1}, "clusters: expected 0 or more"),
        ("assign", {"rule": "gmm-then-loss", "switch": 1}, "switch: expected 0, or 2 or more, found 1"),
        ("assign", {"rule": "by-loss", "share": -0.1}, "share: expected 0 or more, found -0.1"),
        ("assign", {"rule": "by-loss", "every": 0}, "every: expected 1 or more rounds, found 0"),
        ("local", {"rule": "control-variates", "warm": -1}, "warm: expected 0 or more rounds, found -1"),
        ("local", {"rule": "proximal", "mu": -1.0}, "mu: expected 0 or more, found -1.0"),
        ("protect", {"rule": "output-perturbation", "bound": 0.0}, "bound: expected a positive number, found 0.0"),
        ("step", {"rule": "noisy", "deviation": -1.0}, "deviation: expected 0 or more, found -1.0"),
        ("local", {"rule": "control-variate"}, "unknown rule 'control-variate'; did you mean control-variates"),
    ],
)
def test_refused_before_anything_is_written(slot: str, table: Raw, words: str, tmp_path: Path) -> None:
    with pytest.raises(HushError, match=words) as caught:
        hush.simulate(raw({slot: table}), out=tmp_path / "run")
    assert str(caught.value).startswith(f"recipe.{slot}")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["pfa", "pfa-plus"])
def test_a_round_without_a_public_client_projects_nothing(name: str, tmp_path: Path) -> None:
    """One client a round, never a public one with this seed; PFA and PFA+ are WeiAvg then, bit for bit."""
    records, model, _ = simulated({"name": name, **SILENT}, tmp_path / "a", participation=0.17, seed=0)
    invited = [client for record in records for client in record.weights]
    assert len(invited) == 4
    assert set(invited) <= {0, 1, 2, 3}
    _, other, _ = simulated({"name": "weiavg", **SILENT}, tmp_path / "b", participation=0.17, seed=0)
    assert all(torch.equal(model[key], other[key]) for key in model)


def test_pfa_plus_keeps_the_last_directions_without_a_public_client(tmp_path: Path) -> None:
    records, _, _ = simulated({"name": "pfa-plus", **SILENT}, tmp_path / "run", participation=0.17, seed=1)
    kinds = [next(iter(record.weights)) >= 4 for record in records]
    first = kinds.index(True)
    private_later = [
        record for record, public in zip(records[first + 1 :], kinds[first + 1 :], strict=True) if not public
    ]
    assert private_later
    assert all(record.bytes_up == 4 * 2 for record in private_later)


@pytest.mark.parametrize("quorum", [1, 6])
def test_every_client_out_of_budget_ends_the_run_in_order(quorum: int, tmp_path: Path) -> None:
    """Noise so small that no budget lasts a round: nobody trains, nothing is spent, and the run says so."""
    recipe = {"name": "weiavg", "protect": {"rule": "dp-sgd", "spread": "equal-noise", "noise": 0.05}}
    records, _, result = simulated(recipe, tmp_path / "run", quorum=quorum)
    assert len(records) == 1
    assert records[0].weights == {}
    assert set(records[0].refused) == set(range(6))
    assert result["ended"].startswith("all budgets are exhausted: none of the 6 clients could afford a round")
    assert [card["epsilon_spent"] for card in result["guarantees"]] == [0.0] * 6
    with pytest.raises(NothingTrainedError) as again:
        hush.simulate(raw(recipe, quorum=quorum), out=tmp_path / "run", resume=True)
    assert again.value.result.ended == result["ended"]


def test_small_budgets_leave_early_and_the_others_go_on(tmp_path: Path) -> None:
    recipe = {"name": "pfa-plus", "protect": {"rule": "dp-sgd", "spread": "equal-noise"}}
    records, _, result = simulated(recipe, tmp_path / "run")
    assert result["ended"] == "all rounds are done"
    assert set(records[-1].weights) == {5}
    assert all(card["epsilon_spent"] <= card["epsilon_budget"] for card in result["guarantees"])


def test_nothing_moves_where_all_that_answer_count_for_nothing(tmp_path: Path) -> None:
    weight = {
        "rule": "impact",
        "factors": [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        "changes": {"3": [0.0, 0.5, 0.5, 0.0, 0.0, 0.0]},
    }
    records, _, _ = simulated({"name": "padpfl", "weight": weight, **SILENT}, tmp_path / "run", participation=0.34)
    for record in records:
        named = [0] if record.round < 3 else [1, 2]
        there = [client for client in named if client in record.weights]
        assert sum(record.weights.values()) == pytest.approx(1.0 if there else 0.0)
        assert {client for client, weight in record.weights.items() if weight} == set(there)
    losses = [record.loss for record in records]
    empty = [number for number, record in enumerate(records) if number and not any(record.weights.values())]
    assert empty
    assert all(losses[number] == losses[number - 1] for number in empty)
