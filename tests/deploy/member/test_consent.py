"""Consent: a run takes place as it was previewed and approved, once, and in no other form."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.config import Config
from hush.deploy.admin import audit_log
from hush.deploy.member.consent import Consents
from hush.deploy.member.preview import sentences
from hush.deploy.shared.protocol import code_hash
from hush.deploy.transport.messages import Message
from hush.types import HushError
from tests.support import federation_kit as kit


def proposed(asks: kit.Coordinator, offer: Config, **words: Any) -> Message:
    fields = {
        "purpose": "a study",
        "members": ["a", "b"],
        "schema": {"shape": list(kit.SHAPE), "classes": kit.CLASSES},
        **words,
    }
    return asks.ask("propose", run=asks.run, config=offer.model_dump(), code=code_hash(), number=0, head="", **fields)


def asking(path: Path, **words: Any) -> kit.Coordinator:
    return kit.Coordinator(kit.member(path, auto_approve=False, **words))


def approve(path: Path, decision: Any = "approved") -> str:
    known = Consents(path)
    waiting = known.named(None, "pending")
    known.decide(waiting, decision)
    return waiting.preview.digest


def test_nothing_begins_before_a_person_approves_it_and_then_it_runs_once(tmp_path: Path) -> None:
    asks, offer = asking(tmp_path / "a", more="lifetime = 9.0"), kit.config()
    for answer in (asks.enrol(offer), asks.begin(offer), proposed(asks, offer), proposed(asks, offer)):
        assert (answer.kind, answer.fields["code"], answer.fields["final"]) == ("no", "pending", False)
    assert [line["event"] for line in audit_log.read(tmp_path / "a" / "audit.jsonl")].count("proposed") == 1
    approve(tmp_path / "a")
    assert asks.begin(offer).fields["code"] == "pending", "an approval is used by the run that is proposed"
    assert proposed(asks, offer).kind == "approved"
    assert asks.enrol(offer).kind == "facts"
    assert asks.begin(offer).kind == "ready"
    # A run that failed before anything was charged leaves its approval to the next.
    again = kit.Coordinator(asks.node, "fedcba")
    assert proposed(again, offer).kind == "approved"
    assert asks.task(1).fields["code"] == "pending", "the approval is used by the other run now"
    assert again.begin(offer).kind == "ready"
    assert again.task(1).kind == "update"
    third = kit.Coordinator(asks.node, "abcdef")
    assert proposed(third, offer).fields["code"] == "pending"
    assert Consents(tmp_path / "a").named(None, "pending").preview.earlier == 1
    assert third.begin(offer).kind == "no"
    assert again.task(2).kind == "update", "a new proposal takes nothing from the run"


CHANGES: dict[str, dict[str, Any]] = {
    "more rounds": {"rounds": 5},
    "another batch size": {"local__batch_size": 20},
    "another seed": {"seed": 2},
    "another model": {"model": {"name": "mlp"}},
    "another clip": {"privacy": {"noise": "seeded", "delta": 1e-4, "clip": 2.0}},
    "more retries": {"privacy": {"noise": "seeded", "delta": 1e-4, "retries": 3}},
}


def test_a_run_that_differs_from_what_was_approved_is_refused(tmp_path: Path) -> None:
    asks, offer = asking(tmp_path / "a"), kit.config()
    proposed(asks, offer)
    approve(tmp_path / "a")
    assert proposed(asks, offer).kind == "approved"
    for name, change in CHANGES.items():
        for answer in (asks.enrol(kit.config(**change)), asks.begin(kit.config(**change))):
            assert answer.fields["code"] == "pending", name
            assert "differs from what was approved" in answer.fields["reason"], name
    assert asks.enrol(offer, classes=4).fields["code"] == "pending"
    other = kit.Coordinator(asks.node)
    mine = asks.begin(offer, name="a")
    assert mine.kind == "ready", mine.fields
    path = tmp_path / "a" / "runs" / f"{kit.RUN}.json"
    path.unlink()
    stranger = json.loads(json.dumps({"name": "c"}))
    refused = other.ask(
        "begin", run=kit.RUN, config=offer.model_dump(), code=code_hash(), client=0, centre="", head="",
        schema={"shape": list(kit.SHAPE), "classes": kit.CLASSES},
        roster=[{**asdict_of(asks)}, {**asdict_of(asks), **stranger}],
    )  # fmt: skip
    assert "members that were not in what was approved: c" in refused.fields["reason"]


def asdict_of(asks: kit.Coordinator) -> dict[str, Any]:
    one = asks.node.policy.one_run
    return {"name": "a", **asdict(one), "samples": kit.ROWS, "factor": None, "group": None, "noised": {}}


def test_a_changed_purpose_roster_policy_or_number_of_rows_is_another_proposal(tmp_path: Path) -> None:
    asks, offer = asking(tmp_path / "a"), kit.config()
    proposed(asks, offer)
    digest = approve(tmp_path / "a")
    assert proposed(asks, offer, purpose="another study").fields["code"] == "pending"
    assert proposed(asks, offer, members=["a", "b", "c"]).fields["code"] == "pending"
    asks.node.ledger.close()
    dearer = kit.Coordinator(kit.member(tmp_path / "a", auto_approve=False, epsilon=0.5))
    assert proposed(dearer, offer).fields["code"] == "pending"
    digests = {each.preview.digest for each in Consents(tmp_path / "a").listed()}
    assert len(digests) == 4
    assert digest in digests


def test_a_declined_run_is_final_also_after_it_began(tmp_path: Path) -> None:
    asks, offer = asking(tmp_path / "a"), kit.config()
    proposed(asks, offer)
    digest = approve(tmp_path / "a", "declined")
    answer = proposed(asks, offer)
    assert (answer.fields["code"], answer.fields["final"]) == ("declined", True)
    known = Consents(tmp_path / "a")
    known.decide(known.named(digest[:8]), "approved")
    assert proposed(asks, offer).kind == "approved"
    assert asks.begin(offer).kind == "ready"
    assert asks.task(1).kind == "update"
    known.decide(known.named(digest[:8]), "declined")
    answer = asks.task(2)
    assert (answer.fields["code"], answer.fields["final"]) == ("declined", True)


def test_rules_approve_what_is_within_them_and_leave_the_rest_to_a_person(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    assert asks.begin(kit.config()).kind == "ready"
    policy = tmp_path / "b" / "policy.toml"
    kit.member(tmp_path / "b", "a", auto_approve=True).ledger.close()
    policy.write_text(policy.read_text().replace("# max_rounds = 100 ", "max_rounds = 3 "))
    from hush.deploy.admin.folders import Kit
    from hush.deploy.member.service import prepare

    node = prepare(Kit(tmp_path / "b", "a", "nowhere:1"), policy, tmp_path / "b" / "data.npz")
    strict = kit.Coordinator(node)
    assert "more than consent.max_rounds 3" in strict.begin(kit.config()).fields["reason"]
    assert proposed(strict, kit.config()).fields["code"] == "pending"
    assert strict.begin(kit.config(rounds=3)).kind == "ready"
    approve(tmp_path / "b")
    assert proposed(strict, kit.config()).kind == "approved"
    node.ledger.close()
    policy.write_text(policy.read_text().replace("# max_epsilon = 1.0 ", "max_epsilon = 0.5 "))
    dear = kit.Coordinator(prepare(Kit(tmp_path / "b", "a", "nowhere:1"), policy, tmp_path / "b" / "data.npz"), "other")
    assert "above consent.max_epsilon 0.5" in dear.begin(kit.config(rounds=3)).fields["reason"]


def test_a_preview_says_what_the_run_then_costs_and_escapes_what_others_wrote(tmp_path: Path) -> None:
    asks, offer = asking(tmp_path / "a", recipes=["any"]), kit.config(recipe={"name": "hush"}, local__lr="auto")
    hostile = "free\x1b[2J money\u202e"
    proposed(asks, offer, purpose=hostile, members=["a", "b\nc"])
    (waiting,) = Consents(tmp_path / "a").listed()
    text = "\n".join(sentences(waiting.preview, 0.0, 1.0))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "free\\x1b[2J money\\u202e" in text
    assert "b\\nc" in text
    assert 0.97 < waiting.preview.epsilon <= 1.0
    assert f"epsilon at most {waiting.preview.epsilon:.4g} in total" in text
    assert "mean of the inputs: 1 time, with noise multiplier" in text
    assert "model update: 4 times, with noise multiplier" in text
    assert f"{kit.ROWS} rows" in text
    assert "21 parameters" in text
    long = proposed(asks, offer, purpose="x" * 501)
    assert long.fields["code"] == "message"


def test_a_file_changed_after_it_was_written_is_not_believed(tmp_path: Path) -> None:
    asks, offer = asking(tmp_path / "a"), kit.config()
    proposed(asks, offer)
    (path,) = (tmp_path / "a" / "proposals").glob("*.json")
    path.write_text(path.read_text().replace('"a study"', '"a harmless study"'))
    with pytest.raises(HushError, match="was changed after it was written"):
        Consents(tmp_path / "a").listed()


def test_proposals_do_not_fill_the_disk(tmp_path: Path) -> None:
    asks, offer = asking(tmp_path / "a"), kit.config()
    found = proposed(asks, offer)
    (waiting,) = Consents(tmp_path / "a").listed()
    known = Consents(tmp_path / "a")
    for number in range(49):
        known.keep(replace(waiting.preview, purpose=str(number)))
    assert found.fields["code"] == "pending"
    assert proposed(asks, offer, purpose="one more").fields["code"] == "limits"


def test_hours_and_runs_a_day_are_refused_at_no_cost(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", runs_per_day=1))
    assert asks.begin(kit.config()).kind == "ready"
    other = kit.Coordinator(asks.node, "other")
    answer = other.begin(kit.config())
    assert (answer.fields["code"], answer.fields["final"]) == ("closed", False)
    assert asks.task(1).kind == "update"
    asks.node.policy = asks.node.policy.model_copy(
        update={"limits": asks.node.policy.limits.model_copy(update={"hours": closed_now()})}
    )
    assert asks.task(2).fields["code"] == "closed"


def closed_now() -> str:
    import time

    hour = time.localtime().tm_hour
    return f"{(hour + 2) % 24:02d}:00-{(hour + 3) % 24:02d}:00"


@pytest.mark.parametrize("secure", [False, True])
def test_a_preview_says_what_the_coordinator_sees(tmp_path: Path, secure: bool) -> None:
    asks = asking(tmp_path / "a", recipes=["any"], uncovered=True)
    offer = kit.config(recipe={"name": "weiavg"}, secure_aggregation=secure, data={"name": "digits", "clients": 3})
    assert proposed(asks, offer, members=["a", "b", "c"]).fields["code"] == "pending"
    text = "\n".join(sentences(Consents(tmp_path / "a").named(None, "pending").preview, 0.0, 1.0))
    assert ("sums over a majority of the members" in text) is secure
    assert ("sees this member's noised updates" in text) is not secure
