"""The config of docs/data.md is accepted, and its table is that of the results."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from pathlib import Path

from hush.config import parse
from hush.data.schema import from_table
from scripts import credit_default
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_config_of_the_page_is_accepted() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = parse(tomllib.loads(block))
    assert config.data.files == "sites/*.parquet"
    schema = from_table(config.data.table_schema)
    assert schema.class_names == ("no", "yes")
    assert schema.input_shape == (2 + 3 + 1,)


def test_the_credit_table_is_that_of_the_results() -> None:
    results = json.loads((ROOT / "results" / "credit.json").read_text(encoding="utf-8"))
    assert results["command"] == credit_default.COMMAND
    assert (results["rows"], results["rounds"]) == (credit_default.ROWS, credit_default.ROUNDS)
    assert credit_default.table(results) in PAGE
    auc = {name: statistics.fmean(run["roc_auc"] for run in runs) for name, runs in results["runs"].items()}
    assert {len(runs) for runs in results["runs"].values()} == {5}
    assert auc["fedavg"] - auc["hush, epsilon 8"] < 0.03
    assert auc["hush, epsilon 1"] > auc["dp-fedavg, epsilon 1"]


def test_the_credit_files_have_texts_blanks_and_few_positives(tmp_path: Path) -> None:
    rows = {"north": 400, "coast": 200}
    files = credit_default.write_tables(tmp_path, rows=rows)
    assert [file.stem for file in files] == list(rows)
    assert files[0].read_bytes() == credit_default.write_tables(tmp_path, rows=rows)[0].read_bytes()
    credit_rows = credit_default.rows_of("north", 4000, 0)
    assert 0.05 < sum(row[-1] == "yes" for row in credit_rows) / 4000 < 0.13
    assert all(sum(row[at] == "" for row in credit_rows) > 200 for at in (1, 4, 6))
    assert credit_default.scored(files, "hush", 8.0, 0, rounds=2)["roc_auc"] > 0.6
