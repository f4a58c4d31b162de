"""Rows 13 to 15 and 17 of the fault table against a running SuperLink: nothing here is a mock."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import httpx
import torch
from safetensors.torch import load_file

from hush.api import simulate
from hush.deploy.admin import keys
from hush.deploy.coordinator import exchange
from hush.deploy.transport import messages, retry
from hush.deploy.transport.flower import CoordinatorClient, NodeClient, RefusedError
from hush.server.run_directory import RunDir
from hush.types import HushError
from tests.support.live_federation import LiveFederation, Member, config, resigned, until

PROTOBUF = "application/protobuf"


def model(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-7) for name in a)


def rounds(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


def test_bad_answers_cost_their_sender_the_round_and_nothing_else(
    live: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each failure halves the time that a round waits for a member: this one is waited for and kept until the end.
    monkeypatch.setattr(exchange, "remaining_wait", lambda took, slack, failures: 30.0)
    monkeypatch.setattr(exchange, "_FAILING", 600.0)

    def tensors(change: Any) -> Any:
        def twist(_: bytes, payload: bytes) -> bytes:
            return resigned(live.place, "m002", payload, change)

        return twist

    def vector(value: torch.Tensor) -> Any:
        return tensors(lambda message: replace(message, tensors={"vector": value}))

    def fields(**words: Any) -> Any:
        return tensors(lambda message: replace(message, fields={**message.fields, **words}))

    bad = {
        "not finite": vector(torch.full((650,), torch.nan)),
        "vector is F32": vector(torch.zeros(651)),
        "vector is F64": vector(torch.zeros(650, dtype=torch.float64)),
        "norm exceeds": vector(torch.full((650,), 1e6)),
        "it holds other": tensors(lambda message: replace(message, tensors={"other": torch.zeros(650)})),
        "more than": lambda task, payload: payload + b"\0" * 120_000,
        "it is not signed by": lambda task, payload: keys.signed(keys.new_key(), payload[200:]),
        "header": lambda task, payload: keys.signed(_key(live), b"\xff" * 64),
        "answers another run": fields(run="0"),
        "answers round": fields(round=77),
        "choice is not an integer": fields(choice=0.0),
        "expected run": fields(extra="x"),
        "do not have the requested types": fields(serial=[]),
    }  # fmt: skip
    number = iter(bad.values())
    with live.members(m002=lambda task, payload: next(number)(task, payload)):
        out = live.out()
        live.coordinator().run(config(rounds=len(bad)), out)
    for line, words in zip(rounds(out), bad, strict=True):
        assert set(line["weights"]) == {"0", "1"}, line
        assert words in line["refused"]["2"], (words, line["refused"])
    assert live.link.memory() < 700 << 20


def _key(live: LiveFederation) -> Any:
    return keys.load_private(live.place.path / "kits" / "m002" / "key.pem")


def test_a_coordinator_that_dies_goes_on_where_it_was(live: LiveFederation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies when all answers of round 2 are in and none is saved: asked again, members send the same bytes."""
    run, out, save = config(rounds=4), live.out(), RunDir.save
    sent: list[tuple[int, bytes]] = []

    def dying(self: RunDir, state: Any, record: Any) -> None:
        if record.round == 2:
            raise MemoryError("killed")
        save(self, state, record)

    def witness(task: bytes, payload: bytes) -> None:
        sent.append((messages.decode(task, 1 << 30).fields["round"], payload))

    with live.members(m001=witness) as members:
        before = {name: each.charges() for name, each in members.items()}
        monkeypatch.setattr(RunDir, "save", dying)
        with pytest.raises(MemoryError):
            live.coordinator().run(run, out)
        monkeypatch.undo()
        live.coordinator().run(run, out, resume=True)
        charged = {name: each.charges() - before[name] for name, each in members.items()}
    assert charged == {"m000": 4, "m001": 4, "m002": 4}
    assert [number for number, _ in sent] == [1, 2, 2, 3, 4]
    assert sent[1] == sent[2]
    began = time.monotonic()
    assert live.coordinator().run(run, out, resume=True).rounds == 4
    assert time.monotonic() - began < 10, "what is finished asks nobody"
    with pytest.raises(HushError, match="not empty"):
        live.coordinator().run(run, out)
    simulated = out.with_name(out.name + "-simulated")
    simulate(run, out=simulated)
    assert same(model(out), model(simulated))


