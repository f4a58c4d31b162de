"""A federation as a service: doctor on both sides, a certificate that expires and is renewed, and the queue."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin import audit_log, keys
from hush.deploy.admin.findings import Finding, served
from hush.deploy.admin.folders import open_kit
from hush.deploy.coordinator import doctor as of_coordinator
from hush.deploy.member import doctor as of_member
from hush.deploy.shared.protocol import PROTOCOL
from hush.deploy.transport import about
from tests.support.fork_server import ForkServer
from tests.support.live_federation import CLASSES, LiveFederation, config, until


def levels(found: list[Finding]) -> dict[str, list[str]]:
    return {level: [each.check for each in found if each.level == level] for level in ("ok", "warning", "error")}


def lines(found: list[Finding]) -> str:
    return "\n".join(each.line for each in found)


def test_the_doctor_sees_both_sides(live: LiveFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live.members():
        found = list(of_coordinator.examine(live.place.path))
        assert levels(found)["error"] == [], lines(found)
        assert "m001 has protocol " in lines(found)
        assert f"protocol {PROTOCOL}" in lines(found)
        kit = live.place.path / "kits" / "m001"
        found = list(of_member.examine(kit, data=kit / "data.npz"))
        assert levels(found)["error"] == ["process"], "members of this test run in threads"
        for words in (
            "registered, and this member is online",
            "all verified",
            "the coordinator has protocol",
            "rows of",
        ):
            assert words in lines(found)
        # A newer protocol on the other side, a clock that is wrong, a certificate that ends soon.
        monkeypatch.setattr(about, "PROTOCOL", PROTOCOL + 1)
        found = list(of_member.examine(kit))
        assert "same protocol" in [each for each in found if each.level == "error"][-1].remedy
        monkeypatch.undo()
        monkeypatch.setattr(time, "time", lambda now=time.time: now() - 400)
        found = list(of_member.examine(kit))
        assert "clock" in levels(found)["error"], lines(found)
        assert "s behind the coordinator's" in lines(found)
        monkeypatch.undo()
    found = list(of_coordinator.examine(live.place.path))
    assert "m001 is offline" in lines(found)


def test_the_doctor_names_what_is_broken_at_a_member(live: LiveFederation, tmp_path: Path) -> None:
    with live.members():
        pass
    kit = tmp_path / "kit"
    shutil.copytree(live.place.path / "kits" / "m002", kit)

    def broken(change: Any, check: str, words: str, *, offline: bool = True) -> None:
        copy = tmp_path / "broken"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(kit, copy)
        change(copy)
        found = list(of_member.examine(copy, data=copy / "data.npz", offline=offline))
        errors = [each for each in found if each.level == "error" and each.check == check]
        assert errors and words in errors[0].line, lines(found)
        assert errors[0].remedy

    def stranger(copy: Path) -> None:
        (copy / "key.pem").unlink()
        keys.write_secret(copy / "key.pem", keys.private_pem(keys.new_key()))

    def other_ca(copy: Path) -> None:
        (copy / "ca").mkdir()
        keys.make_authority(copy / "ca", "other", 10)
        shutil.copy(copy / "ca" / "ca.crt", copy / "ca.crt")

    broken(lambda copy: (copy / "kit.toml").write_text("x"), "kit", "not valid TOML")
    broken(lambda copy: (copy / "policy.toml").write_text("[budget]"), "policy", "policy.toml")
    broken(lambda copy: (copy / "key.pem").chmod(0o644), "permissions", "chmod 600")
    broken(lambda copy: (copy / "data.npz").write_bytes(b"x"), "data", "data.npz")
    broken(lambda copy: (copy / "ledger.db").write_bytes(b"x" * 5000), "ledger", "ledger.db")
    broken(lambda copy: (copy / "ledger.db").unlink(), "ledger", "lost or deleted")
    broken(lambda copy: (copy / "ca.crt").write_text("x"), "certificate", "not a certificate")
    broken(stranger, "key", "this key is not listed", offline=False)
    broken(other_ca, "certificate", "not the CA that signed it", offline=False)
    broken(
        lambda copy: (copy / "kit.toml").write_text('member = "m002"\naddress = "127.0.0.1:9"\n'),
        "connection", "nobody answers", offline=False,
    )  # fmt: skip


def test_strangers_learn_nothing_from_the_gateway(live: LiveFederation) -> None:
    from hush.deploy.admin.findings import fetch_about
    from hush.deploy.transport import downloads

    where, ca = live.place.settings.address, live.place.ca()
    for headers in ({}, downloads.headers(keys.new_key(), about.PATH), {"hush-coordinator": "0" * 64}):
        found, _ = fetch_about(where, ca, about.PATH, headers)
        assert isinstance(found, str) and "python" not in found
    key = open_kit(live.place.path / "kits" / "m000").key()
    found, _ = fetch_about(where, ca, about.PATH, downloads.headers(key, about.PATH))
    assert set(found) == {"versions", "member", "online"}, "and members nothing about each other"
    assert isinstance(fetch_about(where, ca, about.PATH, downloads.headers(key, "/hush/deliveries"))[0], str)


def test_a_certificate_is_renewed_under_a_running_server_and_run(live: LiveFederation) -> None:
    """New connections get the new certificate within seconds; the run loses no round."""
    run, out, seen = config(rounds=6), live.out(), list[str]()
    address, ca, folder = live.place.settings.address, live.place.ca(), live.place.server

    def serial() -> str:
        certificate = served(address, ca)[0]
        return str(certificate.serial_number) if certificate else "no answer on a busy machine"

    before = serial()

    def renew(record: Any, left: Any) -> None:
        if record.round == 2:
            keys.renew_server(folder, ["localhost"], 200)
            assert until(lambda: serial().isdigit() and serial() != before, 20)
        seen.append(serial())

    with live.members() as members:
        charged = {name: each.charges() for name, each in members.items()}
        assert live.coordinator().run(run, out, progress=renew).rounds == 6
        assert {each.charges() - charged[name] for name, each in members.items()} == {6}
    assert len(set(seen)) == 2
    assert served(address, ca)[1] == ""
    assert "certificate: renewed, valid until" in live.link.said()


@pytest.mark.soak
def test_an_expired_certificate_stops_a_run_and_a_renewed_one_resumes_it(
    tmp_path: Path, parent: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As documented: serve refuses to start, members wait, the coordinator renews, nothing is lost or charged twice."""
    made, run = LiveFederation(tmp_path / "fed"), config(2, 4)
    folder, out = made.place.server, made.place.runs / "run"

    class StoppedError(Exception):
        pass

    def stop(record: Any, left: Any) -> None:
        if record.round == 2:
            raise StoppedError

    with made.up(parent), made.members() as members:
        with pytest.raises(StoppedError):
            made.coordinator().run(run, out, progress=stop)
        made.link.kill()
        monkeypatch.setattr(keys, "_BACKDATED", timedelta(days=9))
        keys.renew_server(folder, [], -1)
        monkeypatch.undo()
        refused = parent.start(["federation", "serve", made.place.path], tmp_path / "refused.log")
        assert refused.status(120) == 2
        assert "renew it with hush federation renew" in refused.said()
        found = [each for each in of_coordinator.examine(made.place.path, offline=True) if each.level == "error"]
        assert "hush federation renew" in found[0].line and found[0].check == "certificate"
        keys.renew_server(folder, [], 100)
        link = parent.start(["federation", "serve", made.place.path], tmp_path / "again.log")
        link.wait_for("ready at", 120)
        assert made.coordinator().run(run, out, resume=True).rounds == 4
        assert {each.charges() for each in members.values()} == {4}
        link.kill()


