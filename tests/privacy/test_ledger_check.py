"""The second opinion: it agrees with true figures of every kind of ledger and run, and finds false ones."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush import HushError, Simulation
from hush.privacy import ledger_check
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import Ledger, statement
from hush.types import Policy

X, Y = np.random.default_rng(1).normal(size=(240, 4)).astype(np.float32), np.arange(240) % 3


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The grid is ten times coarser than auditors have it, for speed; not in the long tests."""
    if not request.node.get_closest_marker("soak"):
        monkeypatch.setattr(ledger_check, "GRID", 1e-3)
        ledger_check._step.cache_clear()
        ledger_check._losses.cache_clear()


def simulation(**more: Any) -> Simulation:
    given: dict[str, Any] = {
        "clients": 2, "rounds": 3, "recipe": "dp-fedavg", "epsilon": [1.0, 4.0], "delta": 1e-3, "batch_size": 16,
        "partition": "iid", "lr": 0.1,
    }  # fmt: skip
    return Simulation((X, Y), "logreg", **{**given, **more})


def sampled(noise: float, rate: float, steps: int) -> Cost:
    return Cost(what="model update", kind="poisson-gaussian", noise=noise, rate=rate, steps=steps)


def plain(noise: float, steps: int = 1) -> Cost:
    return Cost(what="cluster choice", kind="gaussian", noise=noise, steps=steps)


