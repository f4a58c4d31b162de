"""The server process of a federation, a SuperLink, and its list of members, kept equal to the files in `members/`."""

from __future__ import annotations

import datetime
import signal
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hush.deploy.admin import keys
from hush.deploy.admin.audit_log import AuditLog
from hush.deploy.admin.findings import certificate
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.admin.processes import check_port
from hush.deploy.shared.presence import presence_file
from hush.deploy.transport.downloads import Downloads
from hush.deploy.transport.gateway import Instances, Listed
from hush.types import HushError

_DAY = 86_400.0


def serve(place: FederationFolder, say: Callable[[str], None], host: str | None = None) -> None:
    """Run the SuperLink until the process is stopped."""
    from hush.deploy.transport.flower import CoordinatorClient, superlink

    files, settings = place.certificate(), place.settings
    listen = host or settings.host
    check_port(listen, settings.port)
    doors, instances = Listed(), Instances()
    watch = CertificateWatch(place, say)

    def keep() -> None:
        hub = CoordinatorClient(
            settings.address if host is None else f"{_client_address(host)}:{settings.port}", place.ca(), place.secret()
        )
        listed: dict[str, bytes] | None = None
        complaints: set[str] = set()

        def complain(error: HushError) -> None:
            if str(error) not in complaints:
                complaints.add(str(error))
                say(f"members: {error}")

        while True:
            try:
                watch.look()
            except HushError as error:
                complain(error)
            try:
                now = place.members(complain)
                if now != listed:
                    synchronise(place, hub, now)
                    doors.name(now.values())
                    if listed is None:
                        say(f"ready at {settings.address}, {len(now)} members registered")
                    listed = now
                for name in note_copied_kits(place, now, instances.copied_keys()):
                    say(f"members: {name}: a second process tried to use its key; the first stays connected")
            except HushError as error:
                complain(error)
            time.sleep(0.5)

    def facts() -> dict[str, Any]:
        names = {b64encode(key): name for name, key in place.members(lambda error: None).items()}
        heard = {
            names[key]: time.time() - ago for key, ago in instances.seconds_since_request().items() if key in names
        }
        return {"address": settings.address, "heard": heard}

    # uvicorn raises the signal again after it has shut down: without a handler, the presence would not be removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=keep, daemon=True).start()
    downloads = Downloads(place, AuditLog(place.server / "audit.jsonl").note)
    with presence_file(place.server, facts):
        superlink(listen, settings.port, files, place.secret(), doors, instances, downloads, watch.renewing)


class CertificateWatch:
    """Has a running server use a renewed certificate, and warns every day of one that ends soon."""

    def __init__(
        self, place: FederationFolder, say: Callable[[str], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._place, self._say, self._clock = place, say, clock
        self._file = place.server / "server.crt"
        self._seen = self._before = self._changed()
        self._last_warning = -_DAY
        self._reload: Callable[[], None] = lambda: None

    def renewing(self, reload: Callable[[], None]) -> None:
        """Set what has the server use the files as they are now."""
        self._reload = reload

    def look(self) -> None:
        """Look at the files once; a certificate that members would not trust is a `HushError`, and is not used."""
        changed, before = self._changed(), self._before
        self._before = changed
        # Not between two steps of a renewal: nothing has changed since the last look.
        if changed != self._seen and changed == before and all(changed):
            self._place.certificate()
            self._reload()
            self._seen = changed
            self._last_warning = -_DAY
            self._say(f"certificate: renewed, valid until {keys.validity(self._file)[1]:%Y-%m-%d}")
        if self._clock() - self._last_warning > _DAY:
            self._last_warning = self._clock()
            now = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
            found = certificate("server.crt", keys.validity(self._file), "hush federation renew", now)
            if found.level != "ok":
                self._say(f"certificate: {found.words}; {found.remedy}")

    def _changed(self) -> tuple[int, int]:
        """When the certificate and its key were written; 0 for one that is missing, as between two steps of renewal."""
        times = []
        for file in (self._file, self._place.server / "server.key"):
            try:
                times.append(file.stat().st_mtime_ns)
            except FileNotFoundError:
                times.append(0)
        return times[0], times[1]


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


def note_copied_kits(place: FederationFolder, members: Mapping[str, bytes], keys: Iterable[bytes]) -> list[str]:
    """The members whose keys (base64) a second process tried to use, each noted in the audit trail."""
    names = {b64encode(key): name for name, key in members.items()}
    found = [names[key] for key in keys if key in names]
    for name in found:
        AuditLog(place.server / "audit.jsonl").note("copied", member=name)
    return found


def _client_address(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host
