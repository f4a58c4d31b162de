"""The page at the coordinator: what it shows of its folder, round by round, and what it never looks at."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hush.deploy.admin import keys
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.dashboard.federation_page import FederationPage
from tests.support.dashboards import NAMES, RUN, Written


def parts(page: FederationPage) -> dict[str, str]:
    page.refresh()
    return dict(page.fragments())


def words(fragment: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", fragment))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "study")


def test_a_federation_without_a_run_says_who_is_there(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving(offline=(NAMES[3],)):
        found = parts(page)
        assert "No problems" in found["state"]
        assert f"Offline: {NAMES[3]}." in words(found["state"])
        assert "19 of 20" in words(found["tiles"])
        assert "No run yet" in found["runs"]
        assert found["times"] == ""
        assert page.health() == (True, "ok")


def test_without_serve_nothing_works(written: Written) -> None:
    page = FederationPage(written.place.path)
    assert "hush federation serve is not running" in words(parts(page)["state"])
    assert page.health() == (False, "hush federation serve is not running")
    assert b"hush_up 0.0" in page.metrics("")[0]


def test_a_member_that_refuses_or_fails_is_named_with_its_reason_in_the_same_round(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving():
        written.begin(left_out={"clinic-19": "the member declined the run"})
        parts(page)
        written.round(1)
        found = parts(page)
        assert "clinic-19 does not take part in pilot: the member declined the run." in words(found["state"])
        assert "clinic-5" not in words(found["refusals"])
        written.round(2, refused={"clinic-5": "its budget is exhausted", "clinic-7": "offline"})
        found = parts(page)
        assert "clinic-5 gave no update in round 2 of pilot: its budget is exhausted." in words(found["state"])
        assert "its budget is exhausted" in words(found["members"])
        assert re.search(r"clinic-7\s+offline", words(found["refusals"]))
        written.round(3)
        found = parts(page)
        assert "clinic-5" not in words(found["state"]), "it answered again"
        assert "its budget is exhausted" in words(found["refusals"])


def test_rounds_times_weights_and_budgets_are_shown(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving():
        written.begin()
        for number in (1, 2, 3):
            written.round(number)
        found = parts(page)
    assert "3 of 30" in words(found["tiles"])
    assert "Seconds from sending a task" in found["times"]
    assert "The 8 slowest of 20 members" in found["times"]
    assert "clinic-19 was slowest in the latest round" in words(found["times"])
    run = page.state.run
    assert run is not None
    left = page.state.left(run)
    spent = run.epsilon_at(3)
    assert left["clinic-0"][0] == pytest.approx(2.0 - spent[0])
    assert left["clinic-0"][1] == 2.0
    assert f"{2.0 - spent[0]:.3g} of 2" in words(found["members"])
    assert f"{run.mean_weights()[0]:.3g}" in words(found["members"])
    metrics = page.metrics("")[0].decode()
    for line in (
        'hush_member_updates_total{member="clinic-0"} 3.0', 'hush_run_round{run="pilot"} 3.0',
        'hush_member_online{member="clinic-4"} 1.0', 'hush_log_events_total{level="info"} 3.0',
        f'hush_run_member_epsilon_left{{member="clinic-0",run="pilot"}} {left["clinic-0"][0]}',
    ):  # fmt: skip
        assert line in metrics, metrics


def test_a_run_that_waits_for_approval_says_by_whom(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving():
        written.log.note("proposed", run=RUN, waiting=["clinic-1", "clinic-2"])
        assert "A run waits for approval by clinic-1, clinic-2." in words(parts(page)["state"])
        assert b"hush_approvals_waited_for 2.0" in page.metrics("")[0]
        written.log.note("proposal", run=RUN, member="clinic-1", answer="approved")
        assert "waits for approval" not in parts(page)["state"]


@pytest.mark.parametrize(("days", "tone"), [(-1, "bad"), (10, "warn"), (100, "good")])
def test_certificates_are_warned_of_before_they_end(written: Written, days: int, tone: str) -> None:
    folder = written.place.server
    for file in ("server.key", "server.crt"):
        (folder / file).unlink()
    keys.make_server(folder, ["127.0.0.1"], days if days > 0 else 1)
    page = FederationPage(written.place.path)
    with written.serving():
        if days < 0:
            page.refresh()
            ended = page.state.certificates[0].ends
            page.state.certificates = (type(page.state.certificates[0])("server", ended.replace(year=2020)),)
            found = dict(page.fragments())
            assert page.health() == (False, "the server's certificate has expired")
        else:
            found = parts(page)
    assert f'class="banner {tone}"' in found["state"]
    assert f'class="tone {tone}"' in found["certificates"]


HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[2J</script><b>"


def test_hostile_texts_are_shown_as_text(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving():
        written.begin(left_out={"clinic-1": HOSTILE})
        written.round(1, refused={"clinic-2": HOSTILE})
        written.log.note("warning", run=RUN, member=HOSTILE, reason=HOSTILE)
        written.log.note(HOSTILE, run=HOSTILE, round=HOSTILE)
        whole = "".join(parts(page).values())
    assert "<img" not in whole and "</script><b>" not in whole and "\u202e" not in whole and "\x1b" not in whole
    assert "&lt;img src=x onerror=alert(1)&gt;" in whole
    assert b"<img src=x" not in page.metrics("")[0]


def test_no_kit_is_read(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kits that were not yet handed out lie in the coordinator's folder."""
    read: list[str] = []
    for name in ("open", "read_bytes", "read_text"):
        real = getattr(Path, name)

        def watched(self: Path, *args: Any, real: Any = real, **more: Any) -> Any:
            read.append(str(self))
            return real(self, *args, **more)

        monkeypatch.setattr(Path, name, watched)
    page = FederationPage(written.place.path)
    with written.serving():
        written.begin()
        written.round(1)
        parts(page)
        page.metrics("")
    assert [path for path in read if "server" in path], "the test sees what is read"
    assert not [path for path in read if "/kits/" in path]


