"""docs/attacks.md and its picture show what was measured."""

from __future__ import annotations

import json

from scripts import attacks
from tests.support.paths import ROOT

STORED = json.loads(attacks.RESULTS.read_text())


def test_the_table_and_the_picture_are_those_of_the_results() -> None:
    page = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    assert "\n".join(attacks.table(STORED)) in page
    assert attacks.PICTURE.read_text(encoding="utf-8") == attacks.picture(STORED)
    assert "(attacks.svg)" in page


def test_privacy_buys_what_the_page_says() -> None:
    """Without privacy members are distinguished from others; at epsilon 1 that is guessing, give or take its error."""
    auc, error = ({key: found[name] for key, found in STORED["membership"].items()} for name in ("auc", "auc_error"))
    assert auc["inf"] - 0.5 > 20 * error["inf"]
    assert auc["inf"] > auc["8"] > auc["1"]
    assert abs(auc["1"] - 0.5) < 4 * error["1"]
    assert STORED["inversion"]["inf"]["correlation"] > 0.999
    assert abs(STORED["inversion"]["1"]["correlation"]) < 0.1
