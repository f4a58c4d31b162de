"""The page at a member, beside a real member with a real ledger: its spending, and all that it sent."""

from __future__ import annotations

import html
import re
import time
from pathlib import Path

import pytest

from hush.deploy.dashboard.member_page import MemberPage
from hush.deploy.shared.presence import FILE, presence_file
from hush.privacy.ledger.statement import describe
from tests.deploy.member.test_consent import proposed
from tests.support import federation_kit as kit

HOSTILE = "<img src=x onerror=alert(1)>"


def parts(page: MemberPage) -> dict[str, str]:
    page.refresh()
    return dict(page.fragments())


def words(fragment: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", fragment))


def member(path: Path, **more: object) -> kit.Coordinator:
    asks = kit.Coordinator(kit.member(path, **more))  # type: ignore[arg-type]
    (path / "kit.toml").write_text('member = "a"\naddress = "nowhere:1"\n')
    return asks


def test_a_member_sees_its_spending_after_each_round(tmp_path: Path) -> None:
    asks = member(tmp_path / "a")
    page = MemberPage(tmp_path / "a")
    assert "Nothing has left this machine" in parts(page)["sent"]
    asks.enrol(kit.config())
    asks.begin(kit.config())
    for number in (1, 2, 3):
        assert asks.task(number).kind == "update"
        found = parts(page)
        spent = describe(tmp_path / "a" / "ledger.db")["filtered"]
        assert f"Epsilon spent {spent:.4g} of 1 for all runs" in re.sub(r"\s+", " ", words(found["tiles"]))
        assert f"update, round {number}" in words(found["sent"])
        assert f"Epsilon {spent:.4g} is spent after {number} answers." in words(found["spending"])
        assert f"round {number} of 4, under way" in words(found["state"])
        assert f"hush_epsilon_spent {spent}" in page.metrics("")[0].decode()
    sent = [(each.what, each.round) for each in page.state.sent]
    assert sent == [("declaration", 0), ("agreement", 0), ("update", 1), ("update", 2), ("update", 3)]
    (charge,) = {each.contents for each in page.state.sent if each.what == "update"}
    assert re.fullmatch(r"model update: noise multiplier [\d.]+; \d+ steps with 25 % of the rows each", charge)
    assert f"samples {kit.ROWS}" in words(found["sent"])


def test_refusals_are_shown_with_what_left_and_the_reason_that_stayed(tmp_path: Path) -> None:
    asks = member(tmp_path / "a")
    page = MemberPage(tmp_path / "a")
    assert asks.enrol(kit.config(recipe={"name": "dp-fedavg"})).kind == "no"
    found = parts(page)
    assert re.search(r"refusal\s+–\s+–\s+–\s+its code alone: offer", words(found["sent"]))
    assert "not accepted by this member" in words(found["events"])
    assert b'hush_refusals_total{code="offer"} 1.0' in page.metrics("")[0]


def test_a_proposal_waits_on_the_page_and_its_purpose_is_text(tmp_path: Path) -> None:
    asks = member(tmp_path / "a", auto_approve=False)
    page = MemberPage(tmp_path / "a")
    assert proposed(asks, kit.config(), purpose=HOSTILE).kind == "no"
    found = parts(page)
    assert re.search(r"A run waits for a decision: 4 rounds, epsilon [\d.]+ in all\.", words(found["state"]))
    assert f"as the coordinator says: {HOSTILE}" in words(found["state"])
    assert "<img" not in "".join(found.values())
    assert b"hush_proposals_waiting 1.0" in page.metrics("")[0]


def test_the_process_is_up_connected_or_neither(tmp_path: Path) -> None:
    asks = member(tmp_path / "a")
    page = MemberPage(tmp_path / "a")
    assert "hush federation join is not running" in words(parts(page)["state"])
    assert page.health() == (False, "hush federation join is not running")
    state = {"contact": time.time(), "busy_since": 0.0}
    with presence_file(asks.node.log.path.parent, lambda: state):
        while not (tmp_path / "a" / FILE).exists():
            time.sleep(0.01)
        page.state._looked = 0.0
        assert "No problems" in words(parts(page)["state"])
        assert page.health() == (True, "ok")
    state |= {"contact": time.time() - 120}
    with presence_file(asks.node.log.path.parent, lambda: state):
        while not (tmp_path / "a" / FILE).exists():
            time.sleep(0.01)
        page.state._looked = 0.0
        assert "cannot be reached" in words(parts(page)["state"])
        assert page.health() == (False, "the SuperLink cannot be reached")


@pytest.mark.slow
def test_a_damaged_ledger_is_said_and_proves_nothing(tmp_path: Path) -> None:
    asks = member(tmp_path / "a")
    page = MemberPage(tmp_path / "a")
    asks.enrol(kit.config())
    asks.begin(kit.config())
    asks.task(1)
    asks.node.ledger.close()
    parts(page)
    content = (tmp_path / "a" / "ledger.db").read_bytes()
    (tmp_path / "a" / "ledger.db").write_bytes(content[:4096] + b"x" * 64 + content[4160:])
    found = parts(page)
    assert "The ledger cannot be used" in words(found["state"])
    metrics = page.metrics("")[0]
    assert b"hush_ledger_ok 0.0" in metrics and b"hush_epsilon_left" not in metrics


def test_lines_that_were_edited_end_no_page(tmp_path: Path) -> None:
    asks = member(tmp_path / "a")
    page = MemberPage(tmp_path / "a")
    asks.node.log.note("charged", run="r", round=1, costs=[7])
    asks.node.log.note("sent", run="r", round="one", seconds="long", spent="much")
    asks.node.log.note("enrolled", run="r", declared=[])
    asks.node.log.note("began", run="../../etc/passwd")
    asks.enrol(kit.config())
    asks.begin(kit.config())
    asks.task(1)
    assert "update, round 1" in words(parts(page)["sent"])
    assert b"hush_updates_sent_total" in page.metrics("")[0]
