"""The server process of a federation, a SuperLink, and its list of members, kept equal to the files in `members/`."""

from __future__ import annotations

import signal
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hush.deploy.admin.audit_log import AuditLog
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.admin.processes import check_port
from hush.deploy.shared.presence import present
from hush.deploy.transport.downloads import Downloads
from hush.deploy.transport.gateway import Instances, Listed
from hush.types import HushError


def serve(place: FederationFolder, say: Callable[[str], None], host: str | None = None) -> None:
    """Run the SuperLink until the process is stopped."""
    from hush.deploy.transport.flower import CoordinatorClient, superlink

    certificate, settings = place.certificate(), place.settings
    listen = host or settings.host
    check_port(listen, settings.port)
    doors, instances = Listed(), Instances()

    def keep() -> None:
        hub = CoordinatorClient(
            settings.address if host is None else f"{_near(host)}:{settings.port}", place.ca(), place.secret()
        )
        listed: dict[str, bytes] | None = None
        complaints: set[str] = set()

        def complain(error: HushError) -> None:
            if str(error) not in complaints:
                complaints.add(str(error))
                say(f"members: {error}")

        while True:
            try:
                now = place.members(complain)
                if now != listed:
                    synchronise(place, hub, now)
                    doors.name(now.values())
                    if listed is None:
                        say(f"ready at {settings.address}, {len(now)} members registered")
                    listed = now
                for name in copied(place, now, instances.copied()):
                    say(f"members: {name}: a second process tried to use its key; the first stays connected")
            except HushError as error:
                complain(error)
            time.sleep(0.5)

    def facts() -> dict[str, Any]:
        names = {b64encode(key): name for name, key in place.members(lambda error: None).items()}
        heard = {names[key]: time.time() - ago for key, ago in instances.heard().items() if key in names}
        return {"address": settings.address, "heard": heard}

    # uvicorn raises the signal again after it has shut down: without a handler, the presence would not be removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=keep, daemon=True).start()
    downloads = Downloads(place, AuditLog(place.server / "audit.jsonl").note)
    with present(place.server, facts):
        superlink(listen, settings.port, certificate, place.secret(), doors, instances, downloads)


def synchronise(place: FederationFolder, hub: Any, wanted: Mapping[str, bytes]) -> None:
    """Register the keys that are wanted and shut out all others."""
    trail = AuditLog(place.server / "audit.jsonl")
    known = {peer.key: peer for peer in hub.peers()}
    for name, key in wanted.items():
        if key not in known:
            hub.register(key, name)
            trail.note("registered", member=name)
    for key, peer in known.items():
        if key not in wanted.values():
            hub.unregister(peer.node)
            trail.note("revoked", node=str(peer.node))


def copied(place: FederationFolder, members: Mapping[str, bytes], keys: Iterable[bytes]) -> list[str]:
    """The members whose keys (base64) a second process tried to use, each noted in the audit trail."""
    names = {b64encode(key): name for name, key in members.items()}
    found = [names[key] for key in keys if key in names]
    for name in found:
        AuditLog(place.server / "audit.jsonl").note("copied", member=name)
    return found


def _near(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host