RUNS: dict[str, dict[str, Any]] = {
    "rows": {},
    "enrolment: mean of the inputs": {"recipe": "hush"},
    "enrolment: noisy counts": {"recipe": {"name": "weiavg", "weight": {"rule": "samples", "counts": "noisy"}}},
    "clip quantile": {"recipe": {"name": "dp-fedavg", "protect": {"rule": "dp-sgd", "clip": "adaptive"}}},
    "persons": {"person": np.arange(240) // 4},
    "clients": {"unit": "client"},
    "row budgets": {"row_budgets": np.where(np.arange(240) % 3, 0.5, 4.0)},
    "evaluation": {"settings": {"evaluation.share": 0.2}},
    "replace-one": {"relation": "replace-one"},
    "renyi": {"accountant": "rdp"},
    "renyi as Robust-HDP": {"accountant": "rdp-64"},
    "batches of a fixed size": {
        "relation": "replace-one", "accountant": "rdp", "settings": {"privacy.sampler": "fixed"},
    },
    "discrete noise": {"settings": {"privacy.discrete": True}},
    "no privacy": {"recipe": "fedavg"},
    "only some rounds": {"participation": 0.5, "rounds": 6},
    "control variates": {"recipe": "dp-scaffold"},
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("kind", RUNS)
def test_cards_of_runs_agree_on_the_fine_grid(kind: str, tmp_path: Path) -> None:
    test_cards_of_runs_agree(kind, tmp_path)


QUICK = ("enrolment: noisy counts", "persons", "clients", "row budgets", "evaluation", "discrete noise", "no privacy")


@pytest.mark.parametrize("kind", QUICK)
def test_cards_of_runs_agree(kind: str, tmp_path: Path) -> None:
    simulation(**RUNS[kind]).fit(tmp_path / "run")
    found = statement.check(tmp_path / "run")
    assert all(each.agrees for each in found), "\n".join(ledger_check.report(found))
    stated = [each for each in found if each.stated is not None]
    assert len(stated) >= 2 * 6 and {each.client for each in found} == {0, 1}
    if kind == "row budgets":
        assert sum("rows with budget" in each.name for each in stated) >= 3
    if kind == "discrete noise":
        assert any(each.name == "delta with discrete noise" and each.found < 1.01e-3 for each in found)


def test_cards_of_runs_with_ledger_files_agree_also_after_further_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        simulation(lifetime=9.0, seed=1).fit(tmp_path / name, ledgers=tmp_path / "ledgers")
    for name in ("one", "two"):
        found = statement.check(tmp_path / name)
        assert all(each.agrees for each in found) and len(found) >= 16
    spent = [
        each.found for name in ("one", "two") for each in statement.check(tmp_path / name) if "filter" in each.name
    ]
    assert all(later > earlier for earlier, later in zip(spent[:2], spent[2:], strict=True))
    (tmp_path / "ledgers" / "client-1.ledger").unlink()
    with pytest.raises(HushError, match="no ledger of client 1"):
        statement.check(tmp_path / "one")


def ledger_of(path: Path, schedules: list[list[Cost]], policy: Policy, accountant: Any = "pld") -> Path:
    with Ledger.create(path, "clinic", policy, accountant) as ledger:
        for number, costs in enumerate(schedules):
            ledger.approve(costs, f"run {number}")
            ledger.reserve(costs, f"run {number}", 1)
    return path


LEDGERS: dict[str, tuple[list[list[Cost]], Policy, str]] = {
    "equal runs": ([[sampled(1.5, 0.05, 40)]] * 4, Policy(4.0, 1e-5), "pld"),
    "another kind of run": ([[sampled(1.5, 0.05, 60)], [sampled(2.0, 0.1, 20)]], Policy(5.0, 1e-5), "pld"),
    "weaker steps": ([[sampled(1.5, 0.05, 60)], [sampled(2.0, 0.02, 20)]], Policy(5.0, 1e-5), "pld"),
    "a sum after training": ([[sampled(1.5, 0.05, 60)], [plain(6.0)]], Policy(5.0, 1e-5), "pld"),
    "training after a sum": ([[plain(3.0)], [sampled(1.5, 0.05, 60)]], Policy(5.0, 1e-5), "pld"),
    "replace-one": ([[sampled(3.0, 0.05, 60)], [sampled(4.0, 0.1, 20)]], Policy(5.0, 1e-5, "replace-one"), "pld"),
    "persons": ([[sampled(1.5, 0.05, 40)]] * 2, Policy(4.0, 1e-5, "add-remove", "person"), "pld"),
    "renyi": ([[sampled(1.5, 0.05, 60)], [sampled(2.0, 0.1, 20)]], Policy(5.0, 1e-5), "rdp"),
}


@pytest.mark.soak
@pytest.mark.parametrize("kind", LEDGERS)
def test_ledgers_of_several_runs_agree_on_the_fine_grid(kind: str, tmp_path: Path) -> None:
    test_ledgers_of_several_runs_agree(kind, tmp_path)


@pytest.mark.parametrize("kind", ["equal runs", "another kind of run", "training after a sum", "renyi"])
def test_ledgers_of_several_runs_agree(kind: str, tmp_path: Path) -> None:
    schedules, policy, accountant = LEDGERS[kind]
    path = ledger_of(tmp_path / "x.ledger", schedules, policy, accountant)
    found = statement.check(path)
    assert all(each.agrees for each in found), "\n".join(ledger_check.report(found))
    figures = {each.name: each for each in found}
    assert figures["epsilon, privacy filter"].found >= figures["epsilon, fixed schedules"].found - 1e-9
    converted = [each for each in found if each.name.startswith("conversion to")]
    assert len(converted) == (kind in ("another kind of run", "weaker steps", "a sum after training",
                                       "training after a sum", "replace-one"))  # fmt: skip


def test_ledgers_of_earlier_versions_agree(tmp_path: Path) -> None:
    """Without recorded schedules, the charges of each run count as one schedule, which the check converts by itself."""
    path = tmp_path / "old.ledger"
    with Ledger.create(path, 1, Policy(9.0, 1e-5), "pld") as ledger:
        for run, cost in (("a", sampled(1.5, 0.05, 60)), ("b", sampled(2.0, 0.1, 20))):
            with ledger._writing("reserve"):  # as before there were schedules
                ledger._append("RESERVED", run, 1, 1, json.dumps([vars(cost) | {"groups": ()}])
                               .replace(', "groups": []', ""))  # fmt: skip
    found = statement.check(path)
    assert all(each.agrees for each in found), "\n".join(ledger_check.report(found))
    figures = {each.name: each.found for each in found}
    assert figures["epsilon, privacy filter"] > figures["epsilon, fixed schedules"]


def _rows(path: Path) -> list[dict[str, Any]]:
    return list(statement.export(path))


@pytest.fixture(scope="module")
def ledger_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    schedules = [[sampled(1.5, 0.05, 60)], [sampled(2.0, 0.1, 20)]]
    return ledger_of(tmp_path_factory.mktemp("ledger") / "x.ledger", schedules, Policy(5.0, 1e-5))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("spent", lambda value: 0.99 * value),
        ("spent", lambda value: 1.05 * value),
        ("filtered", lambda value: 0.99 * value),
        ("left", lambda value: value + 0.05),
        ("left", lambda value: 0.5 * value),
        ("charges", lambda value: {"SENT": 7}),
        ("policy", lambda value: {**value, "delta": 1e-4}),
    ],
)
def test_a_false_figure_is_found(ledger_path: Path, name: str, change: Callable[[Any], Any]) -> None:
    stated = statement.describe(ledger_path)
    assert all(each.agrees for each in ledger_check.compared_rows(_rows(ledger_path), stated))
    wrong = ledger_check.compared_rows(_rows(ledger_path), {**stated, name: change(stated[name])})
    assert sum(not each.agrees for each in wrong) == 1


