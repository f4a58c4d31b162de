"""The doctor of a coordinator: what is wrong with its folder, its certificates, its server and its members' sides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hush.deploy.admin import keys
from hush.deploy.admin.findings import (
    Finding,
    authority,
    certificate,
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
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.coordinator.status import runs_of
from hush.deploy.transport import about
from hush.deploy.transport.gateway import SECRET_HEADER
from hush.text import printable
from hush.types import HushError

_RENEW = "hush federation renew; members need no change"
_SECRETS = ("", "ca.key", "coordinator.secret", "server.key", "signing.key")


def examine(path: Path, *, offline: bool = False) -> Iterator[Finding]:
    """Yield what is found at a coordinator; with `offline`, without its running server and its members."""
    try:
        place = FederationFolder(path)
    except HushError as error:
        yield Finding("error", "settings", printable(error, 1000), "correct federation.toml")
        return
    yield Finding("ok", "settings", f"federation {place.settings.name} at {place.settings.address}")
    yield own_versions(about.installed())
    yield disk(path)
    yield from private(place.server / name for name in _SECRETS)
    yield from writable(path)
    yield from _certificates(place)
    yield _members(place)
    yield checked("ledgers", lambda: _heads(place), "restore server/heads.json from the latest backup")
    yield from _runs(place)
    if not offline:
        seen = list(shown_certificate(place.settings.address, place.ca(), _RENEW))
        yield from seen
        if not any(each.level == "error" for each in seen):
            yield from _online(place)


def _certificates(place: FederationFolder) -> Iterator[Finding]:
    try:
        keys.check_server(place.server)
    except HushError as error:
        yield Finding("error", "certificate", printable(error, 1000), _RENEW)
    else:
        yield certificate("server.crt", keys.validity(place.server / "server.crt"), _RENEW)
    yield from authority(place.server / "ca.crt")
    if (place.server / "signing.crt").exists():
        remedy = "move signing.key and signing.crt away; the next delivery creates new ones"
        yield certificate("signing.crt", keys.validity(place.server / "signing.crt"), remedy)


def _members(place: FederationFolder) -> Finding:
    faults: list[HushError] = []
    names = place.members(faults.append)
    if faults:
        return Finding("error", "members", printable(faults[0], 500), "admit the member again with its NAME.pub")
    if not names:
        return Finding("error", "members", "none is registered", "hush federation admit")
    return Finding("ok", "members", f"{len(names)} registered: {', '.join(names)}")


def _heads(place: FederationFolder) -> str:
    heads = place.heads()
    return f"the newest entries of {sum(map(bool, heads.values()))} members' ledgers are on record"


def _runs(place: FederationFolder) -> Iterator[Finding]:
    for run in runs_of(place):
        if run["state"] != "finished":
            words = f"{run['run']} is at round {run['round']} of {run['rounds']}"
            yield Finding("ok", "runs", f"{words}: going on, or to be resumed with --resume")


def _online(place: FederationFolder) -> Iterator[Finding]:
    try:
        found, _ = fetch_about(place.settings.address, place.ca(), about.PATH, {SECRET_HEADER: place.secret()})
    except HushError as error:
        yield Finding("error", "server", printable(error, 500), "start hush federation serve")
        return
    if isinstance(found, str):
        remedy = "another program listens there, or a server of another folder"
        yield Finding("error", "server", f"it refuses the secret of this folder: {printable(found, 200)}", remedy)
        return
    yield Finding("ok", "server", "hush federation serve answers")
    yield other_versions("the server", about.installed(), found["versions"])
    for name, key in place.members(lambda error: None).items():
        known = found["members"].get(about.as_header(key))
        if known is None or not known["online"]:
            yield Finding("warning", "members", f"{name} is offline", "there: hush federation doctor KIT")
        if known is not None:
            yield other_versions(name, about.installed(), known["versions"])
            if known["ahead"] is not None:
                yield clock(f"{name}'s", float(known["ahead"]), "correct the clock there, or here")
