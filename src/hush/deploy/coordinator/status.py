"""Status of a federation, from its folder and its SuperLink."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hush.deploy.admin.folders import FederationFolder
from hush.deploy.coordinator import queue
from hush.server.run_directory import MANIFEST, RESULT, ROUNDS, read_json
from hush.types import HushError


def federation_status(place: FederationFolder) -> dict[str, Any]:
    """Return the members, whether they are online, and the progress of each run."""
    from hush.deploy.transport.flower import CoordinatorClient

    members = place.members()
    online: set[bytes] = set()
    try:
        hub = CoordinatorClient(place.settings.address, place.ca(), place.secret(), patience=0.0)
        with closing(hub):
            online = {peer.key for peer in hub.peers() if peer.online}
        up, fault = True, ""
    except HushError as error:
        up, fault = False, str(error)
    states = {name: "online" if key in online else "offline" for name, key in members.items()}
    heads = place.heads()
    return {
        "address": place.settings.address,
        "up": up,
        "fault": fault,
        "members": states,
        "seen": {name: heads.get(name, "") for name in members},
        "runs": runs_of(place),
        "queue": queue.shown(place),
    }


def runs_of(place: FederationFolder) -> list[dict[str, Any]]:
    """Return the progress of each run."""
    return [_run(path) for path in sorted(place.runs.glob("*")) if (path / MANIFEST).exists()]


def _run(path: Any) -> dict[str, Any]:
    manifest = read_json(path / MANIFEST)
    lines = (path / ROUNDS).read_bytes().count(b"\n") if (path / ROUNDS).exists() else 0
    state = "finished" if (path / RESULT).exists() else "not finished"
    return {"run": path.name, "state": state, "round": lines, "rounds": manifest["config"]["rounds"]}