def test_a_conversion_that_does_not_dominate_is_found(tmp_path: Path) -> None:
    """The planted twin: a ledger whose second schedule was converted to four fifths of the units that it needs."""
    from hush.privacy.ledger import book

    honest = book.planned_text

    def lenient(costs: Any, conversion: Any) -> str:
        return honest(costs, type(conversion)(round(0.8 * conversion.units), conversion.doubt))

    schedules = [[sampled(1.5, 0.05, 60)], [sampled(2.0, 0.1, 20)]]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(book, "planned_text", lenient)
        path = ledger_of(tmp_path / "x.ledger", schedules, Policy(5.0, 1e-5))
    found = statement.check(path)
    assert [each.name.partition(" to ")[0] for each in found if not each.agrees] == ["conversion"]


@pytest.mark.parametrize("change", ["detail", "hash", "dropped", "swapped"])
def test_a_changed_row_is_refused(ledger_path: Path, change: str) -> None:
    rows = _rows(ledger_path)
    if change == "dropped":
        del rows[2]
    elif change == "swapped":
        rows[2], rows[3] = rows[3], rows[2]
    elif change == "hash":
        rows[1]["hash"] = "0" * 64
    else:
        rows[2]["detail"] = rows[2]["detail"].replace("60", "59")
    with pytest.raises(ValueError, match="row"):
        ledger_check.compared_rows(rows, {})


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("epsilon_spent", lambda value: 0.98 * value),
        ("epsilon_filter", lambda value: 0.98 * value),
        ("noise_multiplier", lambda value: 1.02 * value),
        ("sample_rate", lambda value: 0.9 * value),
        ("steps", lambda value: value - 1),
        ("delta", lambda value: 0.5 * value),
    ],
)
def test_a_false_card_is_found(key: str, change: Callable[[Any], Any], tmp_path: Path) -> None:
    simulation().fit(tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    result = json.loads(path.read_bytes())
    result["guarantees"][1][key] = change(result["guarantees"][1][key])
    path.write_text(json.dumps(result))
    assert {each.client for each in statement.check(tmp_path / "run") if not each.agrees} == {1}


@pytest.mark.slow
def test_it_runs_as_one_file_without_hush(ledger_path: Path, tmp_path: Path) -> None:
    """Copied elsewhere, in a Python that cannot import Hush."""
    source = Path(ledger_check.__file__).read_text(encoding="utf-8")
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else each.name
        for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
    }  # fmt: skip
    assert {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names) == {"dp_accounting"}
    (tmp_path / "ledger_check.py").write_text(source, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _rows(ledger_path)))
    stated = statement.describe(ledger_path)
    for factor, status in ((0.9, 1),):
        (tmp_path / "figures.json").write_text(json.dumps({**stated, "spent": factor * stated["spent"]}))
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys.modules['hush'] = None; sys.argv = sys.argv[1:]; "
             "exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'), {'__name__': '__main__'})",
             "ledger_check.py", "rows.jsonl", "figures.json"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert ("DIFFERS" in done.stdout) == bool(status)
