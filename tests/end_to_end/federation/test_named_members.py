"""Members that refuse or fail are named with their reason: at the coordinator's terminal and on its page, at once."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.cli.federation import round_lines
from hush.deploy.coordinator.exchange import OFFLINE
from hush.deploy.dashboard.federation_page import FederationPage
from hush.deploy.member.process import Node
from hush.deploy.shared.refusal import MEANING, RefusalCode
from tests.support.live_federation import LiveFederation, config, resigned


def close(node: Node) -> None:
    """Have a member refuse everything, as its policy allows no run at this hour."""
    hour = (time.localtime().tm_hour + 12) % 24
    hours = f"{hour:02}:00-{hour:02}:59"
    node.policy = node.policy.model_copy(update={"limits": node.policy.limits.model_copy(update={"hours": hours})})


def test_who_gives_no_update_is_named_with_the_reason_in_the_same_round(
    live: LiveFederation, capsys: pytest.CaptureFixture[str]
) -> None:
    page, shown, said = FederationPage(live.place.path), dict[int, str](), dict[int, str]()
    line, asked = round_lines(4), list[bytes]()

    def long(_: bytes, payload: bytes) -> bytes | None:
        """Too long an update in its second round, and honest ones else."""
        asked.append(payload)
        if len(asked) != 2:
            return None
        return resigned(
            live.place, "m001", payload, lambda sent: replace(sent, tensors={"vector": sent.tensors["vector"] + 1e4})
        )

    with live.members(m001=long) as members:

        def note_round(record: Any, left: Mapping[str, str]) -> None:
            line(record, left)
            page.refresh()
            parts = dict(page.fragments())
            shown[record.round] = html.unescape(re.sub(r"<[^>]+>", " ", parts["state"] + parts["members"]))
            said[record.round] = capsys.readouterr().err
            if record.round == 2:
                members["m002"].leave()
            if record.round == 3:
                close(members["m000"].node)

        live.coordinator().run(
            config(rounds=4, quorum=1, recipe={"name": "dp-fedavg"}), live.out(), progress=note_round
        )
    wanted = {
        1: {},
        2: {"m001": "norm exceeds"},
        3: {"m002": OFFLINE},
        4: {"m002": OFFLINE, "m000": MEANING[RefusalCode.CLOSED]},
    }
    for number, reasons in wanted.items():
        for name in ("m000", "m001", "m002"):
            if name in reasons:
                reason = re.escape(reasons[name])
                assert re.search(rf"round {number}: .*refused: .*{name}: [^;]*{reason}", said[number]), said[number]
                assert re.search(rf"{name} gave no update in round {number} of \S+: [^.]*{reason}", shown[number])
                assert re.search(rf"{name}\s.*{reason}", shown[number])
            else:
                assert f"{name} gave no update" not in shown[number]
                assert f"{name}:" not in said[number]


def test_who_does_not_take_part_is_named_before_the_first_round(live: LiveFederation) -> None:
    said: list[str] = []
    live.place.settings = replace(live.place.settings, gather=3.0)
    try:
        with live.members() as members:
            members["m001"].leave()
            close(members["m002"].node)
            live.coordinator().run(config(rounds=1, quorum=1), live.out(), say=said.append)
    finally:
        live.place.settings = replace(live.place.settings, gather=20.0)
    assert said[0] == "offline: m001; waiting up to 3 s for them"
    assert "m001 does not take part: offline" in said
    assert f"m002 does not take part: {MEANING[RefusalCode.CLOSED]}" in said
    page = FederationPage(live.place.path)
    page.refresh()
    state = dict(page.fragments())["state"]
    assert "m001 does not take part" in state and "m002 does not take part" in state
