"""Mistakes of operators and members: one line on the right side that names the file or key, and nothing lost."""

from __future__ import annotations

import errno
import gzip
import os
import socket
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.deploy.admin import audit_log, keys, processes
from hush.deploy.admin.folders import FederationFolder, create, open_kit
from hush.deploy.member import datasets, policy, service
from hush.privacy.ledger.statement import describe
from hush.types import HushError
from tests.support import federation_kit as kit

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of typer about click
    from typer.testing import CliRunner

    from hush.cli.main import app

POLICY = '[budget]\nepsilon = 1.0\ndelta = 1e-5\n[accept]\nrecipes = ["any"]\ncode = ["any"]\n'


def message_of(call: object) -> str:
    with pytest.raises(HushError) as error:
        call()  # type: ignore[operator]
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (POLICY + "[limits]\nmax_rat = 0.1\n", "policy.toml:8: limits.max_rat: unknown key"),
        (POLICY.replace("epsilon = 1.0", "epsilon = -1"), "policy.toml:2: budget.epsilon: "),
        (POLICY.replace("epsilon = 1.0", 'epsilon = "one"'), "policy.toml:2: budget.epsilon: "),
        (POLICY.replace("delta = 1e-5\n", ""), "budget.delta"),
        (POLICY.replace('recipes = ["any"]', "recipes = []"), "accept.recipes"),
        (POLICY + "[extra]\n", "unknown key 'extra'"),
        (POLICY + "[budget", "not valid TOML"),
        (POLICY + "[limits]\nmin_clip = 2.0\nmax_clip = 1.0\n", "policy.toml:8: limits.min_clip: 2 is more"),
        (POLICY.replace("delta", "lifetime = 0.5\ndelta"), "policy.toml:3: budget.lifetime: 0.5 is less"),
        (POLICY.replace('recipes = ["any"]', 'recipes = ["robust-hpd"]'), "unknown recipe 'robust-hpd'"),
        (POLICY.replace('code = ["any"]', 'code = ["v1.2"]'), "policy.toml:6: accept.code: found 'v1.2'"),
    ],
)  # fmt: skip
def test_a_policy_with_a_mistake(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "policy.toml").write_text(text)
    assert words in message_of(lambda: policy.load(tmp_path / "policy.toml"))


def test_a_good_policy_and_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    found = policy.load(tmp_path / "policy.toml")
    assert (found.one_run.epsilon, found.for_life.epsilon, found.accept.seeded) == (1.0, 1.0, False)
    assert "cannot be read" in message_of(lambda: policy.load(tmp_path / "none.toml"))


