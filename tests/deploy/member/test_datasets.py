"""Columns are matched by name: in another order they train the same model, renamed or retyped they are refused."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

import torch

from hush.data.preprocessing import mapped
from hush.data.schema import Column, Schema, check_fits, from_record, read
from hush.data.schema import toml as schema_toml
from hush.deploy.admin.folders import Kit
from hush.deploy.member import datasets
from hush.deploy.member.service import prepare
from hush.deploy.shared.protocol import code_hash
from hush.deploy.shared.refusal import RefusalCode
from hush.seeds import rng
from hush.types import HushError
from tests.support import federation_kit as kit

QUICK, SOAK = 8, 200
NAMES = ("age", "bmi", "sbp", "sex", "smoker")
RUN = Schema(
    shape=(5,),
    classes=3,
    columns=(
        Column(name="age", kind="integer", low=18, high=95),
        Column(name="bmi", low=10.0, high=60.0),
        Column(name="sbp"),
        Column(name="sex", kind="category", categories=("F", "M", "X")),
        Column(name="smoker", kind="category", categories=("no", "yes")),
    ),
    label="outcome",
)


def table(number: int = 90, seed: int = 0) -> list[dict[str, Any]]:
    draw = rng(seed, "table")
    return [
        {"age": int(draw.integers(10, 99)), "bmi": round(float(draw.normal(27, 9)), 1),
         "sbp": float(draw.normal(130, 18)), "sex": "FM"[int(draw.integers(2))],
         "smoker": ("no", "yes")[int(draw.integers(2))], "outcome": int(draw.integers(3))}
        for _ in range(number)
    ]  # fmt: skip


def written(path: Path, records: list[dict[str, Any]], order: Any, change: str = "", schema: str = "") -> Path:
    """A kit with these rows as CSV, columns in that order; a change of one column is `rename`, `retype` or `drop`."""
    path.mkdir(parents=True)
    names = [name for name in order if not (change == "drop" and name == "bmi")]
    with (path / "rows.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["weight" if change == "rename" and name == "bmi" else name for name in names])
        for row in records:
            out.writerow(["low" if change == "retype" and name == "bmi" else row[name] for name in names])
    (path / "schema.toml").write_text(schema or toml())
    return path


def toml(**changes: str) -> str:
    """The member's own words for the same columns, in an order of its own."""
    tables = {
        "smoker": 'categories = ["yes", "no"]', "sex": 'categories = ["M", "F"]', "sbp": "",
        "bmi": "low = 5\nhigh = 70", "age": 'kind = "integer"\nlow = 0\nhigh = 120', **changes,
    }  # fmt: skip
    return "label = 'outcome'\nclasses = 3\n" + "\n".join(f"[columns.{n}]\n{t}" for n, t in tables.items() if t != "-")


def trained(path: Path, schema: Schema = RUN) -> torch.Tensor | str:
    """The update of the first round, or the code of the refusal."""
    (path / "policy.toml").write_text(
        kit.template(1.0, 1e-4, "add-remove", ["robust-hdp"], seeded=True, auto_approve=True, held_out=0.0)
    )
    node = prepare(Kit(path, "a", "nowhere:1"), path / "policy.toml", path / "rows.csv")
    asks = kit.Coordinator(node)
    one, wanted = node.policy.one_run, kit.config(data__clients=1)
    mine = {"name": "a", "epsilon": one.epsilon, "delta": one.delta, "relation": one.relation, "samples": 90,
            "factor": None, "group": None, "noised": {}}  # fmt: skip
    answer = asks.ask(
        "begin", run="a", config=wanted.model_dump(), code=code_hash(), schema=schema.record(), client=0, roster=[mine],
        centre="", head="",
    )  # fmt: skip
    if answer.kind == "no":
        node.ledger.close()
        return str(answer.fields["code"])
    asks.run = "a"
    update = asks.task(1, torch.zeros(1, 3 * (schema.input_shape[0] + 1)))
    node.ledger.close()
    return update.tensors["vector"]


