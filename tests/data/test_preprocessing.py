"""Preprocessing uses the schema alone: each row by itself, values clipped, categories and blanks as declared."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush.data import Column, Schema, clients, infer_schema
from hush.data.preprocessing import encoded, features, mapped
from hush.data.schema import check_fits, from_record, from_table, read, toml
from hush.seeds import rng
from hush.types import HushError

pandas = pytest.importorskip("pandas")

SCHEMA = from_table(
    {
        "label": "out",
        "classes": ["no", "yes"],
        "scale": "signed",
        "encoding": "one-hot",
        "columns": {
            "age": {"low": 0, "high": 100, "missing": "indicator"},
            "home": {"categories": ["own", "rent"], "unknown": True, "missing": "indicator"},
            "vip": {"kind": "boolean", "missing": 0},
            "since": {"kind": "date", "low": "2020-01-01", "high": "2020-01-11", "missing": "2020-01-06"},
            "pets": {"kind": "integer", "low": 0, "high": 4},
        },
    }
)
NAMES = ("age", "home", "vip", "since", "pets", "out")


def rows(*values: tuple[Any, ...]) -> Any:
    """Each row twice, since a client has at least two."""
    return pandas.DataFrame([row for row in values for _ in range(2)], columns=NAMES)


def inputs(*values: tuple[Any, ...], schema: Schema = SCHEMA) -> list[list[float]]:
    made: list[list[float]] = clients(rows(*values), schema=schema).dataset.x[::2].tolist()
    return made


def test_every_kind_of_column() -> None:
    assert SCHEMA.input_shape == (2 + 4 + 1 + 1 + 1,)
    found = inputs(
        (50, "own", "yes", "2020-01-01", 4, "yes"),
        (None, "boat", "no", "2020-01-11", 0, "no"),
        (1000, None, None, None, 9, "no"),
    )
    assert found == [
        [0, 0, 1, 0, 0, 0, 1, -1, 1],
        [0, 1, 0, 0, 1, 0, -1, 1, -1],
        [1, 0, 0, 0, 0, 1, -1, 0, 1],
    ]  # fmt: skip


def test_unit_scale_index_encoding_and_values_for_blanks() -> None:
    columns = (
        Column(name="age", low=0.0, high=100.0, missing=25.0),
        Column(name="home", kind="category", categories=("own", "rent"), missing="rent", unknown=True),
    )
    schema = Schema(shape=(2,), classes=2, columns=columns, label="out", scale="unit")
    frame = pandas.DataFrame({"age": [None, -5.0, 50.0], "home": [None, "own", "boat"], "out": [0, 1, 1]})
    assert clients(frame, schema=schema).dataset.x.tolist() == [[0.25, 1.0], [0.0, 0.0], [0.5, 2.0]]


def test_each_row_depends_on_itself_alone() -> None:
    draw = rng(0, "preprocessing")
    values = [
        (float(draw.integers(0, 200)), ("own", "rent", "boat")[int(draw.integers(3))], "yes", "2020-01-05", 1, "no")
        for _ in range(20)
    ]
    whole = inputs(*values)
    assert [inputs(values[at], values[0])[0] for at in range(20)] == whole
    extreme = (1e9, "other", "no", "2099-01-01", 10**6, "yes")
    assert inputs(*values, extreme)[:20] == whole


def test_the_defaults_leave_rows_as_they_are() -> None:
    plain = Schema(
        shape=(2,), classes=2, columns=(Column(name="a"), Column(name="b", kind="category", categories=("x", "y")))
    )
    x = np.array([[1.5, 0.0], [-2.0, 1.0]], np.float32)
    assert features(x, plain) is x
    assert mapped(x, np.array([0, 1]), plain, plain)[0].tolist() == x.tolist()


def test_a_members_rows_become_the_inputs_of_the_run() -> None:
    own = Schema(
        shape=(2,), classes=2,
        columns=(Column(name="home", kind="category", categories=("rent", "own"), unknown=True, missing="indicator"),
         Column(name="age", low=0.0, high=150.0, missing="indicator")),
    )  # fmt: skip
    run = Schema(
        shape=(2,), classes=2,
        columns=(Column(name="age", low=0.0, high=100.0, missing="indicator"),
         Column(name="home", kind="category", categories=("own", "rent", "boat"), unknown=True, missing="indicator")),
        scale="unit", encoding="one-hot",
    )  # fmt: skip
    check_fits(own, run)
    assert from_record(run.record()) == run
    columns = [
        encoded(own.columns[0], ["rent", "own", "tent", ""], str),
        encoded(own.columns[1], ["50", "", "120", "0"], str),
    ]
    x, _ = mapped(np.stack(columns, axis=1).astype(np.float32), np.zeros(4, np.int64), own, run)
    assert x.tolist() == [
        [0.5, 0, 0, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0, 1]
    ]  # fmt: skip
    strict = Schema(
        shape=(2,),
        classes=2,
        columns=(Column(name="age"), Column(name="home", kind="category", categories=("own", "rent"))),
    )
    with pytest.raises(HushError, match=r"unknown categories|blanks"):
        check_fits(own, strict)


def test_without_a_schema_the_error_shows_the_one_to_write() -> None:
    with pytest.raises(HushError) as caught:
        clients(rows((50.0, "own", True, "2020-01-01", 4, 0), (None, "rent", False, "2020-01-02", 1, 1)), label="out")
    text = str(caught.value)
    assert "\n" not in text and "rent" not in text and "50" not in text
    table = text[text.index("columns = {") :].partition(", and low")[0].replace("...", "0", 2)
    assert set(tomllib.loads(table)["columns"]) == {"age", "home", "since"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((50, "boat!", "maybe", "2020-01-01", 4, "yes"), "vip: found 'maybe'; accepted: true, false"),
        ((50, "own", "yes", "soon", 4, "yes"), "since: found 'soon'; accepted: a date"),
        ((50, "own", "yes", "2020-01-01", 4.5, "yes"), "pets: not an integer"),
        ((50, "own", "yes", "2020-01-01", None, "yes"), "pets is blank; accepted: a value, or missing"),
        (("old", "own", "yes", "2020-01-01", 4, "yes"), "age: could not convert"),
        ((50, "own", "yes", "2020-01-01", 4, "perhaps"), "'perhaps' is not one of the classes; accepted: no, yes"),
    ],
)
def test_values_that_the_schema_does_not_allow(value: tuple[Any, ...], words: str) -> None:
    with pytest.raises(HushError, match=words) as caught:
        inputs((50, "own", "yes", "2020-01-01", 4, "yes"), value)
    assert "row 2" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"columns": {"a": {}}, "scale": "signed"}, "no low and high"),
        ({"columns": {"a": {"low": 1, "high": 1}}, "scale": "unit"}, "low below high"),
        ({"columns": {"a": {"missing": "zero"}}}, "accepted: refuse, indicator or a number"),
        ({"columns": {"a": {"categories": ["x"], "missing": "y"}}}, "one of its categories"),
        ({"columns": {"a": {"unknown": True}}}, "kind category"),
        ({"columns": {"a": {}}, "scale": "standard"}, "accepted: none, signed, unit"),
        ({"columns": {"a": {}}, "encoding": "hash"}, "accepted: index, one-hot"),
        ({"columns": {"a": {}}, "classes": ["x", "x"]}, "different strings"),
        ({"columns": {"a": {"bounds": 3}}}, "a column"),
        ({"columns": {"a": 3}}, "must be a table"),
        ({"scaling": 1}, "accepted: label, person, classes, scale"),
        (7, "accepted: a table"),
    ],
)
def test_mistakes_in_a_schema(table: Any, words: str) -> None:
    with pytest.raises(HushError, match=words):
        from_table(table)


def test_a_public_file_gives_its_schema(tmp_path: Path) -> None:
    frame = rows((50, "own", "yes", "2020-01-01", 4, "yes"), (None, "rent", "no", "2020-02-01", 0, "no"))
    path = tmp_path / "public.csv"
    frame.assign(site="a").to_csv(path, index=False)
    found = infer_schema(path, label="out", client="site")
    assert found == infer_schema(frame, label="out")
    assert found.class_names == ("no", "yes") and found.names == NAMES[:-1]
    assert found.columns[0] == Column(name="age", low=50.0, high=51.0, missing="indicator")
    assert found.columns[1] == Column(name="home", kind="category", categories=("own", "rent"), unknown=True)
    assert found.columns[3].kind == "date" and found.columns[4] == Column(name="pets", low=0.0, high=4.0)
    (tmp_path / "schema.toml").write_text(toml(found))
    assert read(tmp_path / "schema.toml") == found
    words = ["data", "schema", str(path), "--label", "out", "--client", "site"]
    line = [sys.executable, "-c", "from hush.cli.main import main; main()", *words]
    assert subprocess.run(line, capture_output=True, text=True, timeout=120, check=True).stdout == toml(found)
    clients(path, client="site", schema=tmp_path / "schema.toml")
