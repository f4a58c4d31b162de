"""A coordinator and its members in one process, without a network: messages are handed over, or lost on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hush.config import Config
from hush.deploy.admin import localhost
from hush.deploy.admin.folders import open_kit
from hush.deploy.coordinator import exchange
from hush.deploy.coordinator.run import Coordinator
from hush.deploy.member import service
from hush.deploy.member.process import Node
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Buffer, EncodedMessage
from hush.types import HushError

# Called with the member, the kind of a message and its fields: "" or when its process ends, "before" or "after" it.
Dies = Callable[[str, str, Mapping[str, Any]], str]
# Called with a member and an honest message, before it is handed over: what a hostile coordinator may try first.
Looks = Callable[[Node, messages.Message], None]


@dataclass(frozen=True)
class Present:
    key: bytes
    node: int
    since: str


class UnreliableHub:
    """Hands each message to its member at once; a member that died comes back when the next round begins."""

    def __init__(self, federation: UnreliableMembers, dies: Dies, looks: Looks) -> None:
        self._federation, self._dies, self._looks = federation, dies, looks
        self._replies: dict[str, bytes] = {}
        self._dead: set[str] = set()
        self._round = 0
        self.seen: list[tuple[str, str]] = []

    def open(self) -> None:
        return

    def limit(self, cap: int, seconds: float) -> None:
        return

    def online(self) -> list[Any]:
        return [
            Present(key, number, f"since {self._federation.starts[name]}")
            for number, (name, key) in enumerate(self._federation.keys.items())
            if name not in self._dead
        ]

    def send(self, outgoing: Mapping[int, EncodedMessage], ttl: float) -> dict[int, str]:
        names = list(self._federation.keys)
        sent = {}
        for number, parcel in outgoing.items():
            name, content = names[number], b"".join([parcel.head, *parcel.body])
            message = messages.decode(content, len(content))
            self._revive(message)
            if name in self._dead:
                continue
            self.seen.append((name, message.kind))
            self._looks(self._federation.nodes[name], message)
            when = self._dies(name, message.kind, message.fields)
            if when != "before":
                node = self._federation.nodes[name]
                payload, receipt = node.handle(content)
                if receipt is not None and when == "":
                    node.ledger.sent(receipt)
                sent[number] = f"{name}-{len(self.seen)}"
                if when == "":
                    self._replies[sent[number]] = payload
            if when:
                self._dead.add(name)
        return sent

    def _revive(self, message: messages.Message) -> None:
        """With the first message of a round, those that died are back, as new processes."""
        number = message.fields.get("round", 0)
        if number != self._round:
            self._round = number
            for name in self._dead:
                self._federation.restart(name)
            self._dead.clear()

    def collect(self, names: Sequence[str], cap: int, wait: float = 0.0) -> list[tuple[str, Buffer | HushError]]:
        return [(name, self._replies.pop(name)) for name in names if name in self._replies]

    def close(self, status: str = "completed", details: str = "") -> None:
        return


class UnreliableMembers:
    """A federation on localhost, whose members are objects here."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.place = localhost.make(path, config, times={"deadline": 60.0, "patience": 60.0, "gather": 5.0})
        self.keys = self.place.members()
        for policy in path.glob("kits/*/policy.toml"):
            policy.write_text(re.sub(r"# lifetime = .*", "lifetime = 100.0", policy.read_text()))
        self.nodes: dict[str, Node] = {}
        self.starts = dict.fromkeys(self.keys, 0)
        for name in self.keys:
            self.restart(name)

    def restart(self, name: str) -> None:
        if name in self.nodes:
            self.nodes[name].ledger.close()
        kit = open_kit(self.path / "kits" / name)
        self.nodes[name] = service.prepare(kit, kit.path / "policy.toml", kit.path / "data.npz")
        self.starts[name] += 1

    def coordinator(
        self, dies: Dies = lambda name, kind, fields: "", looks: Looks = lambda node, message: None
    ) -> tuple[Coordinator, UnreliableHub]:
        hub = UnreliableHub(self, dies, looks)
        return localhost.coordinator(self.place, 10, hub), hub

    def close(self) -> None:
        for node in self.nodes.values():
            node.ledger.close()


def without_pauses(patch: pytest.MonkeyPatch) -> None:
    """Members here answer at once or never: nobody is waited for."""
    patch.setattr(exchange, "_LOOK", 0.001)
    patch.setattr(exchange, "_LEAST", 0.001)