def trained_from_files(path: Path, number: int) -> list[torch.Tensor]:
    """The update from a file, then from files with other orders of the columns; changed files do not start."""
    records = table()
    expected = trained(written(path / "plain", records, (*NAMES, "outcome")))
    assert isinstance(expected, torch.Tensor)
    updates = [expected]
    draw = rng(1, "orders")
    for at in range(number):
        order = tuple(str(name) for name in draw.permutation((*NAMES, "outcome")))
        found = trained(written(path / f"order{at}", records, order))
        assert isinstance(found, torch.Tensor), order
        updates.append(found)
        change = ("rename", "retype", "drop")[at % 3]
        with pytest.raises(HushError, match="bmi"):
            trained(written(path / f"{change}{at}", records, order, change))
    return updates


def test_the_runs_schema_says_how_columns_become_inputs(tmp_path: Path) -> None:
    bounded = tuple(replace(c, low=0.0, high=200.0) if c.name == "sbp" else c for c in RUN.columns)
    encoded = replace(RUN, columns=bounded, scale="signed", encoding="one-hot")
    assert encoded.input_shape == (3 + 3 + 2,)
    plain, other = (
        trained(written(tmp_path / name, table(), order), encoded)
        for name, order in (("plain", (*NAMES, "outcome")), ("other", ("outcome", *reversed(NAMES))))
    )
    assert isinstance(plain, torch.Tensor) and isinstance(other, torch.Tensor)
    assert plain.shape == (27,) and torch.equal(plain, other)
    blank = table()
    blank[0]["bmi"] = ""
    allowed = tuple(replace(c, missing="indicator") if c.name == "bmi" else c for c in bounded)
    allows = toml(bmi='low = 5\nhigh = 70\nmissing = "indicator"')
    with pytest.raises(HushError, match="bmi is blank"):
        trained(written(tmp_path / "refused", blank, (*NAMES, "outcome")), encoded)
    assert trained(written(tmp_path / "strict", blank, (*NAMES, "outcome"), schema=allows), encoded) == "schema"
    found = trained(
        written(tmp_path / "allowed", blank, (*NAMES, "outcome"), schema=allows), replace(encoded, columns=allowed)
    )
    assert isinstance(found, torch.Tensor) and found.shape == (30,)


def test_the_public_test_set_has_the_same_inputs(tmp_path: Path) -> None:
    folder = written(tmp_path / "study", table(), (*NAMES, "outcome"))
    schema = replace(RUN, columns=RUN.columns[:2] + RUN.columns[3:], shape=(4,), scale="unit", encoding="one-hot")
    (folder / "schema.toml").write_text(schema_toml(schema))
    text = (folder / "rows.csv").read_text().splitlines()
    (folder / "test.csv").write_text("\n".join(",".join(line.split(",")[:2] + line.split(",")[3:]) for line in text))
    found = datasets.public_test(None, folder, kit.config(data__clients=1))
    assert found.x.shape == (90, *schema.input_shape) and found.x.min() >= 0 and found.x.max() <= 1
    assert datasets.schema_of(found) == schema


def test_files_in_any_order_train_the_same_model_and_changed_ones_do_not_start(tmp_path: Path) -> None:
    expected, *found = trained_from_files(tmp_path, QUICK)
    assert len(found) == QUICK
    assert all(torch.equal(update, expected) for update in found)


@pytest.mark.soak
def test_two_hundred_files(tmp_path: Path) -> None:
    expected, *found = trained_from_files(tmp_path, SOAK)
    assert len(found) == SOAK
    assert all(torch.equal(update, expected) for update in found)


@pytest.mark.parametrize(
    "schema",
    [
        toml(bmi="-", weight="low = 5\nhigh = 70"), toml(bmi='kind = "integer"'), toml(bmi='categories = ["1", "2"]'),
        toml(sex='categories = ["M", "F", "?"]'), toml(sex=""), toml(sbp="-"), toml(extra=""),
        toml().replace("classes = 3", "classes = 4"), toml().replace("'outcome'", "'label'"),
        "shape = [5]\nclasses = 3\nlabel = 'outcome'",
    ],
)  # fmt: skip
def test_what_a_run_is_about_is_compared_with_what_is_declared_and_with_no_row(tmp_path: Path, schema: str) -> None:
    (tmp_path / "schema.toml").write_text(schema)
    declared = read(tmp_path / "schema.toml")
    with pytest.raises(HushError, match="schema: "):
        check_fits(declared, RUN)


