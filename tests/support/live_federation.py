"""A real SuperLink in its own process, and members that speak its protocol from threads, honest or not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hush.config import Config, parse
from hush.deploy.admin import keys, localhost
from hush.deploy.admin.folders import FederationFolder, open_kit
from hush.deploy.coordinator.run import Coordinator
from hush.deploy.member import service
from hush.deploy.transport import messages
from hush.deploy.transport.flower import NodeClient
from hush.privacy.ledger.statement import export
from tests.support.fork_server import Child, ForkServer

CLASSES = 10
Twist = Callable[[bytes, bytes], bytes | None]


def config(members: int = 3, rounds: int = 3, **more: Any) -> Config:
    """Seeded, so that a run can be compared with its simulation."""
    return parse(
        {
            "seed": 5, "rounds": rounds, "data": {"name": "digits", "clients": members},
            "privacy": {"budgets": 2.0, "delta": 1e-4, "noise": "seeded"},
            "local": {"batch_size": 64, "lr": 0.5}, "recipe": {"name": "robust-hdp"}, **more,
        }
    )  # fmt: skip


class Member:
    """A member in a thread. `twist` gets the task and the honest answer, and gives what is sent in its place."""

    def __init__(self, place: FederationFolder, name: str, twist: Twist | None = None) -> None:
        self.kit = open_kit(place.path / "kits" / name)
        self.line = NodeClient(self.kit.address, self.kit.ca(), self.kit.key())
        self.going, self.quietly, self.fault, self.replies = True, False, "", 1
        self._twist_ = twist
        self._ready = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        assert self._ready.wait(30), self.fault

    def leave(self, quietly: bool = False) -> None:
        """Stop, as a process that is killed would (quietly), or signing off."""
        self.going, self.quietly = False, quietly
        self.thread.join(20)

    def charges(self) -> int:
        """How often its ledger was charged."""
        return sum(row["kind"] == "RESERVED" for row in export(self.kit.ledger))

    def _serve(self) -> None:
        # A ledger belongs to the thread that opened it.
        path = self.kit.path
        self.node = service.prepare(self.kit, path / "policy.toml", path / "data.npz")
        try:
            if self._twist_ is not None:
                self._twist(self._twist_)
            service.report(self.kit, self.line)
            self._ready.set()
            service.serve(self.node, self.line, lambda: self.going)
        except Exception as error:
            self.fault = repr(error)
        finally:
            self.line.drop() if self.quietly else self.line.close()
            self.node.ledger.close()

    def _twist(self, twist: Twist) -> None:
        honest = self.node.handle

        def handle(content: messages.Buffer) -> tuple[bytes, Any]:
            payload, receipt = honest(content)
            if messages.decode(content, 1 << 30).kind != "task":
                return payload, receipt
            changed = twist(bytes(content), payload)
            return payload if changed is None else changed, receipt

        self.node.handle = handle  # type: ignore[method-assign]


class LiveFederation:
    """A federation with a SuperLink of its own."""

    def __init__(self, path: Path, members: int = 3) -> None:
        times = {"deadline": 30.0, "patience": 30.0, "gather": 20.0}
        self.place = localhost.make(path, config(members, 40), times=times)
        for policy in path.glob("kits/*/policy.toml"):
            text = policy.read_text().replace("# lifetime = 2.0", "lifetime = 100.0")
            policy.write_text(text.replace('["robust-hdp"]', '["any"]'))
        self.link: Child
        self.runs = 0

    @contextlib.contextmanager
    def up(self, server: ForkServer) -> Iterator[LiveFederation]:
        with server.tidy():
            self.link = server.start(["federation", "serve", self.place.path], self.place.server / "superlink.log")
            self.link.wait_for("ready at", 120)
            yield self

    @contextlib.contextmanager
    def members(self, **twists: Twist | None) -> Iterator[dict[str, Member]]:
        """All members, some of them with a twist."""
        present = {name: Member(self.place, name, twists.get(name)) for name in self.place.members()}
        try:
            yield present
        finally:
            for each in present.values():
                if each.going:
                    each.leave()

    def coordinator(self) -> Coordinator:
        return localhost.coordinator(self.place, CLASSES)

    def out(self) -> Path:
        self.runs += 1
        return self.place.runs / f"run{self.runs}"


def resigned(
    place: FederationFolder, name: str, payload: bytes, change: Callable[[messages.Message], messages.Message]
) -> bytes:
    """An answer changed by its own member, so that its signature is good."""
    key = open_kit(place.path / "kits" / name).key()
    message = messages.decode(keys.opened(key.public_key(), payload), len(payload))
    return keys.signed(key, messages.encode(change(message)))


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