TOML = """
seed = 5
rounds = 3
quorum = 2
[data]
name = "digits"
clients = 3
[privacy]
budgets = 1.0
[local]
batch_size = 64
lr = 0.5
[recipe]
name = "robust-hdp"
"""


def test_queued_runs_go_one_after_the_other(live: LiveFederation, tmp_path: Path, parent: ForkServer) -> None:
    (tmp_path / "queued.toml").write_text(TOML)
    place = live.place.path
    words = ["federation", "run", place, tmp_path / "queued.toml", "--test", place / "test.npz", "--classes", CLASSES]
    with live.members(), parent.tidy() as fork_server:
        first = fork_server.start([*words, "--queue", "--set", "rounds=2"], tmp_path / "a.log")
        assert first.status() == 0, first.said()
        second = fork_server.start([*words, "--queue"], tmp_path / "b.log")
        assert second.status() == 0, second.said()
        assert "run queued-2 has number 2 in the queue, 1 before it" in second.said()
        worker = fork_server.start(["federation", "work", place, "--until-empty"], tmp_path / "work.log")
        assert worker.status(240) == 0, worker.said()
    said = worker.said()
    assert (
        said.index("run queued is finished")
        < said.index("run queued-2 begins")
        < said.index("run queued-2 is finished")
    )
    rounds = [len((place / "runs" / name / "rounds.jsonl").read_text().splitlines()) for name in ("queued", "queued-2")]
    assert rounds == [2, 3]
    assert (place / "runs" / "queued-2" / "report.html").exists()
    ended = [note for note in audit_log.read(live.place.server / "audit.jsonl") if note["event"] == "ended"]
    assert len(ended) >= 2
