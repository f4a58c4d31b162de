"""`hush federation check`: a run tried out at a member, which costs nothing and says what it would cost."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.data.schema import Schema
from hush.deploy.admin.folders import Kit
from hush.deploy.dry_run import DryRun, dry_run
from hush.deploy.member import policy
from hush.types import HushError
from tests.support import federation_kit as kit


def tried(path: Path, schema: Schema | None = None, **changes: Any) -> DryRun:
    wanted = kit.config(**changes)
    return dry_run(Kit(path, "a", "nowhere:1"), path / "policy.toml", path / "data.npz", wanted, schema)


def contents(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


@pytest.mark.parametrize("recipe", ["robust-hdp", "hush", "dp-scaffold"])
def test_a_dry_run_says_what_the_run_then_costs(tmp_path: Path, recipe: str) -> None:
    node = kit.member(tmp_path / "a", recipes=["any"], uncovered=True, more="lifetime = 3.0")
    node.ledger.close()
    before = contents(tmp_path / "a")
    found = tried(tmp_path / "a", recipe={"name": recipe}, participation=0.5)
    assert contents(tmp_path / "a") == before
    assert (found.refused, found.spent, found.left, found.warnings) == ("", 0.0, 3.0, ())
    assert 0.9 < found.epsilon <= 1.0 + 1e-9
    assert found.left_after == pytest.approx(3.0 - found.epsilon, abs=1e-6)
    assert found.rounds >= 1


def test_what_was_spent_counts_and_what_is_refused_is_said(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", more="lifetime = 1.3\nmax_rate = 0.5"))
    assert asks.begin(kit.config()).kind == "ready"
    assert [asks.task(number).kind for number in range(1, 5)] == ["update"] * 4
    spent = asks.node.ledger.spent()
    asks.node.ledger.close()
    found = tried(tmp_path / "a")
    assert found.spent == pytest.approx(spent)
    assert found.left_after == 0.0
    assert "does not cover the whole run" in found.warnings[0]
    assert tried(tmp_path / "a", local__batch_size=100).refused.startswith("limits: task: sampling rate")
    assert tried(tmp_path / "a", recipe={"name": "fedavg"}).refused.startswith("offer: ")
    with pytest.raises(HushError, match="schema: this member's rows have shape"):
        tried(tmp_path / "a", Schema(shape=(7,), classes=3))


def test_a_noised_count_and_columns_with_categories(tmp_path: Path) -> None:
    kit.member(tmp_path / "a", samples="noised").ledger.close()
    (tmp_path / "a" / "schema.toml").write_text(
        "classes = 4\n[columns.a]\nlow = 0\nhigh = 9\n[columns.b]\nkind = 'integer'\n"
        "[columns.c]\ncategories = ['u', 'v']\n"
    )
    x = np.array([[1.0, 2.0, 0.0], [99.0, -3.0, 1.0]] * 60)
    np.savez(tmp_path / "a" / "data.npz", x=x, y=np.arange(120) % 4)
    found = tried(tmp_path / "a")
    assert found.refused == ""
    assert 0.9 < found.epsilon <= 1.0 + 1e-9


def test_the_default_lifetime_is_warned_of_where_it_is_set_and_when_it_is_used(tmp_path: Path) -> None:
    kit.member(tmp_path / "a").ledger.close()
    text = (tmp_path / "a" / "policy.toml").read_text()
    assert "so that ONE run" in text
    warning = policy.lifetime_warning(policy.load(tmp_path / "a" / "policy.toml"))
    assert "one run may spend the whole lifetime budget (epsilon 1, lifetime 1)" in warning
    assert tried(tmp_path / "a").warnings == (warning,)
    kit.member(tmp_path / "b", more="lifetime = 2.0").ledger.close()
    assert policy.lifetime_warning(policy.load(tmp_path / "b" / "policy.toml")) == ""


def test_the_command_prints_what_a_run_would_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Typer uses
        from hush.cli.federation import check
    kit.member(tmp_path / "a").ledger.close()
    (tmp_path / "a" / "kit.toml").write_text('member = "a"\naddress = "nowhere:1"\n')
    config = tmp_path / "run.toml"
    config.write_text('rounds = 4\n[privacy]\nnoise = "seeded"\ndelta = 1e-4\n[local]\nbatch_size = 30\n')
    check(tmp_path / "a", config, tmp_path / "a" / "data.npz", members=3)
    out, err = capsys.readouterr()
    assert "one run may spend the whole lifetime budget" in err
    assert "spent so far 0, remaining 1" in out
    assert "the run would cost epsilon 0.99" in out
    with pytest.raises(Exception, match="1"):
        check(tmp_path / "a", config, tmp_path / "a" / "data.npz", members=3, sets=["rounds=1000000"])
    assert "this member would refuse the run: limits: task: rounds 1000000" in capsys.readouterr().out
