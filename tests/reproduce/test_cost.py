"""The cost of an entry: its examples are those that the runs train on."""

from __future__ import annotations

from typing import Any

import pytest

from hush.engines.setup import prepare
from hush.reproduce import entries, entry, make_request
from hush.reproduce.cost import RATES, ROWS, cost, examples, kind, parameters, rows, seconds, steps
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


@pytest.mark.parametrize(
    ("name", "cell", "changes"),
    [
        ("dp-scaffold/figure-1", "dp-fedavg:0-0-k=50", ("data.samples=50", "local.batch_size=8")),
        ("pfa/figure-6", "random:k=1", ("data.name=digits", "data.sizes=21", "local.batch_size=4")),
        ("padpfl/scenario-1", "1-1-1:eps=20", ("data.name=digits", "data.sizes=20", "data.test_fraction=0.5")),
    ],
)
def test_steps_and_parameters_are_those_of_the_clients(name: str, cell: str, changes: tuple[str, ...]) -> None:
    config = make_request(name, (cell,), changes=changes).configs[cell]
    federation = prepare(config)
    assert parameters(config) == federation.model.layout.size
    taken = sum(schedule.stages[0].plan.steps for schedule in federation.schedules)
    assert steps(config, "accuracy") == pytest.approx(config.rounds * config.participation * taken)


def test_small_batches_cost_more_for_each_example() -> None:
    """As measured: a linear model with 7,850 parameters, batches of 8; 410 parameters, batches of 800."""
    rates = []
    for name, cell in (("pfa/figure-3", "weiavg:mnist-logreg"), ("dp-scaffold/figure-1", "dp-fedavg:0-0-k=50")):
        table = entry(name)
        config = table.configured(table.chosen((cell,))[0], table.modes[0])
        gpu, cpu = seconds(config, table.metric)
        rates.append(examples(config, table.metric) / cpu)
        assert 0 < gpu < cpu
    assert rates[0] == pytest.approx(57e3, rel=0.5) and rates[1] == pytest.approx(3.3e6, rel=0.5)


def test_copies_are_examples() -> None:
    table = entry("rc-dpfl/augmentation")
    one, _, four = (
        examples(table.configured(cell, "faithful"), table.metric)
        for cell in table.chosen(("1-copy:500-rows", "2-copies:500-rows", "4-copies:500-rows"))
    )
    assert (one, four) == (21 * 500, 4 * one)
