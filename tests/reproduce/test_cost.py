"""The cost of an entry: its examples are those that the runs train on."""

from __future__ import annotations

from typing import Any

import pytest

from hush.engines.setup import prepare
from hush.reproduce import entries, entry, make_request
from hush.reproduce.cost import RATES, ROWS, cost, examples, kind, rows
from hush.reproduce.first_round import UNTRAINED


@pytest.mark.parametrize("name", entries())
def test_every_entry_has_a_cost(name: str) -> None:
    found = entry(name)
    for cell in found.cells:
        config = found.configured(cell, found.modes[0])
        assert kind(config) in RATES and rows(config) > 0
    whole = cost(found)
    assert (whole.examples > 0) is (found.metric not in UNTRAINED)
    assert cost(found, 1).examples == pytest.approx(whole.examples / found.seeds)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dp-scaffold/table-1", ("data.clients=20", "data.samples=50")),
        ("pfa/figure-7", ("data.name=digits", "data.sizes=21")),
        ("robust-hdp/table-17", ("data.name=digits",)),
    ],
)
def test_the_rows_are_those_of_the_clients(name: str, changes: tuple[str, ...]) -> None:
    cell: Any = entry(name).cells[0].name
    config = make_request(name, (cell,), changes=("local.batch_size=4", *changes)).configs[cell]
    assert rows(config) == pytest.approx(sum(member.samples for member in prepare(config).members), rel=0.1)


def test_examples_of_passes_and_of_steps() -> None:
    table = entry("robust-hdp/table-12")
    passes = table.configured(table.cells[0], "faithful")
    assert examples(passes, "accuracy") == 200 * 0.8 * ROWS["mnist"]["train"]
    assert examples(passes, "first-round-noise") == 0.8 * ROWS["mnist"]["train"]
    figure = entry("pfa/figure-4")
    steps = figure.configured(figure.cells[0], "sound")
    assert examples(steps, "tail-accuracy") == pytest.approx(100 * 24 * 100 * 8)
    sizes = entry("padpfl/scenario-3")
    assert rows(sizes.configured(sizes.cells[0], "sound")) == pytest.approx(20 * (53 + 128 + 289) * 15 / 16)