def test_who_is_away_when_a_run_begins_takes_part_once_it_is_back(
    live: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live.members() as members:
        coordinator, out = live.coordinator(), live.out()
        begin = coordinator._begin

        def without(agreement: Any, names: Any, quorum: int) -> Any:
            if len(names) == 3:
                members["m001"].leave()
            left = begin(agreement, names, quorum)
            if len(names) == 3:
                members["m001"] = Member(live.place, "m001")
            return left

        monkeypatch.setattr(coordinator, "_begin", without)
        coordinator.run(config(rounds=2, quorum=2), out)
    assert [sorted(line["weights"]) for line in rounds(out)] == [["0", "1", "2"]] * 2


def opens(line: NodeClient) -> bool:
    """Whether this key is let in by now."""
    try:
        line.open()
    except RefusedError:
        return False
    return True


def shut_out(line: NodeClient) -> None:
    """Ask until this key is refused as revoked."""
    with pytest.raises(RefusedError, match="revoked"):
        for _ in range(100):
            line.poll(1 << 20)
            time.sleep(0.1)


def test_a_broken_file_among_the_keys_lets_nobody_in_and_keeps_nobody_out(live: LiveFederation) -> None:
    odd = live.place.path / "members" / "odd.pub"
    extra = keys.new_key()
    odd.write_bytes(b"no key")
    try:
        (odd.parent / "extra.pub").write_bytes(keys.public_pem(extra))
        line = NodeClient(live.place.settings.address, live.place.ca(), extra)
        assert until(lambda: opens(line))
        (odd.parent / "extra.pub").unlink()
        shut_out(line)
        line.close()
    finally:
        odd.unlink()
    assert live.link.said().count("odd.pub: not a public key") == 1


def test_replayed_and_repeated_answers_change_nothing(live: LiveFederation) -> None:
    run, first = config(rounds=3, seed=9), dict[int, bytes]()

    def replay(task: bytes, payload: bytes) -> bytes:
        number = messages.decode(task, 1 << 30).fields["round"]
        first.setdefault(number, payload)
        return first[1] if number == 3 else payload

    with live.members(m000=replay) as members:
        honest = members["m000"].line.reply

        def twice(parcel: Any, payload: bytes) -> None:
            honest(parcel, payload)
            with pytest.raises(HushError):
                honest(parcel, payload)
                raise HushError("stored a second time")

        members["m000"].line.reply = twice  # type: ignore[method-assign]
        out = live.out()
        live.coordinator().run(run, out)
    assert [sorted(line["weights"]) for line in rounds(out)] == [["0", "1", "2"], ["0", "1", "2"], ["1", "2"]]
    assert "answers round 1" in rounds(out)[2]["refused"]["0"]


def test_members_that_go_silent_are_not_waited_for_beyond_the_deadline(live: LiveFederation) -> None:
    with live.members() as members:
        coordinator = live.coordinator()
        coordinator._exchange._settings = replace(live.place.settings, deadline=30.0, patience=3.0)
        out = live.out()

        def silence(record: Any, left: Any) -> None:
            if record.round == 1:
                members["m001"].leave(quietly=True)
            if record.round == 2:
                members["m001"] = Member(live.place, "m001")

        began = time.monotonic()
        coordinator.run(config(rounds=3, quorum=2), out, progress=silence)
        assert time.monotonic() - began < 90
    lines = rounds(out)
    assert [sorted(line["weights"]) for line in lines] == [["0", "1", "2"], ["0", "2"], ["0", "1", "2"]]
    assert lines[1]["refused"] == {"1": exchange.SILENT}


def test_impostors_are_refused(live: LiveFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = live.place
    address, ca = place.settings.address, place.ca()
    with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
        urllib.request.urlopen(f"http://{address}/hush/next", data=b"", timeout=5)
    began = time.monotonic()
    with pytest.raises(RefusedError, match="not registered"), closing(NodeClient(address, ca, keys.new_key())) as line:
        line.open()
    assert time.monotonic() - began < 5, "a stranger hears it at once, however patient it is"

    keys.make_authority(tmp_path, "other", 10)
    other = NodeClient(address, (tmp_path / "ca.crt").read_bytes(), keys.new_key(), patience=0)
    with pytest.raises(HushError, match="no trusted connection"), closing(other) as line:
        line.open()
    with closing(CoordinatorClient(address, ca, "guess", patience=0)) as hub:
        with pytest.raises(HushError, match="403"):
            hub.peers()
        with pytest.raises(HushError, match="403"):
            hub.register(keys.public_pem(keys.new_key()), "eve")

    key = keys.load_private(place.path / "kits" / "m000" / "key.pem")
    from flwr.supercore.date import now
    from flwr.supernode import node_auth_http_interceptor as auth

    for skew, accepted in (
        (timedelta(seconds=-200), True),
        (timedelta(minutes=-10), False),
        (timedelta(minutes=1), False),
    ):
        monkeypatch.setattr(auth, "now", lambda skew=skew: now() + skew)
        with closing(NodeClient(address, ca, key)) as line:
            if accepted:
                line.open()
                with pytest.raises(RefusedError, match="in use"), closing(NodeClient(address, ca, key, 0)) as twin:
                    twin.open()
            else:
                began = time.monotonic()
                with pytest.raises(RefusedError, match="clocks"):
                    line.open()
                assert time.monotonic() - began < 5
    monkeypatch.undo()

    context = ssl.create_default_context(cadata=ca.decode())
    known = {"flwr-public-key": base64.b64encode(place.members()["m000"]).decode(), "content-type": PROTOBUF}
    with httpx.Client(verify=context) as client:
        for path, body, headers, status in (
            ("/v1/control/list-nodes", b"", {}, 403), ("/v1/fleet/register-node", b"", {}, 403),
            ("/docs", b"", {}, 403), ("/v1/runtime/acquire-task", b"", {}, 403),
            ("/v1/fleet/push-object", b"x", known, 403), ("/v1/fleet/activate-node", b"x", {}, 403),
            ("/v1/fleet/activate-node", b"x" * (1 << 17), known, 413), ("/v1/fleet/activate-node", b"", known, 401),
            ("/hush/next", b"", known, 401), ("/hush/answer", b"x", known, 401), ("/hush/send", b"", known, 403),
        ):  # fmt: skip
            found = client.post(f"https://{address}{path}", content=body, headers=headers)
            assert found.status_code == status, path
        chunked = client.post(f"https://{address}/hush/answer", content=iter([b"x"] * 10))
        assert chunked.status_code == 411
    assert live.link.alive()


def test_a_revoked_key_is_out_at_once(live: LiveFederation) -> None:
    place = live.place
    extra = keys.new_key()
    place.admit("extra", keys.public_pem(extra))
    line = NodeClient(place.settings.address, place.ca(), extra)
    assert until(lambda: opens(line))
    assert line.poll(1 << 20) is None
    place.revoke("extra")
    began = time.monotonic()
    shut_out(line)
    assert time.monotonic() - began < 5
    line.close()


def test_an_expired_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket
    import threading

    keys.make_authority(tmp_path, "old", 10)
    monkeypatch.setattr(keys, "_BACKDATED", timedelta(days=3))
    keys.make_server(tmp_path, ["127.0.0.1"], -1)
    with pytest.raises(HushError, match="valid from"):
        keys.check_server(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                try:
                    connection, _ = listener.accept()
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    continue

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        line = NodeClient(address, (tmp_path / "ca.crt").read_bytes(), keys.new_key(), patience=0)
        with pytest.raises(HushError, match="no trusted connection"), closing(line):
            line.open()


def test_a_superlink_that_is_not_there_is_named(tmp_path: Path) -> None:
    keys.make_authority(tmp_path, "none", 10)
    line = NodeClient("127.0.0.1:9", (tmp_path / "ca.crt").read_bytes(), keys.new_key(), patience=0.2)
    with pytest.raises(HushError, match=r"127\.0\.0\.1:9: cannot be reached"):
        line.open()
    line.close()
    began = time.monotonic()
    with (
        pytest.raises(HushError, match=r"127\.0\.0\.1:9: cannot be reached"),
        closing(CoordinatorClient("127.0.0.1:9", (tmp_path / "ca.crt").read_bytes(), "secret")) as hub,
    ):
        hub.open()
    assert time.monotonic() - began < 15, "who was never there is not waited for"
    with pytest.raises(HushError, match="CA certificate cannot be used"):
        NodeClient("127.0.0.1:9", b"nothing", keys.new_key(), patience=0)
    assert issubclass(retry.RefusedError, HushError)
