"""docs/saving.md and docs/sklearn.md name every parameter and attribute."""

from __future__ import annotations

import re

import hush
from tests.support.paths import ROOT

SAVING = (ROOT / "docs" / "saving.md").read_text(encoding="utf-8")
SKLEARN = (ROOT / "docs" / "sklearn.md").read_text(encoding="utf-8")


def test_the_page_names_every_parameter() -> None:
    table = SKLEARN.split("| parameter |")[1].split("\n\n")[0]
    for kind in (hush.FederatedClassifier, hush.FederatedRegressor):
        assert [name for name in kind().get_params() if f"`{name}`" not in table] == []


def test_the_page_names_every_public_name_of_a_model() -> None:
    public = [name for name in dir(hush.TrainedModel) if not name.startswith("_")]
    missing = [name for name in public if not re.search(rf"`{name}[`(]", SAVING)]
    assert missing == ["labels", "output_names", "prediction_table", "probabilities"]  # for the command and estimators
