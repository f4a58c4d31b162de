"""Persons in a run: what is counted, what is bound to ledgers, and what is named as not covered."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hush
from hush.config import parse
from hush.data import clients
from hush.engines.setup import Federation, prepare
from hush.types import HushError

RNG = np.random.default_rng(0)
KEYS = np.repeat(np.arange(40), 5)
X = (RNG.normal(size=(40, 4))[KEYS] + 0.3 * RNG.normal(size=(200, 4))).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def federation(person: object = KEYS, owners: object = 2, **privacy: Any) -> Federation:
    data = clients(X, Y, clients=owners, person=person, classes=2)
    config = {
        "rounds": 2,
        "local": {"batch_size": 4, "lr": 0.1},
        "recipe": {"name": "dp-fedavg"},
        "privacy": {"budgets": 2.0, "delta": 1e-2, **privacy},
    }
    return prepare(parse(config), dataset=data)


def test_all_public_numbers_count_persons() -> None:
    found = federation()
    assert found.config.privacy.unit == "person"
    assert [member.samples for member in found.members] == [16, 16]
    plan = found.schedules[0].plan
    assert (plan.samples, plan.rate, plan.steps) == (16, 0.25, 4)
    assert found.terms.members[0].samples == 16
    card = found.guarantees(found.ledgers())[0]
    assert (card.unit, card.samples) == ("person", 16)
    assert "all of this person's rows" in card.protects


def test_delta_is_held_against_the_number_of_persons() -> None:
    """160 rows to train on at each client, of 20 persons: a delta of 0.008 is above 1/160 and below 1/20."""
    x, y, keys = np.tile(X, (2, 1)), np.tile(Y, 2), np.arange(400) // 10
    for unit, warned in (("row", True), ("person", False)):
        data = clients(x, y, clients=2, person=keys, classes=2)
        config = {"rounds": 1, "local": {"batch_size": 4}, "privacy": {"budgets": 2.0, "delta": 0.008, "unit": unit}}
        found = prepare(parse(config), dataset=data).warnings()
        assert any("delta 0.008 is not below 1/n for n = 160 rows" in text for text in found) is warned


def test_persons_of_one_row_each_are_rows() -> None:
    """The same plan, noise and epsilon: nothing is lost by naming persons who have one row."""
    rows, persons = federation(person=None), federation(person=np.arange(200))
    assert rows.config.privacy.unit == "row"
    assert rows.schedules == persons.schedules


def test_rows_are_protected_only_if_that_is_asked_for_and_persons_are_named_then() -> None:
    found = federation(unit="row")
    assert [member.samples for member in found.members] == [80, 80]
    assert any("up to 5 at a client" in text and "5-fold" in text for text in found.not_covered())
    assert not any("persons" in text for text in federation().not_covered())


def test_a_person_at_several_clients_is_named_with_the_sum() -> None:
    owners = np.where(np.arange(200) % 5 < 3, "a", "b")
    (named,) = [text for text in federation(owners=owners).not_covered() if "several clients" in text]
    assert re.search(r"together up to epsilon 4 at delta 0\.02, the sum of the budgets", named)


@pytest.mark.parametrize(
    ("person", "privacy", "says"),
    [
        (None, {"unit": "person"}, "privacy.unit: .*data.person"),
        (None, {"rows_per_person": 2}, "privacy.rows_per_person: found 2"),
        (KEYS[:-1], {}, r"person: shape \(199,\) for 200 rows"),
        (KEYS + 0.5, {}, "person: found float64"),
        ([" "] * 200, {}, "person: a blank key"),
        ("patient", {}, "person: names a column, and arrays have none"),
    ],
)
def test_mistakes_are_named(person: object, privacy: dict[str, Any], says: str) -> None:
    with pytest.raises(HushError, match=says):
        federation(person=person, **privacy)


def test_a_column_of_a_file_is_the_persons_and_no_feature(tmp_path: Path) -> None:
    file = tmp_path / "visits.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["age", "weight", "patient", "label"])
        writer.writerows([[*map(float, x[:2]), f"patient-{key}", y] for x, key, y in zip(X, KEYS, Y, strict=True)])
    sim = hush.Simulation(
        str(file), "logreg", person="patient", clients=2, epsilon=2.0, delta=1e-2, rounds=1, batch_size=4, lr=0.1
    )
    done = sim.fit(progress=False)
    assert done.run.guarantees[0].unit == "person"
    assert sum(part.numel() for part in done.module.parameters()) == 3 * 2, "two features and a bias for each class"
    assert done.run.config["data"]["person"] == "patient"


def run(ledgers: Path, keys: object = KEYS, **more: Any) -> Any:
    sim = hush.Simulation(
        (X, Y), "logreg", person=keys, clients=2, epsilon=0.5, lifetime=2.0, delta=1e-2, rounds=1, batch_size=4, lr=0.1,
        classes=2, **more,
    )  # fmt: skip
    return sim.fit(progress=False, ledgers=ledgers)


def test_ledgers_are_bound_to_rows_and_their_persons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_WITNESS", str(tmp_path / "witness"))
    books = tmp_path / "books"
    spent = [card.epsilon_spent for card in run(books).run.guarantees]
    again = [card.epsilon_spent for card in run(books).run.guarantees]
    assert all(more > once for once, more in zip(spent, again, strict=True))
    with pytest.raises(HushError, match=r"protects a person, the config a row"):
        run(books, unit="row")
    regrouped = KEYS.copy()
    regrouped[KEYS == 1] = 0
    with pytest.raises(HushError, match=r"training rows were changed|rows are covered by"):
        run(books, keys=regrouped)
    with pytest.raises(HushError, match=r"protects a person, the config a row"):
        run(books, keys=None)


def test_a_second_run_is_the_same_bit_for_bit_after_a_resume(tmp_path: Path) -> None:
    def sim(rounds: int) -> hush.Simulation:
        return hush.Simulation(
            (X, Y), "mlp", person=KEYS, clients=2, epsilon=2.0, delta=1e-2, rounds=rounds, batch_size=4, lr=0.1, seed=3
        )

    whole = sim(3).fit(progress=False)
    stop = sim(3)
    stop.fit(tmp_path / "run", progress=False, callbacks=[lambda record: record.round == 2])
    resumed = stop.fit(tmp_path / "run", resume=True, progress=False)
    assert resumed.run.loss == whole.run.loss
