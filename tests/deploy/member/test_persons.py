"""A member whose policy protects persons: what it counts, declares, trains on and refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hush.data.schema import Column, Schema, from_record, toml
from hush.deploy.admin.folders import Kit
from hush.deploy.member import datasets
from hush.deploy.member.policy_template import template
from hush.deploy.member.process import Node
from hush.deploy.member.service import prepare
from hush.deploy.shared.run_spec import complete
from hush.types import HushError
from tests.support import federation_kit as kit

EACH = 4
PERSONS = kit.ROWS // EACH
KEYS = np.random.default_rng(0).permutation(np.repeat(np.arange(PERSONS), EACH))
OFFER = {"local__batch_size": 10, "privacy__unit": "person"}


def member(path: Path, *, unit: str = "person", keys: np.ndarray | None = KEYS) -> Node:
    path.mkdir(exist_ok=True)
    dataset = kit.data()
    if keys is None:
        np.savez(path / "data.npz", x=dataset.x, y=dataset.y)
    else:
        np.savez(path / "data.npz", x=dataset.x, y=dataset.y, patient=keys)
    text = template(
        1.0,
        1e-4,
        "add-remove",
        ["robust-hdp", "hush"],
        seeded=True,
        auto_approve=True,
        max_cpu=1.0,
        runs_per_day=10_000,
        held_out=0.0,
    )
    text = text.replace('# unit = "person"  ', f'unit = "{unit}"  ').replace(
        '# person = "patient"', 'person = "patient"'
    )
    (path / "policy.toml").write_text(text)
    return prepare(Kit(path, "a", "nowhere:1"), path / "policy.toml", path / "data.npz")


def test_a_member_counts_persons_and_charges_their_rate(tmp_path: Path) -> None:
    node = member(tmp_path / "a")
    asks, offer = kit.Coordinator(node), kit.config(**OFFER)
    reply = asks.enrol(offer)
    assert reply.fields["samples"] == PERSONS
    assert reply.fields["unit"] == "person"
    assert asks.begin(offer, samples=PERSONS, unit="person").kind == "ready"
    answer = asks.task(1)
    assert answer.kind == "update"
    (cost,) = node.ledger.charged(kit.RUN)
    assert cost.rate == 10 / PERSONS
    assert node.ledger.terms.policy.unit == "person"


def test_a_run_that_protects_rows_is_refused_and_the_other_way_round(tmp_path: Path) -> None:
    persons, rows = kit.Coordinator(member(tmp_path / "a")), kit.Coordinator(member(tmp_path / "b", unit="row"))
    assert "privacy.unit row: not accepted" in persons.enrol(kit.config(privacy__unit="row")).fields["reason"]
    assert "privacy.unit row: not accepted" in persons.enrol(kit.config()).fields["reason"]
    assert "privacy.unit person: not accepted" in rows.enrol(kit.config(**OFFER)).fields["reason"]


def test_a_member_without_keys_cannot_protect_persons(tmp_path: Path) -> None:
    with pytest.raises(HushError, match=r'budget.unit: "person" needs to know'):
        member(tmp_path / "a", keys=None)


def test_the_means_and_counts_of_enrolment_are_those_of_persons(tmp_path: Path) -> None:
    node = member(tmp_path / "a")
    offer = kit.config(**OFFER, recipe={"name": "hush"})
    answer = kit.Coordinator(node).enrol(offer)
    assert answer.fields["samples"] == PERSONS
    assert {cost.what for cost in node.ledger.charged(kit.RUN)} == {"mean of the inputs"}


def test_keys_stay_at_the_member(tmp_path: Path) -> None:
    """Nothing that a member sends or logs has a key of a person, nor depends on more of them than their number."""
    path = tmp_path / "a"
    node = member(path, keys=np.array([f"patient-number-{key}" for key in KEYS]))
    asks, offer = kit.Coordinator(node), kit.config(**OFFER)
    said = [repr(each) for each in (asks.enrol(offer), asks.begin(offer, samples=PERSONS, unit="person"), asks.task(1))]
    node.ledger.close()
    logged = [file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "data.npz"]
    assert not any("patient-number" in text for text in said)
    assert not any(b"patient-number" in content for content in logged)


def test_a_schema_names_the_column_and_a_run_follows(tmp_path: Path) -> None:
    schema = Schema(shape=(2,), columns=(Column(name="age"), Column(name="dose")), classes=2, person="patient")
    assert from_record(schema.record()) == schema
    (tmp_path / "schema.toml").write_text(toml(schema))
    assert datasets.declared(tmp_path) == schema
    (tmp_path / "rows.csv").write_text("age,patient,dose,label\n1,x,2,0\n3,y,4,1\n5,x,6,1\n")
    found = datasets.load(tmp_path / "rows.csv", declared=schema)
    assert found.person is not None
    assert found.person.tolist() == ["x", "x", "y"]
    assert found.x.tolist() == [[1, 2], [5, 6], [3, 4]]
    assert found.y.tolist() == [0, 1, 1]
    assert complete(kit.config(), schema).privacy.unit == "person"
    assert complete(kit.config(), None).privacy.unit == "row"
    with pytest.raises(HushError, match="neither a feature nor the label"):
        Schema(shape=(1,), columns=(Column(name="age"),), person="age")