def test_data_of_every_kind_and_what_can_be_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y)
    lines = ["p,label,q,r", *(f"{a},{label},{b},{c}" for (a, b, c), label in zip(x, y, strict=True))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    images = np.zeros((4, 5, 5), np.uint8)
    idx = tmp_path / "idx"
    idx.mkdir()
    (idx / "images.gz").write_bytes(
        gzip.compress(b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (4, 5, 5)) + images.tobytes())
    )
    (idx / "labels").write_bytes(b"\0\0\x08\x01" + (4).to_bytes(4, "big") + bytes([0, 1, 2, 1]))
    (tmp_path / "own_loader.py").write_text(
        "def rows(path):\n    return [[1.0, 2.0]], [0]\ndef fails(path):\n    1 / 0\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("a.npz", "a.csv"):
        found = datasets.load(tmp_path / name)
        assert np.array_equal(found.x, x.astype(np.float32))
        assert found.y.tolist() == y.tolist()
    assert datasets.load(idx).x.shape == (4, 1, 5, 5)
    assert datasets.load(tmp_path / "a.csv", loader="own_loader:rows").x.shape == (1, 2)

    (tmp_path / "bad.csv").write_text("p,label\n1,0\nx,1\n")
    (tmp_path / "short.csv").write_text("p,label\n1\n")
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    np.savez(tmp_path / "nan.npz", x=np.full((2, 2), np.nan), y=np.array([0, 1]))
    assert "none.csv: not found" in message_of(lambda: datasets.load(tmp_path / "none.csv"))
    assert "bad.csv:3: " in message_of(lambda: datasets.load(tmp_path / "bad.csv"))
    assert "short.csv:2: 1 columns" in message_of(lambda: datasets.load(tmp_path / "short.csv"))
    assert "one column 'class'" in message_of(lambda: datasets.load(tmp_path / "a.csv", label="class"))
    assert "not a NumPy archive" in message_of(lambda: datasets.load(tmp_path / "bad.npz"))
    assert "NaN" in message_of(lambda: datasets.load(tmp_path / "nan.npz"))
    assert "unknown file type .py; accepted: .npz" in message_of(lambda: datasets.load(tmp_path / "own_loader.py"))
    assert "failed: ZeroDivisionError" in message_of(
        lambda: datasets.load(tmp_path / "a.csv", loader="own_loader:fails")
    )
    assert "module:function" in message_of(lambda: datasets.load(tmp_path / "a.csv", loader="own_loader"))


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs the deploy extra")
    from pyarrow import parquet

    table = arrow.table({"p": [1.0, 2.0], "label": [0, 1], "q": [3, 4]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert datasets.load(tmp_path / "a.parquet").x.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    assert "not a Parquet file" in message_of(lambda: datasets.load(tmp_path / "b.parquet"))


def test_folders_and_certificates(tmp_path: Path) -> None:
    place = create(tmp_path / "fed", ["a", "b"], "127.0.0.1:8443", policy=POLICY)
    assert list(place.members()) == ["a", "b"]
    secrets = [
        *(tmp_path / "fed").rglob("*.key"),
        *(tmp_path / "fed").rglob("key.pem"),
        place.server / "coordinator.secret",
    ]
    assert len(secrets) == 5
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets)
    assert not list((tmp_path / "fed" / "kits").rglob("ca.key"))
    assert "not empty" in message_of(lambda: create(tmp_path / "fed", ["a"], "127.0.0.1:8443"))
    assert "host:port" in message_of(lambda: create(tmp_path / "x", ["a"], "nowhere"))
    assert "accepted: up to 64" in message_of(lambda: create(tmp_path / "x", ["../a"], "127.0.0.1:1"))
    assert "accepted: distinct names" in message_of(lambda: create(tmp_path / "x", ["a", "a"], "127.0.0.1:1"))
    assert "coordinator's directory" in message_of(lambda: open_kit(tmp_path / "fed"))
    assert "kit.toml: not found" in message_of(lambda: open_kit(tmp_path))
    assert "another member already uses this key" in message_of(lambda: place.admit("c", place.members()["a"]))
    assert "not a public key" in message_of(lambda: place.admit("c", b"key"))
    (place.server / "server.crt").unlink()
    assert "server.crt: not found; expected a certificate" in message_of(place.certificate)
    kit_path = tmp_path / "fed" / "kits" / "a"
    (kit_path / "key.pem").chmod(0o644)
    assert "accessible to other users" in message_of(lambda: open_kit(kit_path).key())
    (kit_path / "ca.crt").unlink()
    assert "expected the CA certificate" in message_of(lambda: open_kit(kit_path).ca())
    (tmp_path / "fed" / "federation.toml").write_text('name = "x"\naddress = "127.0.0.1:1"\ndeadlin = 3\n')
    assert "expected address, approval, at_once, deadline" in message_of(lambda: FederationFolder(tmp_path / "fed"))
    with socket.create_server(("127.0.0.1", 0)) as busy:
        assert "cannot listen on this address" in message_of(
            lambda: processes.check_port("127.0.0.1", busy.getsockname()[1])
        )


def test_certificates_that_do_not_belong_together(tmp_path: Path) -> None:
    place = create(tmp_path / "fed", ["a"], "127.0.0.1:8443", policy=POLICY)
    other = create(tmp_path / "other", ["a"], "127.0.0.1:8443", policy=POLICY)
    own = {name: (place.server / name).read_bytes() for name in ("ca.crt", "server.crt", "server.key")}
    place.certificate()

    def mixed(name: str, content: bytes) -> str:
        (place.server / name).write_bytes(content)
        words = message_of(place.certificate)
        (place.server / name).write_bytes(own[name])
        return words

    assert "server.key: does not match server.crt" in mixed("server.key", (other.server / "server.key").read_bytes())
    assert "members will not trust it" in mixed("ca.crt", (other.server / "ca.crt").read_bytes())
    assert "ca.crt: not a certificate" in mixed("ca.crt", b"nothing")
    assert "server.crt: not a certificate" in mixed("server.crt", b"")
    place.certificate()


def test_a_key_that_was_revoked_does_not_come_back(tmp_path: Path) -> None:
    place = create(tmp_path / "fed", ["a", "b"], "127.0.0.1:8443", policy=POLICY)
    first, second = place.members()["a"], keys.public_pem(keys.new_key())
    place.revoke("a")
    place.admit("a", second)
    place.revoke("a")
    for name in ("a", "c"):
        for pem in (first, second):
            assert "previously revoked" in message_of(lambda name=name, pem=pem: place.admit(name, pem))
    place.admit("a", keys.public_pem(keys.new_key()))
    assert list(place.members()) == ["a", "b"]


def test_a_kit_has_one_process(tmp_path: Path) -> None:
    create(tmp_path / "fed", ["a"], "127.0.0.1:8443", policy=POLICY)
    kit_path = open_kit(tmp_path / "fed" / "kits" / "a")
    with service.kit_lock(kit_path):
        assert "another process is using" in message_of(lambda: service.kit_lock(kit_path).__enter__())
    with service.kit_lock(kit_path):
        pass


def test_a_full_disk_stops_a_member_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    assert asks.begin(kit.config()).kind == "ready"
    assert asks.task(1).kind == "update"

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert "No space left" in message_of(lambda: asks.task(2))
    monkeypatch.undo()
    asks.node.ledger.close()
    described_after = describe(tmp_path / "a" / "ledger.db")
    assert described_after["chain_ok"]
    later = kit.Coordinator(kit.member(tmp_path / "a"))
    assert later.task(2).kind == "update"
    assert describe(tmp_path / "a" / "ledger.db")["charges"]["SENT"] == 2
    assert audit_log.read(tmp_path / "a" / "audit.jsonl")[0]["event"] == "began"


def test_another_members_ledger_is_refused(tmp_path: Path) -> None:
    kit.member(tmp_path / "a", "a").ledger.close()
    assert "ledger.db: belongs to a; this member is b" in message_of(lambda: kit.member(tmp_path / "a", "b"))


def test_the_commands_of_a_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="needs the deploy extra")
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def call(*words: str) -> str:
        done = runner.invoke(app, ["federation", *words])
        if isinstance(done.exception, HushError):
            return f"error: {done.exception}"
        assert done.exit_code == 0, done.output
        return done.output

    port = processes.free_port()
    assert "a federation of 2" in call("init", "fed", "--members", "a,b", "--address", f"127.0.0.1:{port}", "--no-keys")
    assert not (tmp_path / "fed" / "kits" / "a" / "key.pem").exists()
    np.savez("rows.npz", x=np.arange(400.0).reshape(200, 2), y=np.array([0, 1] * 100))
    call("join", "fed/kits/a", "--data", "rows.npz")
    assert (tmp_path / "fed" / "kits" / "a" / "key.pem").stat().st_mode & 0o077 == 0
    assert "a is now a member" in call("admit", "fed", "a", "fed/kits/a/a.pub")
    standing = call("status", "fed")
    assert "is down" in standing
    assert "offline" in standing
    assert "cannot be reached" in call("join", "fed/kits/a", "--data", "rows.npz", "--wait", "0")
    assert "no longer a member" in call("revoke", "fed", "a")
    assert "error: " in call("revoke", "fed", "a")
    before = (tmp_path / "fed" / "server" / "server.crt").read_bytes()
    call("renew", "fed")
    assert (tmp_path / "fed" / "server" / "server.crt").read_bytes() != before
    assert len(call("code").strip()) == 64
    assert "error: fed/federation" not in call("status", "fed", "--json")
    keys.check_server(tmp_path / "fed" / "server")


def test_a_program_says_only_what_it_says_itself(tmp_path: Path) -> None:
    """A log is added to: what stood in it before is not taken for the word of who was started now."""
    log = tmp_path / "log"
    log.write_text("ready at last year's address\n")
    program = processes.Program(["federation", "status", str(tmp_path)], log)
    assert "federation.toml: not found" in message_of(lambda: program.wait_for("ready at", 30))
    assert "ready" not in program.said()
