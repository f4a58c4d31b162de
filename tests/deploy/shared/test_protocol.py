"""The protocol version: what is computed and sent is that of its record, and versions that differ do not talk."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.config import parse
from hush.deploy.coordinator.agreement import Agreement
from hush.deploy.member.preview import from_record
from hush.deploy.shared import protocol
from hush.deploy.shared.protocol import PROTOCOL, Version, is_compatible, read_version
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.shared.run_spec import as_offered
from hush.deploy.transport import messages
from hush.types import HushError
from tests.support import protocol_record as recorder
from tests.support.loopback import Loopback, edited

REMEDY = (
    "what is computed or sent differs from the record of protocol {}: raise PROTOCOL in hush/deploy/shared/protocol.py "
    "and run python -m tests.support.protocol_record. {}"
)
TOLERANCE = 2e-5  # relative: other processors round sums of float32 differently


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return dict(json.loads(recorder.FILE.read_bytes()))


def differs(before: Any, now: Any, where: str = "") -> list[str]:
    """Where two records differ, beyond rounding."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            each for key in sorted({*before, *now}) for each in differs(before.get(key), now.get(key), f"{where}.{key}")
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            each for at, pair in enumerate(zip(before, now, strict=True)) for each in differs(*pair, f"{where}[{at}]")
        ]
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (before, now))
    same = math.isclose(before, now, rel_tol=TOLERANCE, abs_tol=2e-6) if numbers else before == now
    return [] if same else [f"{where}: {before!r:.60} is now {now!r:.60}"]


def check(found: list[str]) -> None:
    assert not found, REMEDY.format(PROTOCOL, "; ".join(found[:5]))


def test_the_record_is_of_this_protocol(recorded: dict[str, Any]) -> None:
    assert recorded["protocol"] == PROTOCOL, "python -m tests.support.protocol_record"


def test_plans_of_every_recipe_are_those_of_the_record(recorded: dict[str, Any]) -> None:
    now = json.loads(json.dumps({name: list(recorder.plans(name)) for name in recorder.RECIPES}))
    known = {name: now.get(name) for name in recorded["plans"]}
    check(differs(recorded["plans"], known))
    assert all(any(plan["costs"] for plan in now[name]) for name in recorder.RUNS)


def test_defaults_are_those_of_the_record(recorded: dict[str, Any]) -> None:
    """A new key is not sent where it has its default."""
    now = json.loads(json.dumps(parse({}).model_dump()))

    def known(before: Any, after: Any) -> Any:
        return (
            {key: known(value, after.get(key)) for key, value in before.items()} if isinstance(before, dict) else after
        )

    check(differs(recorded["defaults"], known(recorded["defaults"], now)))


@pytest.mark.parametrize("recipe", recorder.RUNS)
def test_a_recorded_coordinator_gets_the_recorded_answers(
    recorded: dict[str, Any], recipe: str, tmp_path: Path
) -> None:
    """Every message of a whole run, as an earlier version sent it, with the numbers of the updates."""
    federation, outgoing = Loopback(tmp_path / "fed", recorder.config(recipe)), recorded["runs"][recipe]["messages"]
    edited(tmp_path / "fed" / "kits" / "m000" / "policy.toml", auto_approve="false")
    federation.join("m000")
    recorder.approve(federation)
    kinds = []
    for message in outgoing:
        content = recorder.replayed(base64.b64decode(message["sent"]))
        payload, receipt = federation.nodes["m000"].handle(content)
        if receipt is not None:
            federation.nodes["m000"].ledger.sent(receipt)
        answer = json.loads(json.dumps(recorder.described(payload)))
        check(differs(message["answer"], answer, messages.kind_of(content)))
        kinds.append(messages.kind_of(content))
    assert kinds == ["propose", "enrol", "begin", "task", "task", "ended"]
    federation.leave()


@pytest.mark.parametrize("recipe", recorder.RUNS)
def test_this_coordinator_sends_what_the_record_has(recorded: dict[str, Any], recipe: str) -> None:
    """The same in the other direction: kinds, fields, types and shapes; and the files that runs are resumed from."""
    before, now = recorded["runs"][recipe], recorder.run_of(recipe)

    def sent(run: dict[str, Any]) -> Any:
        found = []
        for each in run["messages"]:
            message = messages.decode(base64.b64decode(each["sent"]), 1 << 30)
            found.append(
                [
                    message.kind,
                    sorted(message.fields),
                    {n: [str(t.dtype), list(t.shape)] for n, t in message.tensors.items()},
                ]
            )
        return json.loads(json.dumps(found))

    check(differs(sent(before), sent(now)))
    for file in ("agreed", "preview", "federation"):
        check(differs(sorted(before[file]), sorted(now[file]), file))
    from_record(before["preview"])
    raw = before["federation"]
    assert Agreement(
        run=raw["run"], facts=tuple(RosterEntry(**each) for each in raw["facts"]), config=parse(raw["config"])
    ).names == [
        "m000",
        "m001",
    ]


def test_a_change_is_found(recorded: dict[str, Any]) -> None:
    """Planted: a little less noise, a field more, a number of another type."""

    def less_noise(raw: Any) -> None:
        raw["plans"]["hush"][0]["plan"]["noise_multiplier"] *= 0.9999

    def a_field(raw: Any) -> None:
        raw["runs"]["hush"]["messages"][0]["answer"]["fields"].append("more")

    def a_type(raw: Any) -> None:
        raw["runs"]["robust-hdp"]["messages"][3]["answer"]["tensors"]["vector"]["type"] = "torch.float64"

    def a_default(raw: Any) -> None:
        raw["defaults"]["rounds"] += 1

    for change in (less_noise, a_field, a_type, a_default):
        changed = json.loads(json.dumps(recorded))
        change(changed)
        assert len(differs(recorded, changed)) >= 1, change.__name__
    assert differs(recorded, json.loads(json.dumps(recorded))) == []


def test_what_is_sent_of_a_config_is_read_as_the_config() -> None:
    for raw in ({}, {"rounds": 3}, {"local": {"lr": "auto"}, "privacy": {"budgets": [1.0, 2.0]}}):
        config = parse(raw)
        assert parse(json.loads(json.dumps(as_offered(config)))) == config
    assert "rounds" not in as_offered(parse({"rounds": parse({}).rounds}))


def test_versions_talk_by_protocol_and_equal_code_always() -> None:
    a, b = "a" * 64, "b" * 64
    assert is_compatible(Version(1, a), Version(1, b))
    assert is_compatible(Version(0, a), Version(2, a))
    assert not is_compatible(Version(1, a), Version(2, b))
    assert read_version(str(protocol.own())) == protocol.own()
    assert read_version(a) == Version(0, a)
    for bad in ("", "1:", "x" * 64, f"1:{a}\n", f"-1:{a}", 3, None):
        with pytest.raises(HushError, match="malformed"):
            read_version(bad)
