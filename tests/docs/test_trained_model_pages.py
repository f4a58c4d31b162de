"""The code of docs/saving.md and docs/sklearn.md runs, and the pages name every parameter and attribute."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import hush
from tests.support.paths import ROOT

SAVING = (ROOT / "docs" / "saving.md").read_text(encoding="utf-8")
SKLEARN = (ROOT / "docs" / "sklearn.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number"), [(SAVING, 3), (SKLEARN, 4)])
def test_the_code_of_the_pages_runs(page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == number
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        # PyTorch's exporter warns of its own internals.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        for block in blocks:
            exec(block, names)  # the page's own code


def test_the_page_names_every_parameter() -> None:
    table = SKLEARN.split("| parameter |")[1].split("\n\n")[0]
    for kind in (hush.FederatedClassifier, hush.FederatedRegressor):
        assert [name for name in kind().get_params() if f"`{name}`" not in table] == []


def test_the_page_names_every_public_name_of_a_model() -> None:
    public = [name for name in dir(hush.TrainedModel) if not name.startswith("_")]
    missing = [name for name in public if not re.search(rf"`{name}[`(]", SAVING)]
    assert missing == ["labels", "output_names", "prediction_table", "probabilities"]  # for the command and estimators
