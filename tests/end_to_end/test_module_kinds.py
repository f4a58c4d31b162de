"""Every kind of module and input of docs/models.md trains above chance, or is refused in one line."""

from __future__ import annotations

import re

import pytest
import torch

import hush
from tests.support.module_kinds import KINDS, labels
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
RUN = {
    "seed": 1,
    "rounds": 6,
    "local": {"batch_size": 32, "lr": 1.0, "epochs": 2},
    "privacy": {"budgets": [100.0, 100.0], "delta": 1e-4, "clip": 1.0},
    "recipe": {"name": "dp-fedavg"},
}


def lines() -> dict[str, str]:
    """What the table says of each kind."""
    table = PAGE.split("| module | inputs | |\n|---|---|---|\n")[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return {kind: outcome for kind, _, outcome in cells}


def test_the_table_has_every_kind() -> None:
    assert list(lines()) == list(KINDS)


@pytest.mark.filterwarnings("ignore:model custom.*slow path", "ignore:Lazy modules")
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_trains_above_chance_or_is_refused(name: str) -> None:
    kind, outcome, y = KINDS[name], lines()[name], labels()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = kind.module()
    data = hush.data.clients(kind.inputs(y), y, clients=2, classes=2)
    if kind.refused:
        assert outcome.startswith("refused")
        with pytest.raises(hush.HushError, match=kind.refused) as caught:
            hush.simulate(RUN, dataset=data, model=module)
        assert "\n" not in str(caught.value)
        return
    assert outcome.startswith("trains")
    before = {key: value.clone() for key, value in module.state_dict().items()} if "lazy" not in name else {}
    result = hush.simulate(RUN, dataset=data, model=module)
    assert result.accuracy["mean"] > 0.75
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items() if key in before)


def test_the_code_of_the_page_runs() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, {})  # the page's own code