def test_a_member_refuses_a_run_about_other_columns(tmp_path: Path) -> None:
    columns = tuple(replace(column, name="weight") if column.name == "bmi" else column for column in RUN.columns)
    member = written(tmp_path / "a", table(), (*NAMES, "outcome"))
    assert trained(member, replace(RUN, columns=columns)) == RefusalCode.SCHEMA


def test_a_table_without_a_declared_schema_has_the_names_of_its_header(tmp_path: Path) -> None:
    """The reproduction of the review: two columns swapped enrolled, and trained all rounds."""
    x = kit.data().x
    names = list("pqrstu")
    for name, order in (("plain", [0, 1, 2, 3, 4, 5]), ("swapped", [3, 1, 2, 0, 4, 5])):
        lines = [",".join([*(names[at] for at in order), "label"])]
        lines += [",".join([*(str(row[at]) for at in order), "1"]) for row in x]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    run = datasets.schema_of(datasets.load(tmp_path / "plain.csv"))
    swapped = datasets.load(tmp_path / "swapped.csv")
    assert swapped.schema is not None
    assert not np.array_equal(swapped.x, x)
    check_fits(swapped.schema, run)
    assert np.array_equal(mapped(swapped.x, swapped.y, swapped.schema, run)[0], x)
    # An array has no names that could tell an order, so it does not fit a run that has them, nor the reverse.
    for own, other in ((Schema(shape=(6,)), run), (swapped.schema, Schema(shape=(6,), classes=2))):
        with pytest.raises(HushError, match=r"schema\.toml names the columns of arrays"):
            check_fits(own, other)


def test_values_outside_a_range_are_clipped_row_by_row() -> None:
    own = Schema(
        shape=(2,), classes=None, columns=(Column(name="b"), Column(name="a", kind="category", categories=("y", "x")))
    )
    run = Schema(
        shape=(2,),
        classes=3,
        columns=(Column(name="a", kind="category", categories=("x", "z", "y")), Column(name="b", low=-1.0, high=1.0)),
    )
    x, y = np.array([[5.0, 0.0], [-5.0, 1.0], [0.5, 0.0]], np.float32), np.array([0, 7, 2])
    found, labels = mapped(x, y, own, run)
    assert found.tolist() == [[2.0, 1.0], [0.0, -1.0], [2.0, 0.5]]
    assert labels.tolist() == [0, 2, 2]
    for at in range(3):
        alone = mapped(x[at : at + 1], y[at : at + 1], own, run)
        assert np.array_equal(alone[0][0], found[at])
        assert alone[1][0] == labels[at]


@pytest.mark.parametrize(
    "raw",
    [
        None, [], {}, {"shape": []}, {"shape": [0]}, {"shape": [True]}, {"shape": [1 << 40]}, {"shape": "6"},
        {"shape": [6], "classes": "3"}, {"shape": [6], "classes": -1}, {"shape": [6], "more": 1},
        {"shape": [1], "columns": [{"name": 3}]}, {"shape": [1], "columns": [{"name": "a", "kind": "text"}]},
        {"shape": [1], "columns": [{"name": "a", "low": float("nan")}]}, {"shape": [1], "columns": "a"},
        {"shape": [1], "columns": [{"name": "a", "low": 2, "high": 1}]}, {"shape": [1], "columns": [{"name": "label"}]},
        {"shape": [2], "columns": [{"name": "a"}]}, {"shape": [2], "columns": [{"name": "a"}, {"name": "a"}]},
        {"shape": [1], "columns": [{"name": "a", "categories": "xy"}]}, {"shape": [1], "label": 3},
        {"shape": [1], "columns": [{"name": "a", "categories": ["x", "x"]}]},
        {"shape": [1], "columns": [{"name": "a", "kind": "category"}]},
    ],
)  # fmt: skip
def test_a_schema_that_is_none_is_refused(raw: Any) -> None:
    with pytest.raises(HushError, match="schema: "):
        from_record(raw)


def test_a_schema_survives_the_wire() -> None:
    assert from_record(RUN.record()) == RUN
