"""Input formats: described as JSON and back, for every kind of rows."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest

import hush
from hush.data.input_format import InputFormat, format_of, from_record

TABLE = pandas.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": ["x", "y", "x", "y"], "label": [0, 1, 1, 0]})
SCHEMA = {"encoding": "one-hot", "columns": {"a": {"low": 0, "high": 9}, "b": {"categories": ["x", "y"]}}}
TOKENS = {"tokens": np.arange(24).reshape(4, 6), "mask": np.ones((4, 6), bool), "age": np.ones(4)}


@pytest.mark.parametrize(
    "data",
    [
        hush.data.clients(np.ones((4, 1, 2, 2)), np.array([0, 1, 0, 1])),
        hush.data.clients(np.arange(12).reshape(4, 3), np.array([0, 1, 0, 1])),
        hush.data.clients(TOKENS, np.array([0, 1, 0, 1])),
        hush.data.clients((np.ones((4, 2)), np.arange(4)), np.array([0, 1, 0, 1])),
        hush.data.clients(TABLE.drop(columns="b")),
        hush.data.clients(TABLE, schema=SCHEMA),
    ],
)
def test_a_format_reads_what_it_was_made_from(data: hush.data.ClientData) -> None:
    made = format_of(data.dataset, "as-given")
    assert from_record(json.loads(json.dumps(made.record()))) == made
    spec = data.dataset.inputs
    given: object = data.dataset.x
    if made.columns:
        given = TABLE
        if "b" not in made.columns:
            given = TABLE.drop(columns="b")
    elif spec is not None and spec.kind == "dict":
        given = dict(reversed(TOKENS.items()))
    elif spec is not None:
        given = (np.ones((4, 2)), np.arange(4)) if spec.kind == "tuple" else np.arange(12).reshape(4, 3)
    found, clients = made.stored(given)
    assert np.array_equal(found, data.dataset.x)
    assert clients is None


def test_the_column_of_clients_is_read() -> None:
    reading = InputFormat(shape=(1,), columns=("a",), label_columns=("label",), client_column="site")
    table = TABLE.drop(columns="b").assign(site=["n", "s", "s", "n"])
    x, clients = reading.stored(table)
    assert x.tolist() == [[1.0], [2.0], [3.0], [4.0]]
    assert clients == ["n", "s", "s", "n"]
