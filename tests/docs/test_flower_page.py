"""The code of docs/flower.md runs, its example trains within its budget, and the page names what there is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import hush
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    found = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 3
    for block in found:
        exec(block, names)  # the page's own code
    assert names["second"].guarantee().rounds == 3


def test_the_example_trains_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = str(tmp_path / "client.ledger")
    main = runpy.run_path(str(ROOT / "examples" / "plain_pytorch" / "private_trainer.py"))["main"]
    card = main(ledger)
    planned = hush.plan(epsilon=4.0, delta=1e-5, samples=1500, batch=64, rounds=3)
    assert card.epsilon_spent == planned["epsilon"]
    assert "of 4.0" in capsys.readouterr().out
    with pytest.raises(hush.HushError, match="would exceed the budget of 4"):
        main(ledger)


def test_lines_of_the_page_are_those_of_the_quickstart() -> None:
    app = ROOT / "examples" / "flower_quickstart" / "quickstart"
    code = "".join(path.read_text(encoding="utf-8") for path in (app / "client_app.py", app / "server_app.py"))
    added = [line[1:].strip() for line in re.findall(r"^\+.*$", PAGE, re.MULTILINE)]
    assert len(added) == 4
    for line in added:
        assert line.partition("epsilon=")[0].partition("hush.PrivateTrainer(")[0] in code
