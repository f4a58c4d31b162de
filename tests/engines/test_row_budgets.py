"""Row budgets in a run: what each row's epsilon is, who is sampled how often, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hush
from hush.config import parse
from hush.data import clients
from hush.engines.setup import Federation, prepare
from hush.privacy.ledger.statement import describe
from hush.types import HushError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
EPSILONS = np.where(np.arange(400) % 4 == 0, 4.0, 0.5)


def federation(
    recipe: Any = "dp-fedavg", row_budgets: object = EPSILONS, person: object = None, **privacy: Any
) -> Federation:
    data = clients(X, Y, clients=2, classes=2, row_budgets=row_budgets, person=person)
    named = {"name": recipe} if isinstance(recipe, str) else recipe
    config = {"rounds": 4, "local": {"batch_size": 16, "lr": 0.1}, "recipe": named}
    return prepare(parse({**config, "privacy": {"budgets": 8.0, "delta": 1e-3, **privacy}}), dataset=data)


def test_the_card_lists_the_groups_and_each_keeps_its_budget() -> None:
    found = federation()
    for client, card in enumerate(found.guarantees(found.ledgers())):
        assert [group["budget"] for group in card.row_groups] == [0.5, 4.0]
        assert sum(group["units"] for group in card.row_groups) == 160
        assert all(0.9 * g["budget"] < g["epsilon"] <= g["budget"] for g in card.row_groups)
        budgets = EPSILONS[found.data.train[client]]
        assert (np.diff(budgets) >= 0).all(), "rows lie group after group, as they are sampled"
        small, large = card.row_groups
        assert (budgets == 0.5).sum() == small["units"]
        assert small["rate"] < large["rate"]
        assert card.sample_rate == large["rate"]
    assert any("row budgets" in text and "public" in text for text in found.not_covered())


def test_a_ledger_records_what_each_group_spends(tmp_path: Path) -> None:
    sim = hush.Simulation(
        (X, Y), "logreg", clients=2, classes=2, row_budgets=EPSILONS, epsilon=4.0, delta=1e-3, rounds=4, batch_size=16,
        lr=0.1, recipe="dp-fedavg",
    )  # fmt: skip
    done = sim.fit(progress=False, ledgers=tmp_path / "books")
    for number, card in enumerate(done.run.guarantees):
        said = describe(tmp_path / "books" / f"client-{number}.ledger")
        spent = said["spent_by_row_budget"]
        assert list(spent) == ["0.5", "4"]
        assert spent["0.5"] == pytest.approx(card.row_groups[0]["epsilon"], rel=1e-6)
        assert spent["4"] == pytest.approx(said["spent"], rel=1e-6)
        assert spent["0.5"] <= 0.5


def test_a_person_has_the_smallest_budget_of_its_rows() -> None:
    keys = np.arange(400) // 8
    found = federation(person=keys)
    assert [group[0][0] for group in found.data.groups] == [0.5, 0.5]
    assert [sum(units for _, units in own) for own in found.data.groups] == [20, 20]


@pytest.mark.parametrize(
    ("recipe", "privacy", "says"),
    [
        ("hush", {}, "mean of the inputs"),
        ({"protect": {"rule": "dp-sgd", "spread": "equal-noise"}}, {}, "rates of their own"),
        ("dp-fedavg", {"unit": "client"}, "rates of their own"),
        ("dp-fedavg", {"sampler": "fixed", "relation": "replace-one", "accountant": "rdp"}, "rates of their own"),
    ],
)
def test_what_rates_of_their_own_do_not_fit_is_refused(recipe: Any, privacy: dict[str, Any], says: str) -> None:
    with pytest.raises(HushError, match=says):
        federation(recipe, **privacy)


def test_mistakes_are_named() -> None:
    with pytest.raises(HushError, match=r"row_budgets: shape \(3,\) for 400 rows"):
        federation(row_budgets=[1.0, 2.0, 3.0])
    with pytest.raises(HushError, match="not all are positive"):
        federation(row_budgets=np.zeros(400))
