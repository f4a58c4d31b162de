"""The command line as a person uses it: real processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer, command
from tests.support.paths import environment

FILE = """\
seed = 1
rounds = 3
[data]
name = "digits"
clients = 4
[model]
name = "logreg"
[privacy]
budgets = [0.5, 1.0, 2.0, 4.0]
delta = 1e-4
[local]
batch_size = 32
lr = 0.1
[recipe]
name = "robust-hdp"
"""


def fresh(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process that imports everything anew."""
    line = [sys.executable, "-c", "from hush.cli.main import main; main()", *arguments]
    without_data = {name: value for name, value in environment().items() if name != "HUSH_DATA"}
    return subprocess.run(line, cwd=cwd, env=without_data, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(FILE)
    return tmp_path


def test_run_prints_the_result_as_json(here: Path) -> None:
    done = fresh("run", "run.toml", "--out", "out", "--set", "local.lr=0.2", "--json", cwd=here)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    keys = "recipe dataset model rounds seed accuracy accuracy_per_client loss guarantees seconds versions config_hash"
    assert set(keys.split()) <= set(result)
    card = "client epsilon_budget epsilon_spent delta relation accountant sampler noise not_covered"
    assert set(card.split()) <= set(result["guarantees"][0])
    assert result == json.loads((here / "out" / "result.json").read_text())
    assert json.loads((here / "out" / "manifest.json").read_text())["command"].startswith("hush run run.toml")


def test_run_for_people_names_what_is_not_covered(here: Path) -> None:
    done = command("run", "run.toml", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "mean accuracy" in done.stdout
    assert "reproducible from the seed" in done.stdout
    (report,) = (here / "runs").glob("*/report.html")
    assert str(report.relative_to(here)) in done.stdout


def test_a_guarantee_that_means_little_is_warned_of_and_still_runs(here: Path) -> None:
    done = command("run", "run.toml", "--out", "out", "--set", "privacy.delta=0.5", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "Warning: clients 0, 1, 2, 3: delta 0.5" in done.stdout


def test_plan_list_version_report(here: Path) -> None:
    words = ["--epsilon", "1", "--delta", "1e-5", "--samples", "1000", "--batch", "10", "--rounds", "10"]
    answer = json.loads(command("plan", *words, "--epochs", "2", "--accountant", "rdp", "--json", cwd=here).stdout)
    assert (answer["steps"], answer["accountant"]) == (2000, "rdp")
    assert "noise multiplier" in command("plan", *words, cwd=here).stdout
    listed = json.loads(command("list", "--json", cwd=here).stdout)
    assert {"recipes", "slots", "models", "datasets", "partitions", "budgets"} <= set(listed)
    assert "robust-hdp" in command("list", cwd=here).stdout
    assert command("--version", cwd=here).stdout.startswith("hush ")
    command("run", "run.toml", "--out", "out", "--json", cwd=here)
    (here / "out" / "report.html").unlink()
    assert command("report", "out", cwd=here).stdout.strip() == "out/report.html"
    assert (here / "out" / "report.html").exists()


def test_help_is_plain_text(here: Path) -> None:
    text = command("compare", "--help", cwd=here).stdout
    assert "Recipe names, separated by commas.  [required]" in text
    assert "\\" not in text


def test_plan_of_a_federation(here: Path) -> None:
    done = command("plan", "run.toml", "--plot", "plan.html", "--json", cwd=here)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["epsilon_budget"] for each in found["clients"]] == [0.5, 1.0, 2.0, 4.0]
    assert (here / "plan.html").exists()
    assert "weight" in command("plan", "run.toml", cwd=here).stdout
    for wrong in (
        ["--epsilon", "1"],
        ["run.toml", "--epsilon", "1"],
        ["--epsilon", "0", *["--delta", "1e-5", "--samples", "9"]],
    ):
        refused = command("plan", *wrong, cwd=here)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_ledger_commands(here: Path) -> None:
    from hush.privacy.ledger import Ledger
    from hush.privacy.plan import calibrated
    from hush.types import Policy

    policy = Policy(1.0, 1e-4)
    plan = calibrated(policy, samples=100, batch=20, epochs=1, rounds=4, clip=1.0)
    with Ledger.create(here / "a.ledger", "hospital", policy) as ledger:
        ledger.reserve([plan.cost()], "first", 1)
    shown = json.loads(command("ledger", "show", "a.ledger", "--json", cwd=here).stdout)
    assert (shown["client"], shown["chain_ok"], shown["rows"]) == ("hospital", True, 2)
    assert 0 < shown["spent"] < 1.0 == shown["policy"]["epsilon"]
    assert "hospital" in command("ledger", "show", "a.ledger", cwd=here).stdout
    assert "hash chain verified" in command("ledger", "verify", "a.ledger", cwd=here).stdout
    rows = [json.loads(line) for line in command("ledger", "export", "a.ledger", cwd=here).stdout.splitlines()]
    assert len(rows) == 2
    for file in ("run.toml", "none.ledger"):
        refused = command("ledger", "show", file, cwd=here)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert refused.stderr.startswith("hush: error: ")


@pytest.mark.soak
def test_ledger_check_and_certificate_commands(here: Path) -> None:
    small = (
        FILE.replace("rounds = 3", "rounds = 1")
        .replace("clients = 4", "clients = 1")
        .replace("robust-hdp", "dp-fedavg")
    )
    (here / "run.toml").write_text(re.sub("budgets = .*", "budgets = 4.0", small))
    assert command("run", "run.toml", "--out", "out", "--json", cwd=here).returncode == 0
    checked = command("ledger", "check", "out", cwd=here)
    assert checked.returncode == 0 and "none differs" in checked.stdout
    made = command("certificate", "out", "--no-pdf", cwd=here)
    assert made.stdout.split() == ["out/certificate.html", "out/certificate.signed.json"], made.stderr
    verified = command("certificate", "--verify", "out/certificate.signed.json", cwd=here)
    assert verified.returncode == 0 and "certificate.html: as it was signed" in verified.stdout
    assert "SHA256:" in verified.stdout and "An experiment: not private" in verified.stdout
    page = here / "out" / "certificate.html"
    page.write_text(page.read_text().replace("not private", "private"))
    result = here / "out" / "result.json"
    result.write_text(result.read_text().replace('"rounds": 1', '"rounds": 2'))
    for words, status in (
        (("certificate", "--verify", "out/certificate.signed.json"), 2),
        (("certificate",), 2),
        (("certificate", "nowhere"), 2),
        (("certificate", "out"), 2),
        (("certificate", "out", "--trust", "x.pub"), 2),
        (("ledger", "check", "nowhere"), 2),
        (("ledger", "check", "out", "--json"), 1),
        (("sweep", "run.toml", "--grid", "local.lr=0.1", "--within-budget"), 2),
        (("sweep", "run.toml", "--grid", "local.lr=0.1,1.0", "--ledgers", "x"), 2),
    ):
        done = command(*words, cwd=here)
        assert done.returncode == status, (words, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") == (status == 2)
    grid = ("--grid", "local.lr=0.1,1.0", "--within-budget")
    tuned = command("sweep", "run.toml", *grid, "--out", "tuned", cwd=here)
    assert tuned.stdout.startswith("Chosen within the budgets: local.lr="), tuned.stderr
    assert (here / "tuned" / "report.html").exists() and "Price of tuning" in tuned.stdout


def test_audit_command(here: Path) -> None:
    done = command("audit", "run.toml", "--runs", "60", "--kind", "two-datasets", "--json", cwd=here)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["client"] == 3
    assert found["epsilon_lower"] <= found["epsilon_claimed"] <= 4.0
    assert found["refuted"] is False
    (release,) = found["releases"]
    assert (release["what"], release["times"], release["audited"]) == ("model update", found["rounds"], found["rounds"])
    assert "gains at least epsilon" in found["meaning"][0]
    assert found["meaning"][-1].startswith("Not looked at: ")
    assert found["not_audited"] == []


BAD_MODEL = """
from torch import nn
def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.BatchNorm1d(classes))
"""

MISTAKES = {
    "unknown key": (["--set", "data.clientz=3"], "data.clientz", "clients"),
    "wrong type": (["--set", "data.clients=many"], "data.clients", "integer"),
    "negative epsilon": (["--set", "privacy.budgets=-1"], "privacy.budgets", "-1"),
    "zero epsilon": (["--set", "privacy.budgets=[1,0,1,1]"], "privacy.budgets", "0"),
    "delta": (["--set", "privacy.delta=1.5"], "privacy.delta", "1.5"),
    "zero delta": (["--set", "privacy.delta=0"], "privacy.delta", "0"),
    "batch too large": (["--set", "local.batch_size=5000"], "local.batch_size", "5000"),
    "more clients than samples": (["--set", "data.clients=5000", "--set", "privacy.budgets=1"], "data.clients", "5000"),
    "unknown recipe": (["--set", "recipe.name=robust-hpd"], "recipe.name", "did you mean robust-hdp"),
    "unknown dataset": (["--set", "data.name=digit"], "data.name", "digits"),
    "unknown model": (["--set", "model.name=cn"], "model.name", "did you mean cnn"),
    "unknown partition": (["--set", "data.partition=idd"], "data.partition", "iid"),
    "unknown budgets": (["--set", "privacy.budgets=dist66"], "privacy.budgets", "dist6"),
    "missing data": (["--set", "data.name=mnist"], "HUSH_DATA", "--data"),
    "missing data file": (["--set", "data.name=mnist", "--data", "."], "train-images", "http"),
    "budget list of the wrong length": (["--set", "privacy.budgets=[1,2]"], "privacy.budgets", "4"),
    "zero rounds": (["--set", "rounds=0"], "rounds", "0"),
    "BatchNorm": (["--set", "model.name=bad_model:make"], "BatchNorm1d", "GroupNorm"),
    "no such device": (["--set", "engine.device=tpu"], "engine.device", "cpu"),
    "unknown option": (["--otu", "x"], "--otu", "--out"),
    "unwritable directory": (["--out", "run.toml/x"], "run.toml/x", "cannot write"),
    "nothing to resume": (["--resume"], "nothing to resume", "--out"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line_and_status_2(here: Path, case: str) -> None:
    arguments, *words = MISTAKES[case]
    (here / "bad_model.py").write_text(BAD_MODEL)
    before = {path.name for path in here.iterdir()} | {"__pycache__"}
    done = command("run", "run.toml", *arguments, cwd=here)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("hush: error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert {path.name for path in here.iterdir()} <= before, "nothing may be half-written"


def test_mistakes_around_run_directories(here: Path) -> None:
    assert command("run", "run.toml", "--out", "out", "--json", cwd=here).returncode == 0
    again = command("run", "run.toml", "--out", "out", cwd=here)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "--resume" in again.stderr
    other = command("run", "run.toml", "--out", "out", "--resume", "--set", "local.lr=0.3", cwd=here)
    assert other.returncode == 2
    assert "a different config" in other.stderr
    nothing = command("report", "nowhere", cwd=here)
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1)
    missing = command("run", "none.toml", cwd=here)
    assert (missing.returncode, "no such file" in missing.stderr) == (2, True)
    unknown = command("compare", "run.toml", "--recipes", "weiavg,robst-hdp", cwd=here)
    assert (unknown.returncode, "did you mean robust-hdp" in unknown.stderr) == (2, True)
    wrong_command = command("rnu", cwd=here)
    assert (wrong_command.returncode, wrong_command.stderr.count("\n")) == (2, 1)


def test_the_bare_command_prints_its_help(here: Path) -> None:
    for words in ((), ("ledger",)):
        done = command(*words, cwd=here)
        assert done.returncode == 0
        assert done.stdout.startswith(f"Usage: hush {' '.join(words)}")
        assert done.stderr == ""


def test_ctrl_c_says_after_which_round_and_how_to_go_on(here: Path, parent: ForkServer) -> None:
    with parent.tidy() as fork_server:
        words = ["run", "run.toml", "--out", "out", "--set", "rounds=5000"]
        run = fork_server.start(words, here / "log", cwd=here, errors=here / "errors")
        for _ in range(3000):
            if list((here / "out").glob("checkpoint-*")):
                break
            time.sleep(0.1)
        run.interrupt()
        status = run.status()
    errors = (here / "errors").read_text()
    assert status == 130, errors
    stopped = re.search(r"^hush: stopped after round (\d+); continue with --resume$", errors, re.MULTILINE)
    assert stopped is not None, errors
    # The checkpoint before is still there if the signal came before it was deleted.
    latest = max((here / "out").glob("checkpoint-*.safetensors"))
    assert int(stopped[1]) == int(latest.stem.rpartition("-")[2])


def test_a_byte_order_mark_is_accepted(here: Path) -> None:
    (here / "run.toml").write_bytes(b"\xef\xbb\xbf" + FILE.encode())
    assert command("plan", "run.toml", cwd=here).returncode == 0


def test_errors_cite_the_command_line(here: Path) -> None:
    wrong = {
        ("run", "run.toml", "--set", "local.learning_rate=0.1"): "--set local.learning_rate: unknown key",
        ("run", "run.toml", "--set", "recipe={name='fedadam'}"): "--set recipe.name: unknown recipe 'fedadam'",
        ("compare", "run.toml", "--recipes", "weiavg", "--set", "rounds=0"): "--set rounds: expected greater",
        ("sweep", "run.toml", "--grid", "local.lr=0.1,-1"): "--grid local.lr: expected a number above 0",
        ("sweep", "run.toml", "--grid", "local.learning_rate=1"): "--grid local.learning_rate: unknown key",
        ("audit", "run.toml", "--set", "privacy.clip=0"): "--set privacy.clip: expected greater",
    }
    for words, says in wrong.items():
        done = command(*words, cwd=here)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"hush: error: {says}" in done.stderr
    assert "did you mean local.lr?" in command("run", "run.toml", "--set", "local.learning_rate=1", cwd=here).stderr
    assert 'did you mean step = "adam"' in command("compare", "run.toml", "--recipes", "fedadam", cwd=here).stderr


def test_what_is_silent_elsewhere_is_said(here: Path) -> None:
    words = ["--set", "local.steps=2", "--set", "local.epochs=4", "--set", "rounds=1"]
    done = command("run", "run.toml", "--out", "new", "--resume", *words, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "new: nothing to resume there; starting a new run" in done.stderr
    assert "Warning: local.epochs = 4 has no effect, because local.steps = 2 is given" in done.stdout
    nothing = command("run", "run.toml", "--resume", cwd=here)
    assert (nothing.returncode, "nothing to resume; start without --resume" in nothing.stderr) == (2, True)


def test_the_demo_ends_with_a_table_and_its_report(tmp_path: Path) -> None:
    done = command("demo", "--seeds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert (tmp_path / last.removeprefix("Report: ")).is_file()
    private = re.findall(r"│ ([\w-]+) +│ +[\d.]+%.*│ +[\d.]+ │ +[\d.]+ │", done.stdout)
    assert private[0] == "hush"
    assert len(private) == 5
    assert re.search(
        rf"Best within the budgets: hush with [\d.]+%, before {private[1]} with .* Without privacy: fedavg", done.stdout
    )
    refused = command("demo", "--federation", "--seeds", "2", cwd=tmp_path)
    assert refused.returncode == 2
    assert "leave it out with --federation" in refused.stderr


@pytest.mark.soak
def test_the_demo_of_a_federation_trains_with_three_processes(tmp_path: Path) -> None:
    done = fresh("demo", "--federation", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "round 30: updates from m000, m001, m002" in done.stderr
    assert done.stdout.strip().splitlines()[-1].endswith("Report: runs/demo-federation/runs/run/report.html")
    result = json.loads((tmp_path / "runs/demo-federation/runs/run/result.json").read_text())
    assert [card["epsilon_budget"] for card in result["guarantees"]] == [0.2, 1.0, 5.0]
    assert result["accuracy"]["mean"] > 0.8
