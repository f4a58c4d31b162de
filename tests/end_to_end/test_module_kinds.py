"""Every kind of module and input of docs/models.md trains above chance, or is refused in one line."""

from __future__ import annotations

import re
from typing import Any

import polars
import pytest
import torch

import hush
from tests.support.module_kinds import BY_TASK, KINDS, SCHEMA, TASKS, hidden, labels, with_outputs
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
RUN: dict[str, Any] = {
    "seed": 1,
    "rounds": 6,
    "local": {"batch_size": 32, "lr": 1.0, "epochs": 2},
    "privacy": {"budgets": [100.0, 100.0], "delta": 1e-4, "clip": 1.0},
    "recipe": {"name": "dp-fedavg"},
}
RATES = {
    ("CNN", "regression"): 0.1,
    ("Hugging Face classifier", "regression"): 0.1,
    **{("GRU", task): 4.0 for task in ("binary, two logits", "binary, one logit", "multiclass", "multilabel")},
    ("GRU", "regression"): 1.0,
}


def lines() -> dict[str, str]:
    """What the table says of each kind."""
    table = PAGE.split("| module | inputs | |\n|---|---|---|\n")[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return {kind: outcome for kind, _, outcome in cells}


def by_task() -> dict[tuple[str, str], str]:
    """What the second table says of each kind and task."""
    head, _, *rows = PAGE.split("## Kinds of modules by task\n")[1].split("\n\n")[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in (head, *rows)]
    return {(kind, task): said for kind, _, *line in cells[1:] for task, said in zip(cells[0][2:], line, strict=True)}


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


def test_the_second_table_has_every_kind_and_task() -> None:
    assert list(by_task()) == [(kind, task) for kind in BY_TASK for task in TASKS]


@pytest.mark.filterwarnings("ignore:model custom.*slow path")
@pytest.mark.parametrize(("name", "task"), [pair for pair, said in by_task().items() if said == "trains"])
def test_a_kind_trains_above_the_baseline_in_a_task(name: str, task: str) -> None:
    kind, wanted, u = BY_TASK[name], TASKS[task], hidden()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = with_outputs(kind.module(), wanted.outputs)
    x, y = kind.inputs(u), wanted.targets(u)
    if name == "MLP on a table":
        targets = (
            {f"label {at}": column.tolist() for at, column in enumerate(y.T)} if y.ndim == 2 else {"label": y.tolist()}
        )
        frame = polars.DataFrame({**x, **targets})
        data = hush.data.clients(
            frame, label=list(targets) if y.ndim == 2 else "label", schema=SCHEMA, targets=wanted.kind
        )
    else:
        data = hush.data.clients(x, y, targets=wanted.kind)
    run = {
        **RUN,
        "data": {"clients": 2},
        "local": {**RUN["local"], "lr": RATES.get((name, task), 0.3 if task == "regression" else 1.0)},
    }
    result = hush.simulate(run, dataset=data, model=module)
    baseline = result.metrics["baseline"]["value"]
    if task == "regression":
        assert result.score["mean"] < 0.97 * baseline
    else:
        assert result.score["mean"] > baseline + 0.05


def test_the_code_of_the_page_runs() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, {})  # the page's own code
