"""A policy in words, the wizard that writes one, and the columns that it lets runs use."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.member import datasets
from hush.deploy.member import policy as law
from hush.deploy.member.policy_template import template
from hush.deploy.member.policy_words import explained
from hush.types import HushError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Typer uses
    from typer.testing import CliRunner

    from hush.cli.main import app


def written(path: Path, text: str) -> law.MemberPolicy:
    path.write_text(text)
    return law.load(path)


def test_a_fresh_policy_asks_and_every_limit_is_in_words(tmp_path: Path) -> None:
    fresh = template(1.0, 1e-5, "add-remove", ["robust-hdp"])
    policy = written(tmp_path / "policy.toml", fresh)
    assert not policy.consent.auto_approve
    words = "\n".join(explained(policy))
    for part in (
        "epsilon 1 at delta 1e-05", "factor of at most 2.72", "about 1 such run", "A person approves each run",
        "robust-hdp", "20,000,000 parameters", "4096 MiB of memory, 50% of the cores", "at most 10 runs", "at any hour",
        "all of the file", "Warning: one run may spend the whole lifetime budget",
    ):  # fmt: skip
        assert part in words, part
    loose = fresh.replace("auto_approve = false", "auto_approve = true").replace("seeded = false", "seeded = true")
    loose = loose.replace('hours = ""', 'hours = "18:00-06:00"').replace("epsilon = 1.0 ", "epsilon = 30.0 ", 1)
    words = "\n".join(explained(written(tmp_path / "loose.toml", loose)))
    for part in ("without a person", "18:00-06:00 local time", "epsilon 30 protects little", "not private at all"):
        assert part in words, part


@pytest.mark.parametrize(
    ("line", "wrong", "says"),
    [
        ('hours = ""', 'hours = "9 to 5"', "limits.hours"),
        ("max_cpu = 0.5", "max_cpu = 1.5", "max_cpu"),
        ("runs_per_day = 10", "runs_per_day = 0", "runs_per_day"),
        ("columns = []", 'columns = ["label"]', "data.columns"),
        ("auto_approve = false", 'auto_approve = "yes"', "auto_approve"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(tmp_path: Path, line: str, wrong: str, says: str) -> None:
    text = template(1.0, 1e-5, "add-remove", ["robust-hdp"])
    assert line in text
    with pytest.raises(HushError, match=rf"policy\.toml:\d+: .*{says}"):
        written(tmp_path / "policy.toml", text.replace(line, wrong))


def test_the_wizard_writes_a_policy_that_holds_and_keeps_the_former(tmp_path: Path) -> None:
    (tmp_path / "kit.toml").write_text('member = "north"\naddress = "nowhere:1"\n')
    (tmp_path / "policy.toml").write_text("# before\n")
    said = "4000\n0.5\n2\noutcome\nage, sex\nrobust-hdp, hush\nn\ny\n0.2\n7\n0.25\n2048\n3\n18:00-06:00\n"
    done = CliRunner().invoke(app, ["federation", "policy", str(tmp_path), "--wizard"], input=said)
    assert done.exit_code == 0, done.output
    assert "accepted: above 0 and at most 1" in done.output, "a share of 7 is asked again"
    policy = law.load(tmp_path / "policy.toml")
    assert (policy.budget.epsilon, policy.budget.lifetime, policy.budget.delta) == (0.5, 2.0, 1e-5)
    assert policy.accept.recipes == ["robust-hdp", "hush"]
    assert (policy.enrol.samples, policy.consent.auto_approve) == ("noised", False)
    assert (policy.data.label, policy.data.columns) == ("outcome", ["age", "sex"])
    assert policy.data.held_out == 0.2
    assert (policy.limits.max_cpu, policy.limits.max_memory, policy.limits.runs_per_day) == (0.25, 2048, 3)
    assert (tmp_path / "policy.toml.before").read_text() == "# before\n"
    done = CliRunner().invoke(app, ["federation", "policy", str(tmp_path), "--check"])
    assert "18:00-06:00 local time" in done.output
    assert "valid" in done.output


def test_columns_that_are_not_listed_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("patient,age,outcome\nx17,40,0\nx18,50,1\n")
    found = datasets.load(path, label="outcome", columns=["age"])
    assert found.schema is not None
    assert found.schema.names == ("age",)
    assert found.x.tolist() == [[40.0], [50.0]]
    with pytest.raises(HushError, match=r"no columns sex, which data\.columns lists"):
        datasets.load(path, label="outcome", columns=["age", "sex"])
