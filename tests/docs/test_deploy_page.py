"""The page on federations, followed word by word in an empty directory: its files, its commands, its result."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import hush
from hush.deploy.admin import audit_log
from hush.deploy.admin.processes import free_port
from hush.privacy.ledger.statement import describe
from tests.support.fork_server import Child, ForkServer
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "deploy.md"
SECTION = "On one machine, in 15 minutes"
READY = {
    "serve": "ready at", "join": "is online", "run": "waiting for approval by north, south, west",
    "dashboard": "Dashboard: http",
}  # fmt: skip


def section() -> str:
    return PAGE.read_text(encoding="utf-8").split(f"\n## {SECTION}\n")[1].split("\n## ")[0]


def files() -> dict[str, str]:
    blocks = re.finditer(r"^```\w+\n# file: (\S+)\n(.*?)^```$", section(), re.MULTILINE | re.DOTALL)
    return {block[1]: block[2] for block in blocks}


def commands() -> list[list[str]]:
    return [
        shlex.split(line)
        for line in re.findall(r"^ {4}(\S.*)$", re.sub(r"```.*?```", "", section(), flags=re.DOTALL), re.MULTILINE)
    ]


def followed(folder: Path, parent: ForkServer) -> dict[str, Child]:
    """Type every command of the section, in order, and wait for those in the background as the page says."""
    address, running = f"127.0.0.1:{free_port()}", dict[str, Child]()
    for number, words in enumerate(commands()):
        words = [address if word == "127.0.0.1:8443" else word for word in words]
        log = folder / f"{number}.log"
        if words[0] != "hush":
            program = [sys.executable, *words[1:]] if words[0] == "python" else words
            subprocess.run(program, cwd=folder, check=True)
            continue
        if words[-1] == "&":
            child = parent.start(words[1:-1], log, cwd=folder)
            child.wait_for(READY[words[2]], 120)
            running[" ".join(words[1:4])] = child
            continue
        if words[2:3] == ["status"]:
            running["federation run study"].ended(240)
        child = parent.start(words[1:], log, cwd=folder)
        assert child.status(240) == 0, f"{words}: {child.said()[-2000:]}"
        running[" ".join(words[1:4])] = child
    return running


@pytest.mark.slow
def test_the_page_leads_from_rows_to_a_model_that_members_use(tmp_path: Path, parent: ForkServer) -> None:
    """With files of one's own in place of the example's: other rows, texts, blanks, and columns in another order."""
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    with parent.tidy() as fork_server:
        done = followed(tmp_path, fork_server)
        assert "A person approves each run" in done["federation policy north"].said()
        assert "nothing was charged or sent" in done["federation check north"].said()
        preview = done["federation preview north"].said()
        for part in (
            "Example: who is ill?",
            "age, sex, pressure; label: outcome",
            "south, west",
            "epsilon at most",
        ):
            assert part in preview, preview
        assert re.search(r"data: 5\d\d rows", preview), "about a tenth of 600 rows is held out"
        assert "signature verified" in done["federation fetch west"].said()
        pages = {
            name: read_dashboard(done[f"federation dashboard {name}"].said(), tmp_path) for name in ("study", "north")
        }
    assert "3 of 3" in pages["study"] and "10 of 10" in pages["study"] and "No problems" in pages["study"]
    assert 'hush_run_finished{run="run"} 1.0' in pages["study"] and "hush_member_updates_total{" in pages["study"]
    spent_at_north = describe(tmp_path / "north" / "ledger.db")["filtered"]
    assert f"hush_epsilon_spent {spent_at_north}" in pages["north"] and "update, round 10" in pages["north"]
    assert "Example: who is ill?" in pages["north"] and "ended after 10 rounds" in pages["north"]
    printed = done["federation join north"].said()
    for number in range(1, 11):
        assert re.search(rf"round {number} of 10, .*: epsilon spent 0\.\d+, left ", printed), printed
    assert re.search(r"has ended after 10 rounds; epsilon spent 0\.\d+, left ", printed)
    logged = [json.loads(line) for line in (tmp_path / "north.jsonl").read_text().splitlines()]
    assert {line["process"] for line in logged} == {"join"}
    assert sum(line["event"] == "sent" for line in logged) == 10
    with (tmp_path / "predictions.csv").open() as file:
        predicted = [row["prediction"] for row in csv.DictReader(file)]
    assert len(predicted) == 20
    assert set(predicted) == {"healthy", "ill"}
    for name in ("north", "south", "west"):
        model = hush.load(tmp_path / name / "models" / "run")
        rows = own_rows(tmp_path / "public_test.csv")
        right = np.mean(np.array([row["outcome"] for row in rows]) == model.predict(tmp_path / "public_test.csv"))
        assert right > 0.75, f"{name}: {right}"
        assert [card.name or name for card in model.guarantees] == [name]
        certificate = json.loads((tmp_path / name / "models" / "run" / "certificate.json").read_text())
        spent = describe(tmp_path / name / "ledger.db")["spent"]
        assert certificate["guarantee"]["epsilon_spent"] == pytest.approx(spent, rel=1e-6)
        events = [line["event"] for line in audit_log.read(tmp_path / name / "audit.jsonl")]
        assert events.index("approved") < events.index("enrolled") < events.index("began") < events.index("charged")
    assert (tmp_path / "study" / "runs" / "run" / "report.html").stat().st_size > 10_000


def read_dashboard(said: str, folder: Path) -> str:
    """The page at the address that is printed, the metrics behind its token, and whether all is well."""
    found = re.search(r"(http://\S+/)\?token=TOKEN, with the token in (\S+)", said)
    assert found is not None
    token = (folder / found[2]).read_text()
    texts = [urllib.request.urlopen(f"{found[1]}healthz", timeout=10).read().decode()]
    assert texts == ["ok\n"]
    for path in ("", "metrics"):
        asked = urllib.request.Request(f"{found[1]}{path}", headers={"Authorization": f"Bearer {token}"})
        texts.append(urllib.request.urlopen(asked, timeout=10).read().decode())
    return "".join(texts)


def own_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_command_of_the_page_exists() -> None:
    """Across the whole page: a command or an option that the page names and the program lacks is found."""
    from typer.main import get_command

    from hush.cli.main import app

    root = get_command(app)
    for line in re.findall(r"^ {4,}(hush .+)$", PAGE.read_text(), re.MULTILINE):
        words = [word for word in shlex.split(line, comments=True) if word != "&"]
        command = root
        rest = words[1:]
        while hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        options = {name for each in command.params for name in each.opts}
        assert {word for word in rest if word.startswith("--")} <= options, line
