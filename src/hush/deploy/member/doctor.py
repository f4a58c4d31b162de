"""The doctor of a member: what is wrong with its kit, policy, ledger and data, and with its way to the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hush.deploy.admin.findings import (
    Finding,
    authority,
    checked,
    clock,
    disk,
    fetch_about,
    other_versions,
    own_versions,
    private,
    shown_certificate,
    writable,
)
from hush.deploy.admin.folders import Kit, open_kit
from hush.deploy.member import datasets
from hush.deploy.member import policy as law
from hush.deploy.shared import presence
from hush.deploy.shared.protocol import code_hash
from hush.deploy.transport import about, downloads
from hush.privacy.ledger import witness
from hush.privacy.ledger.statement import describe
from hush.text import printable
from hush.types import HushError

_RENEW = "the coordinator renews it (hush federation renew); nothing to do here"
_COPY = "see Backup in docs/operations.md: use the latest copy; if it is lost, use other rows and a new ledger"
_SECRETS = ("key.pem", "ledger.db", "held-out.json")


def examine(
    path: Path, policy: Path | None = None, data: Path | None = None, *, offline: bool = False
) -> Iterator[Finding]:
    """Yield what is found at a member.

    Args:
        path: The kit.
        policy: The policy file; by default that of the kit.
        data: The member's data, if they are to be read as well.
        offline: Without the coordinator and the running process.
    """
    try:
        kit = open_kit(path)
    except HushError as error:
        yield Finding("error", "kit", printable(error, 1000), "use the directory that the coordinator has sent")
        return
    yield Finding("ok", "kit", f"member {kit.member} of the federation at {kit.address}")
    yield own_versions(about.installed())
    yield disk(path)
    yield from private(path / name for name in _SECRETS)
    yield from writable(path)
    rules = policy or path / "policy.toml"
    yield checked("policy", lambda: _policy(rules), "hush federation policy KIT --check explains each value")
    yield from _ledger(kit)
    if data is not None:
        yield checked("data", lambda: _data(kit, rules, data), "correct the file, the policy or schema.toml")
    yield from authority(path / "ca.crt")
    if not offline:
        yield _process(kit)
        seen = list(shown_certificate(kit.address, kit.ca(), _RENEW))
        yield from seen
        if not any(each.level == "error" for each in seen):
            yield from _coordinator(kit)


def _policy(path: Path) -> str:
    found = law.load(path)
    if law.ANY not in found.accept.code and code_hash() not in found.accept.code:
        raise HushError(f"{path}: accept.code does not list the installed code (hush federation code)")
    asks = "runs within it start by themselves" if found.consent.auto_approve else "a person approves each run"
    return f"{path} is valid: epsilon {found.budget.epsilon:g} a run, {found.for_life.epsilon:g} in all; {asks}"


def _ledger(kit: Kit) -> Iterator[Finding]:
    if not kit.ledger.exists() and not kit.ledger.with_name("ledger.db.head").exists():
        yield Finding("ok", "ledger", "none yet; the first join creates it")
        yield checked("witness", lambda: _witness(kit), "set HUSH_WITNESS to a directory of your own outside the kit")
        return
    try:
        found = describe(kit.ledger)
    except HushError as error:
        yield Finding("error", "ledger", printable(error, 1000), _COPY)
        return
    if not found["chain_ok"]:
        yield Finding("error", "ledger", printable(found["fault"], 1000), _COPY)
        return
    if not found["witnessed"]:
        remedy = "if it is the latest copy: hush ledger adopt FILE; see Backup in docs/operations.md"
        yield Finding("error", "ledger", f"{kit.ledger}: not known to the witness of this machine", remedy)
        return
    left = "unlimited" if found["left"] is None else f"{found['left']:.4g}"
    words = f"{found['rows']} entries, all verified; epsilon spent {found['spent'] or 0:.4g}, left {left}"
    yield Finding("ok", "ledger", words)
    yield checked("witness", lambda: _witness(kit), "set HUSH_WITNESS to a directory of your own outside the kit")


def _witness(kit: Kit) -> str:
    here = witness.here(kit.ledger)
    here.find_key()
    return f"{here.directory} remembers the newest entries of ledgers; it must survive restarts"


def _data(kit: Kit, policy_path: Path, data: Path) -> str:
    policy = law.load(policy_path)
    found = datasets.load(
        data, label=policy.data.label, loader=policy.data.loader, declared=datasets.declared(kit.path),
        columns=policy.data.columns, person=policy.data.person,
    )  # fmt: skip
    return f"{data} has {len(found.y)} rows of shape {tuple(found.x.shape[1:])}, as declared"


def _process(kit: Kit) -> Finding:
    if presence.alive(presence.read(kit.path)):
        return Finding("ok", "process", "hush federation join is running")
    return Finding("error", "process", "no process uses this kit, or it hangs", "start hush federation join")


def _coordinator(kit: Kit) -> Iterator[Finding]:
    if not (kit.path / "key.pem").exists():
        yield Finding("error", "key", "there is none yet", "run hush federation join, and send the NAME.pub it makes")
        return
    try:
        found, ahead = fetch_about(kit.address, kit.ca(), about.PATH, downloads.headers(kit.key(), about.PATH))
    except HushError as error:
        yield Finding("error", "key", printable(error, 500), "see above")
        return
    yield clock("this machine's", ahead, "synchronise the clock of this machine (NTP), or the coordinator's")
    if isinstance(found, str):
        remedy = f"the coordinator adds it: hush federation admit DIR {kit.member} {kit.member}.pub"
        remedy = remedy if "listed" in found else "correct the clock" if "clock" in found else "upgrade the coordinator"
        yield Finding("error", "key", f"the coordinator answers: {found}", remedy)
        return
    if found.get("member") != kit.member:
        words = f"the coordinator knows this key as {printable(found.get('member'), 64)}, the kit as {kit.member}"
        yield Finding("error", "key", words, "use the kit of this member")
    elif not found.get("online"):
        yield Finding("warning", "key", "registered, but this member is not online", "start hush federation join")
    else:
        yield Finding("ok", "key", "registered, and this member is online")
    yield other_versions("the coordinator", about.installed(), found.get("versions") or {})