def test_a_revoked_member_is_listed_as_such(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving():
        parts(page)
        FederationFolder(written.place.path).revoke("clinic-9")
        page.state._looked = 0.0
        assert re.search(r"clinic-9\s+revoked", words(parts(page)["members"]))
        assert b'hush_member_online{member="clinic-9"}' not in page.metrics("")[0]


def test_a_run_that_failed_says_why_until_it_goes_on(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving():
        written.log.note("not enrolled", run=RUN, member="clinic-1", reason="offline")
        assert "that is being prepared" in words(parts(page)["state"])
        written.log.note("failed", run=RUN, reason="enrolment: 1 of 20 members take part, quorum 3")
        found = words(parts(page)["state"])
        assert f"Run {RUN[:8]} stopped with an error: enrolment: 1 of 20" in found
        assert "that is being prepared" not in found
        written.begin()
        written.round(1)
        assert "stopped with an error" not in words(parts(page)["state"])


def test_deliveries_and_dry_runs_are_no_runs_that_are_prepared(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving():
        written.log.note("delivered", run="pilot", member="clinic-1")
        written.log.note("proposed", run=f"dry{RUN}", waiting=[])
        parts(page)
        assert page.state.preparing is None and page.state.failed is None


def test_figures_of_held_out_rows_have_their_errors(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving():
        written.begin()
        written.round(1)
        file = written.run / "rounds.jsonl"
        raw = json.loads(file.read_text())
        assert parts(page).get("evaluation") is None
        figures = {"model_of_round": 1, "accuracy": 0.8, "accuracy_error": 0.05, "rows": 100.0, "rows_error": 9.0}
        with file.open("a") as out:
            out.write(json.dumps({**raw, "round": 2, "evaluation": figures}) + "\n")
        assert "0.8 ± 0.1 for the model after round 1." in words(parts(page)["evaluation"])


def test_lines_that_were_edited_end_no_page(written: Written) -> None:
    page = FederationPage(written.place.path)
    with written.serving():
        written.begin()
        written.log.note("closed", run=RUN, round="many", refused=[1], seconds=3)
        written.log.note("proposed", run=RUN, waiting=7)
        written.log.note("enrolled", run=[RUN], time={}, member=None)
        written.round(1)
        found = parts(page)
        assert "1 of 30" in words(found["tiles"]) and "Seconds from sending a task" in found["times"]
        assert b"hush_up 1.0" in page.metrics("")[0]
