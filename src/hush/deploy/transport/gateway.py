"""The gateway in front of a SuperLink: Flower trusts whoever reaches its port with all but the nodes' part of it.

Flower's control and runtime interfaces (register a node, start a run, take a task) share the nodes' port and ask for
no password. Behind this gate they need the coordinator's secret. Nothing is read that announces no size, sends in
chunks, or has a header twice. And the coordinator of each run says how long an answer can be: no node sends a longer
request, nor more than a few such answers a round. Several runs have a limit each. Flower tells a stranger's key no
different from one in use. The gate does, so that a member hears at once what is wrong. And it lets one process speak
for a key: a copy of a member's kit is refused for as long as the first process is heard of, and both are told.
"""

from __future__ import annotations

import hmac
import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SECRET_HEADER = "hush-coordinator"
LIMIT_PATH, LIMIT_HEADER, RUN_HEADER, SECONDS_HEADER = "/hush/limit", "hush-limit", "hush-run", "hush-seconds"
INSTANCE_HEADER, COPIED_HEADER = "hush-instance", "hush-copied"
UNLISTED, COPIED = b"this key is not listed", b"another process uses this key"
REQUEST_CAP = 8 << 20
SILENCE = 4.0  # seconds after which a process is taken for dead: an honest one is heard every second
_FRAME = 1 << 16
_AGAIN = 60.0
_ANSWERS = 4
_KEY_HEADER = b"flwr-public-key"
_NODE_PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "push-object",
        "pull-object", "confirm-message-received",
    )
)  # fmt: skip
_UPLOAD, _LEAVE = "/v1/fleet/push-object", "/v1/fleet/deactivate-node"


class Listed:
    """The public keys (PEM) that are let in; nobody knows before they are named for the first time."""

    def __init__(self) -> None:
        self._keys: frozenset[bytes] | None = None

    def name(self, keys: Iterable[bytes]) -> None:
        """From now on these."""
        self._keys = frozenset(b64encode(key) for key in keys)

    def fault(self, key: bytes) -> tuple[int, bytes] | None:
        """What a request with this header is answered, if it does not pass."""
        if self._keys is None:
            return 503, b"not ready yet"
        return None if key in self._keys else (403, UNLISTED)


