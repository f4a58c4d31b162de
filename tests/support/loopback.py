"""Members in this process and a hub that hands them messages directly: a whole federation without a network."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.config import Config
from hush.deploy.admin import localhost
from hush.deploy.admin.folders import FederationFolder, open_kit
from hush.deploy.coordinator.run import Coordinator
from hush.deploy.member.process import Node
from hush.deploy.member.service import prepare
from hush.deploy.transport.inbox import Peer
from hush.deploy.transport.messages import Buffer, EncodedMessage
from hush.privacy.ledger.statement import export
from hush.types import HushError
from tests.support import live_federation


class Loopback:
    """A federation in a folder. `seen` has every message and its answer, by member."""

    def __init__(self, path: Path, config: Config, *, place: FederationFolder | None = None) -> None:
        self.place = place or localhost.make(path, config)
        self.nodes: dict[str, Node] = {}
        self.seen: list[tuple[str, bytes, bytes]] = []

    def join(self, *names: str) -> None:
        """Start these members, or all; a member that runs is started again."""
        for name in names or self.place.members():
            self.leave(name)
            kit = open_kit(self.place.path / "kits" / name)
            self.nodes[name] = prepare(kit, kit.path / "policy.toml", kit.path / "data.npz")

    def leave(self, *names: str) -> None:
        for name in names or tuple(self.nodes):
            if node := self.nodes.pop(name, None):
                node.ledger.close()

    def coordinator(self) -> Coordinator:
        return localhost.coordinator(self.place, live_federation.CLASSES, _Hub(self))

    def charges(self) -> dict[str, list[tuple[str, int]]]:
        """The run and the round of every charge, by member."""
        return {
            name: [(r["run"], r["round"]) for r in export(node.ledger.where) if r["kind"] == "RESERVED"]
            for name, node in self.nodes.items()
        }


class _Hub:
    def __init__(self, federation: Loopback) -> None:
        self._federation, self._messages = federation, dict[str, tuple[str, bytes]]()

    def open(self) -> None:
        pass

    def limit(self, cap: int, seconds: float) -> None:
        pass

    def online(self) -> list[Peer]:
        keys = self._federation.place.members()
        return [
            Peer(keys[name], number, True, "") for number, name in enumerate(keys) if name in self._federation.nodes
        ]

    def send(self, outgoing: Mapping[int, EncodedMessage], ttl: float) -> dict[int, str]:
        names = list(self._federation.place.members())
        sent = {number: uuid.uuid4().hex for number in outgoing}
        for number, name in sent.items():
            message = outgoing[number]
            self._messages[name] = (names[number], b"".join([message.head, *message.body]))
        return sent

    def collect(self, names: Sequence[str], cap: int, wait: float = 0.0) -> list[tuple[str, Buffer | HushError]]:
        found: list[tuple[str, Buffer | HushError]] = []
        for message in names:
            if message in self._messages:
                name, content = self._messages.pop(message)
                node = self._federation.nodes[name]
                payload, receipt = node.handle(content)
                if receipt is not None:
                    node.ledger.sent(receipt)
                self._federation.seen.append((name, content, bytes(payload)))
                found.append((message, payload))
        return found

    def close(self, status: str = "completed", details: str = "") -> None:
        pass


def edited(policy: Path, **values: Any) -> None:
    """Change keys of a policy in place."""
    lines = policy.read_text().splitlines()
    for key, value in values.items():
        lines = [f"{key} = {value}" if line.lstrip("# ").startswith(f"{key} =") else line for line in lines]
    policy.write_text("\n".join(lines) + "\n")
