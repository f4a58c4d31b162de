"""The papers' entries: all there, every cell valid, printed numbers as printed, orders that mean what they say."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from torch.nn.functional import cross_entropy

from hush.comparison import path_of
from hush.data.budgets import budgets
from hush.engines.setup import prepare
from hush.models import build_model
from hush.privacy.third_party import claimed_rounds
from hush.recipes import parse as parsed_recipe
from hush.reproduce import entries, entry, html, make_request, markdown, repeated, reproduce
from hush.reproduce.claims import FAILS, HOLDS, NOT_RUN, UNDECIDED, checked, parsed
from hush.reproduce.files import printed, read, with_keys
from hush.reproduce.first_round import FIRST_ROUND, matched_share
from hush.reproduce.metrics import METRICS
from hush.server.run_directory import RunDir
from hush.types import HushError
from tests.support.paths import SHARED

TABLES = SHARED / "papers" / "tables.json"
WANTED = [
    *(f"dp-scaffold/{name}" for name in ("figure-1", "figure-2", "figure-9", "figure-10", "table-1", "table-4")),
    *(f"padpfl/scenario-{number}" for number in range(1, 5)),
    *(f"pfa/figure-{number}" for number in (3, 4, 5, 6, 7, 8, 10, 11, 12, 13)),
    "pfa/table-5",
    "rc-dpfl/augmentation",
    *(f"rc-dpfl/figure-{number}" for number in (2, 4)),
    *(f"rc-dpfl/table-{number}" for number in range(3, 11)),
]


def test_all_entries_are_there_in_order() -> None:
    found = [name for name in entries() if not name.startswith(("robust-hdp/", "hush/"))]
    assert found == WANTED


ROBUST_HDP = [name for name in entries() if name.startswith("robust-hdp/")]


@pytest.mark.parametrize("name", [*WANTED, *ROBUST_HDP])
def test_every_cell_is_a_valid_config_with_a_recipe_that_makes_sense(name: str) -> None:
    found = entry(name)
    assert (
        found.metric in {**METRICS, **FIRST_ROUND}
        and found.cells
        and len({cell.name for cell in found.cells}) == len(found.cells)
    )
    for mode in found.modes:
        for cell in found.cells:
            config = found.configured(cell, mode)
            parsed_recipe(config.recipe, config.mode)
            assert config.mode == ("sound" if cell.own else mode)


@pytest.mark.parametrize("name", [*WANTED, *(name for name in ROBUST_HDP if entry(name).orders)])
def test_orders_speak_of_cells_that_exist(name: str) -> None:
    found = entry(name)
    names = {part for cell in found.cells for part in (cell.algorithm, cell.column, cell.name)} | {"each", None}
    assert found.orders
    for order in map(parsed, found.orders):
        assert {order.one, order.other, order.place} <= names
    even = [row(cell.algorithm, cell.column, 1.0, parsed(found.orders[0]).measure) for cell in found.cells]
    assert all(one["by"] is not None for one in checked(found.orders[:1], even))


def row(algorithm: str, column: str, value: float, measure: str = "value") -> dict[str, Any]:
    return {"algorithm": algorithm, "column": column, "measures": {measure: {"ours": value}}}


def test_rounds_of_dp_scaffold_come_from_our_accountant_and_are_within_one_of_those_in_print() -> None:
    apart = []
    for name in ("dp-scaffold/table-1", "dp-scaffold/table-4"):
        found = entry(name)
        assert len(found.cells) == 25
        for cell in found.cells:
            rounds = cell.facts["rounds T"]
            assert found.configured(cell, "faithful").rounds == rounds
            apart.append(abs(rounds - (cell.printed["rounds T"].value or 0)))
    assert max(apart) <= 1 and apart.count(0) == 44


@pytest.mark.parametrize("name", ["dp-scaffold/figure-9", "dp-scaffold/figure-10"])
def test_rounds_of_the_figures_over_l_and_s_are_the_most_that_the_claim_allows(name: str) -> None:
    found = entry(name)
    for cell in found.cells:
        config = found.configured(cell, "faithful")
        rows = (
            config.data.samples * 4 // 5
            if config.data.name == "synthetic"
            else {"emnist47": 840, "mnist": 800}[config.data.name]
        )
        share, sigma = config.local.batch_size / rows, config.recipe["protect"]["noise"] / 2
        epsilon = 3.0 if config.data.name == "mnist" else 5.0
        most = claimed_rounds(epsilon, sigma, share, config.participation, 10, config.data.clients, rows)
        assert (config.rounds, config.local.steps) == (most, 10), cell.name
        assert config.local.lr == pytest.approx(0.1 / max(1, round(10 * share)))


def test_seeds_begin_where_the_entry_says() -> None:
    assert list(make_request("pfa/figure-4", seeds=2).seeds) == [1, 2]
    assert list(make_request("pfa/figure-3", seeds=2).seeds) == [0, 1]
    assert list(make_request("pfa/figure-4", seeds=1, first_seed=5).seeds) == [5]
    assert max(budgets("mixgauss1", 30, 0)) < 1
    assert all(max(budgets("mixgauss1", 30, seed)) > 9 for seed in make_request("pfa/figure-4").seeds)
    with pytest.raises(HushError, match="--first-seed: expected 0 or more, found -1"):
        make_request("pfa/figure-4", first_seed=-1)


def test_noise_of_dp_scaffold_is_the_papers_on_each_of_two_tensors() -> None:
    found = entry("dp-scaffold/table-1")
    cell = next(cell for cell in found.cells if cell.name == "sigma-g=40:k=10")
    config = found.configured(cell, "faithful")
    protect, clip = config.recipe["protect"], config.privacy.clip
    each = clip / math.sqrt(2)  # two tensors of this norm have the clip together
    assert protect["noise"] * clip == pytest.approx(2 * 40 * each)
    assert protect["draws"] == "shared" and config.local.batch_size == 800 and config.participation == 0.05
    assert cell.printed[""].value == 36.85 and cell.printed[""].std == 0.85


def test_steps_of_dp_scaffold_are_divided_by_whole_passes_of_which_there_is_one_at_least() -> None:
    found, traded = entry("dp-scaffold/table-1"), read("dp-scaffold/table-1")["tradeoff"]
    eta = dict(zip(traded["sigma_g"], traded["eta_0"], strict=True))
    rates = {cell.name: found.configured(cell, "faithful").local.lr for cell in found.cells}
    for sigma, passes in ((10, (1, 1, 2, 4, 8)), (160, (1, 1, 2, 4, 8))):
        for steps, over in zip((1, 5, 10, 20, 40), passes, strict=True):
            assert rates[f"sigma-g={sigma}:k={steps}"] == pytest.approx(eta[sigma] / over)


def test_faithful_settings_are_set_in_faithful_mode_alone() -> None:
    found = entry("rc-dpfl/table-3")
    cell = next(cell for cell in found.cells if cell.name == "rc-dpfl:eps=5")
    faithful, sound = (found.configured(cell, mode).recipe["assign"] for mode in ("faithful", "sound"))
    assert faithful["share"] == 0.0 and faithful["clusters"] == sound["clusters"] == 4 and "share" not in sound


def _said(one: dict[str, Any]) -> dict[str, Any]:
    return {key: one.get(key) for key in ("algorithm", "column", "metric", "value", "std", "T")}


def test_printed_numbers_are_those_of_the_papers() -> None:
    if not TABLES.exists():
        pytest.skip(f"no {TABLES}: the papers' numbers are not beside this checkout")
    papers = {f"{table['paper']}/{table['table']}": table for table in json.loads(TABLES.read_text(encoding="utf-8"))}
    names = {read(name).get("printed", "") for name in entries()} - {"", "pfa/7", "pfa/5"}
    assert len(names) == 22
    for name in names:
        assert [_said(row) for row in printed(name)["rows"]] == [_said(row) for row in papers[name]["rows"]], name
    printed_values = {(one["algorithm"], one["column"]): one["value"] for one in papers["pfa/text-numbers"]["rows"]}
    for one in printed("pfa/7")["rows"]:
        known = [
            value
            for (who, what), value in printed_values.items()
            if who == one["algorithm"] and what.startswith(f"{one['column']} uplink MB")
        ]
        assert known == [one["value"]]
    # Of the full version, with 128 steps of Lanczos: the columns of each network, in their order.
    seconds = next(table for name, table in papers.items() if name.startswith("pfa/5"))["rows"]
    told_seconds = [each for row in seconds if "lanczos=128" in row["column"]
                    for each in (row["value"], row["client_seconds"])]  # fmt: skip
    assert [row["value"] for row in printed("pfa/5")["rows"]] == told_seconds


def test_the_network_of_pfa_has_its_parameters_and_one_start() -> None:
    config = entry("pfa/figure-4").configured(entry("pfa/figure-4").cells[0], "sound").model
    first, second = (build_model(config, (1, 28, 28), 10, seed) for seed in (0, 1))
    assert first.layout.size == 26010 and first.start.equal(second.start)


def test_dotted_keys_leave_the_base_as_it_was() -> None:
    base = tomllib.loads("a = {b = 1}")
    assert with_keys(base, {"a.c.d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3} and base == {"a": {"b": 1}}


def test_a_reproduction_on_synthetic_data_goes_on_where_it_stopped(tmp_path: Path) -> None:
    small = ("data.clients=20", "data.samples=50", "participation=0.1", "local.batch_size=8")
    cells = ("sigma-g=10:k=1", "sigma-g=10:k=5", "sigma-g=20:k=5")
    part = make_request("dp-scaffold/table-1", cells[:1], 1, 2, changes=small)
    reproduce(part, tmp_path, command="hush reproduce")
    reported: list[str] = []
    what = make_request("dp-scaffold/table-1", cells, 1, 2, changes=small)
    content = reproduce(what, tmp_path, command="hush reproduce", progress=lambda cell, *_: reported.append(cell))
    # The first cell was done already.
    assert sorted(reported) == sorted(cells[1:] * 2)
    assert json.loads((tmp_path / "reproduction.json").read_text(encoding="utf-8")) == content
    rounds = content["cells"][1]["measures"]["rounds T"]
    assert (rounds["ours"], rounds["printed"], rounds["difference"]) == (488.0, 488.0, 0.0)
    value = content["cells"][1]["measures"]["value"]
    assert value["printed"] == 45.53 and value["difference"] == pytest.approx(value["ours"] - 45.53)
    verdicts = {one["order"]: one["verdict"] for one in content["orders"]}
    assert (
        verdicts["k=5 best @ sigma-g=10"] in (HOLDS, FAILS, UNDECIDED) and verdicts["k=10 best @ sigma-g=40"] == NOT_RUN
    )
    # What was asked for otherwise than the paper has it is kept, and said beside the printed numbers.
    assert content["changes"] == [*small, "rounds=2"]
    assert content["cells"][1]["course"]["round 2"] == pytest.approx(value["ours"])
    for page in (markdown(content), html(content)):
        assert "k=5 best @ sigma-g=10" in page and "not run" in page and "45.53" in page
        assert f"Settings that differ from the table: {', '.join(small)}, rounds=2." in page
    assert "Settings that differ from the table" not in markdown({**content, "changes": ['engine.device="cuda"']})


def test_fairness_is_measured_against_models_without_privacy_that_all_cells_share(tmp_path: Path) -> None:
    small = ("data.name=digits", "data.sizes=150", "model.name=logreg", "local.batch_size=16", "local.lr=0.5")
    what = make_request("rc-dpfl/table-4", ("o-cdpfl:eps=10", "dp-fedavg:eps=10"), 1, 2, "sound", changes=small)
    content = reproduce(what, tmp_path, command="hush reproduce")
    (shared,) = json.loads((tmp_path / "without-privacy.json").read_text(encoding="utf-8")).values()
    assert len(shared) == 21 and sum(one["accuracy"] for one in shared) / 21 > 0.5
    for cell in content["cells"]:
        found = {name: value["ours"] for name, value in cell["measures"].items()}
        assert 0 <= found["worst client accuracy"] <= 100 - found["max accuracy gap"]
        assert 0 < found["F_acc"] <= 100 and found["F_loss"] > 0
        assert cell["measures"]["F_acc"]["printed"] is not None


@pytest.mark.parametrize(
    ("name", "cells", "changes", "kept"),
    [
        (
            "dp-scaffold/figure-1",
            ("fedavg:0-0-k=50", "fedsgd:0-0-k=50"),
            ("data.clients=10", "data.samples=40", "local.batch_size=8", "local.steps=2"),
            "least-loss.json",
        ),
        ("padpfl/scenario-1", ("0-1-2:no-privacy",), ("data.name=digits", "data.sizes=16", "local.lr=0.5"), None),
        ("pfa/figure-7", ("pfa-plus:logreg",), ("data.name=digits", "data.sizes=21", "local.steps=2"), None),
    ],
)
def test_measures_of_the_figures(
    name: str, cells: tuple[str, ...], changes: tuple[str, ...], kept: str | None, tmp_path: Path
) -> None:
    content = reproduce(make_request(name, cells, 1, 2, changes=changes), tmp_path, command="hush reproduce")
    for cell in content["cells"]:
        found = {measure: value["ours"] for measure, value in cell["measures"].items()}
        assert len(found) == (3 if name.startswith("padpfl/") else 2) and all(
            math.isfinite(value) for value in found.values()
        )
        if "uplink MiB" in found:
            # 40 of 50 clients send 650 numbers each in round 1; in round 2 all but five send two.
            assert 40 * 650 * 4 / 2**20 <= found["uplink MiB"] < 1.5 * 40 * 650 * 4 / 2**20
    assert kept is None or len(json.loads((tmp_path / kept).read_text(encoding="utf-8"))) == 1


def test_the_loss_of_equation_1_weighs_the_clients_own_rows_by_their_factors(tmp_path: Path) -> None:
    changes = ("data.name=digits", "data.sizes=16", "local.lr=0.5", "rounds=2")
    what = make_request("padpfl/scenario-1", ("0-0-1:no-privacy",), 1, changes=changes)
    (cell,) = reproduce(what, tmp_path, command="hush reproduce")["cells"]
    federation = prepare(what.configs["0-0-1:no-privacy"])
    x, y = federation.arrays(2)
    vector = RunDir(tmp_path / path_of("0-0-1:no-privacy", 0)).restore()[0].released[0]
    own = [cross_entropy(federation.model.logits(vector, x[a:b]), y[a:b]) for a, b, _ in federation.data.bounds()]
    assert cell["measures"]["loss of equation 1"]["ours"] == pytest.approx(float(sum(own[40:]) / 20), rel=1e-5)


def test_the_success_of_clustering_does_not_depend_on_names() -> None:
    truth = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
    assert matched_share({0: 2, 1: 2, 2: 0, 3: 0, 4: 1}, truth) == 1.0
    assert matched_share({0: 2, 1: 0, 2: 0, 3: 0, 4: 1}, truth) == 0.8
    assert matched_share({0: 0, 1: 0, 2: 0, 3: 0, 4: 0}, truth) == 0.4
    assert matched_share({2: 5, 4: 5}, truth) == 0.5


RECORDED = Path(__file__).parents[2] / "results" / "reproduce"


def test_a_table_with_the_runs_of_another_is_filled_from_it(tmp_path: Path) -> None:
    source = json.loads((RECORDED / "robust-hdp-table-12.json").read_text(encoding="utf-8"))
    what = make_request("robust-hdp/table-16", ("weiavg:", "robust-hdp:dist8"))
    content = repeated(what, RECORDED / "robust-hdp-table-12.json", tmp_path, "hush reproduce")
    ours = {(cell["algorithm"], cell["column"]): cell["measures"]["value"]["ours"] for cell in source["cells"]}
    assert [(cell["algorithm"], cell["column"]) for cell in content["cells"]] == [
        ("weiavg", "dist2"), ("weiavg", "dist4"), ("weiavg", "dist6"), ("weiavg", "dist8"), ("robust-hdp", "dist8"),
    ]  # fmt: skip
    for cell in content["cells"]:
        value = cell["measures"]["value"]
        assert value["ours"] == pytest.approx(ours[cell["algorithm"], cell["column"]])
    assert content["cells"][1]["measures"]["value"]["printed"] == 88.2  # 89.18 in table 12
    assert json.loads((tmp_path / "reproduction.json").read_text(encoding="utf-8"))["entry"] == "robust-hdp/table-16"


def test_a_table_with_the_runs_of_another_finds_them_in_its_folder(tmp_path: Path) -> None:
    small = ("data.name=digits", "data.sizes=40", "model.name=logreg", "local.batch_size=8", "local.lr=0.5")
    reported: list[str] = []
    for name, trained in (("robust-hdp/table-20", 2), ("robust-hdp/table-21", 0)):
        what = make_request(name, ("weiavg:eps=2.6",), 1, 2, "sound", changes=small)
        content = reproduce(what, tmp_path, command="hush reproduce", progress=lambda cell, *_: reported.append(cell))
        assert len(reported) == trained
        reported.clear()
    assert set(content["cells"][0]["measures"]) == {"value", "accuracy of the smallest client"}


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ({"seeds": 2}, "robust-hdp-table-12.json"),
        ({"changes": ("local.lr=0.5",)}, "robust-hdp-table-12.json"),
        ({"mode": "sound"}, "robust-hdp-table-12.json"),
        ({}, "robust-hdp-table-13.json"),
        ({}, "no-such-file.json"),
    ],
)
def test_other_runs_do_not_fill_a_table(options: dict[str, Any], file: str, tmp_path: Path) -> None:
    with pytest.raises(HushError, match=r"--from .*accepted:"):
        repeated(make_request("robust-hdp/table-16", ("weiavg:",), **options), RECORDED / file, tmp_path)