class Instances:
    """Which process speaks for each key: the first that Flower let in, until it signs off or falls silent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[bytes, tuple[bytes, float]] = {}
        self._noted: dict[bytes, float] = {}
        self._told: set[bytes] = set()
        self._copied: set[bytes] = set()

    def taken(self, key: bytes, instance: bytes) -> bool:
        """Whether another process than this one speaks for the key."""
        holder, heard = self._held.get(key, (instance, 0.0))
        return holder != instance and self._clock() - heard < SILENCE

    def hold(self, key: bytes, instance: bytes) -> None:
        """This process was heard of."""
        self._held[key] = (instance, self._clock())

    def release(self, key: bytes) -> None:
        """The process of this key has signed off."""
        self._held.pop(key, None)

    def refuse(self, key: bytes) -> None:
        """Note that a second process tried to use the key; once a minute, however often it tries."""
        if self._clock() - self._noted.get(key, -_AGAIN) < _AGAIN:
            return
        self._noted[key] = self._clock()
        self._told.add(key)
        self._copied.add(key)

    def told(self, key: bytes) -> bool:
        """Whether the holder of a key has yet to be told of a second process."""
        known = key in self._told
        self._told.discard(key)
        return known

    def copied(self) -> list[bytes]:
        """The keys (base64 of PEM) that a second process tried to use since the last call, for the operator."""
        found = sorted(self._copied)
        self._copied.difference_update(found)
        return found


@dataclass
class _Allowance:
    """What the members of one run may send until its coordinator asks anew: each a few answers of `size` bytes."""

    size: int
    ends: float
    sent: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))

    def room(self, key: bytes, size: int) -> bool:
        """Whether a request of this size is still within what a node may send."""
        return self.sent[key] + size <= _ANSWERS * self.size


class Gateway:
    """What every request passes before Flower sees it.

    `genuine` says whether the headers of a node's request are signed with its key; without it all are taken to be.
    """

    def __init__(
        self, app: Callable[..., Awaitable[None]], secret: str, cap: int = REQUEST_CAP, listed: Listed | None = None,
        instances: Instances | None = None, genuine: Callable[[Mapping[bytes, bytes]], bool] = lambda headers: True,
    ) -> None:  # fmt: skip
        self._app, self._listed, self._genuine = app, listed, genuine
        self._secret = secret.encode()
        self._most = cap
        self._instances = instances or Instances()
        self._runs: dict[bytes, _Allowance] = {}
        self._between = _Allowance(cap, float("inf"))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse by path, secret, announced size and process; pass on the rest."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, path = dict(scope["headers"]), scope["path"]
        if len(headers) != len(scope["headers"]):
            # This gate would read the last of two keys, and Flower the first: one member could speak for another here.
            return await _answer(send, 400, b"a header is there twice")
        if b"transfer-encoding" in headers:
            # It would hold, and not the size that is announced beside it.
            return await _answer(send, 411, b"a request must announce its size")
        of_node = path in _NODE_PATHS
        if not of_node and not hmac.compare_digest(headers.get(SECRET_HEADER.encode(), b""), self._secret):
            return await _answer(send, 403, b"not for nodes")
        size = headers.get(b"content-length", b"")
        if scope["method"] == "POST" and not size.isdigit():
            return await _answer(send, 411, b"a request must announce its size")
        if path == LIMIT_PATH:
            return await self._limit(headers, send)
        if not of_node:
            return await self._app(scope, receive, send)
        return await self._node(headers, path, int(size or b"0"), scope, receive, send)

    async def _limit(self, headers: Mapping[bytes, bytes], send: Any) -> None:
        """The coordinator of a run asks anew: from now on its answers are of at most this size; 0 ends the run."""
        wanted, run = headers.get(LIMIT_HEADER.encode(), b""), headers.get(RUN_HEADER.encode(), b"")
        seconds = headers.get(SECONDS_HEADER.encode(), b"")
        if not wanted.isdigit() or not run or not seconds.isdigit():
            return await _answer(send, 400, b"a limit is a number of bytes, of a run, for some seconds")
        now = time.monotonic()
        # A coordinator that died takes nothing back: what it allowed ends with the time that it gave.
        self._runs = {name: each for name, each in self._runs.items() if each.ends > now and name != run}
        if int(wanted):
            self._runs[run] = _Allowance(int(wanted) + _FRAME, now + int(seconds))
            self._between = _Allowance(self._most, float("inf"))
        return await _answer(send, 200, b"")

    def _allowances(self, size: int) -> list[_Allowance]:
        """The runs whose answers can be of this size, the narrowest first; between runs one allowance for all."""
        now = time.monotonic()
        runs = [each for each in self._runs.values() if each.ends > now] or [self._between]
        return sorted((each for each in runs if size <= each.size), key=lambda each: each.size)

    async def _node(self, headers: Mapping[bytes, bytes], path: str, size: int, *rest: Any) -> None:
        """A member's request. What it sends is counted, so that nobody fills the memory."""
        scope, receive, send = rest
        key, instance = headers.get(_KEY_HEADER, b""), headers.get(INSTANCE_HEADER.encode(), b"")
        if self._listed and (fault := self._listed.fault(key)):
            return await _answer(send, *fault)
        fitting = self._allowances(size) if size <= self._most else []
        if not fitting:
            return await _answer(send, 413, b"larger than this federation allows")
        allowance = next((each for each in fitting if each.room(key, size)), None)
        if path == _UPLOAD and allowance is None:
            return await _answer(send, 413, b"more than this federation allows in a round")
        if self._instances.taken(key, instance) and self._genuine(headers):
            self._instances.refuse(key)
            return await _answer(send, 409, COPIED)

        async def noted(event: Any) -> None:
            # Only what Flower took: whoever merely names another's key is turned away there.
            if event["type"] == "http.response.start" and event["status"] < 300:
                if allowance is not None and path == _UPLOAD:
                    allowance.sent[key] += size
                if path == _LEAVE:
                    self._instances.release(key)
                else:
                    self._instances.hold(key, instance)
                if self._instances.told(key):
                    event = {**event, "headers": [*event["headers"], (COPIED_HEADER.encode(), b"1")]}
            await send(event)

        return await self._app(scope, receive, noted)


async def _answer(send: Any, status: int, words: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words})
