"""The gateway in front of a SuperLink. Flower trusts every client that reaches its port, except for node requests.

Flower's control and runtime interfaces (register a node, start a run, take a task) share a port with the nodes and
require no password. The gateway requires the coordinator's secret for them. It rejects requests without a declared
size, with chunked bodies, or with duplicate headers. The coordinator of each run sets the maximum size of an answer: a
node can send neither a larger request nor more than a few such answers per round. Every run has its own limit. The
gateway also reports unlisted keys and keys in use as different errors, which Flower does not. And it binds a key to one
process: a copy of a member's kit is refused while the first process is active, and both are notified.
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
SILENCE = 4.0  # seconds after which a process is considered dead: a live one sends a request every second
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
    """The accepted public keys (PEM); unknown until they are set for the first time."""

    def __init__(self) -> None:
        self._keys: frozenset[bytes] | None = None

    def name(self, keys: Iterable[bytes]) -> None:
        """Set the accepted keys."""
        self._keys = frozenset(b64encode(key) for key in keys)

    def fault(self, key: bytes) -> tuple[int, bytes] | None:
        """Return the error for a request with this header, if it must be rejected."""
        if self._keys is None:
            return 503, b"not ready yet"
        return None if key in self._keys else (403, UNLISTED)


class Instances:
    """Which process uses each key: the first that Flower accepted, until it unregisters or is silent for too long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[bytes, tuple[bytes, float]] = {}
        self._noted: dict[bytes, float] = {}
        self._told: set[bytes] = set()
        self._copied: set[bytes] = set()

    def taken(self, key: bytes, instance: bytes) -> bool:
        """Whether a process other than this one uses the key."""
        holder, heard = self._held.get(key, (instance, 0.0))
        return holder != instance and self._clock() - heard < SILENCE

    def hold(self, key: bytes, instance: bytes) -> None:
        """Record a request of this process."""
        self._held[key] = (instance, self._clock())

    def release(self, key: bytes) -> None:
        """Record that the process of this key has unregistered."""
        self._held.pop(key, None)

    def refuse(self, key: bytes) -> None:
        """Record that a second process tried to use the key; at most once per minute."""
        if self._clock() - self._noted.get(key, -_AGAIN) < _AGAIN:
            return
        self._noted[key] = self._clock()
        self._told.add(key)
        self._copied.add(key)

    def must_notify(self, key: bytes) -> bool:
        """Whether the process that uses a key must still be notified of a second one."""
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
    """What the members of one run may send until its coordinator calls again: each a few answers of `size` bytes."""

    size: int
    ends: float
    sent: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))

    def room(self, key: bytes, size: int) -> bool:
        """Whether a node may still send a request of this size."""
        return self.sent[key] + size <= _ANSWERS * self.size


class Gateway:
    """The ASGI middleware that every request passes before it reaches Flower.

    `genuine` checks that the headers of a node's request are signed with its key; without it, all are accepted as
    signed.
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
        """Reject by path, secret, declared size and process; forward the rest."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, path = dict(scope["headers"]), scope["path"]
        if len(headers) != len(scope["headers"]):
            # With duplicate keys, the gateway would read the last and Flower the first: one member could impersonate
            # another.
            return await _answer(send, 400, b"a header is there twice")
        if b"transfer-encoding" in headers:
            # A chunked body would override the declared size.
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
        """Set the maximum size of answers to a run; 0 ends the run."""
        wanted, run = headers.get(LIMIT_HEADER.encode(), b""), headers.get(RUN_HEADER.encode(), b"")
        seconds = headers.get(SECONDS_HEADER.encode(), b"")
        if not wanted.isdigit() or not run or not seconds.isdigit():
            return await _answer(send, 400, b"a limit is a number of bytes, of a run, for some seconds")
        now = time.monotonic()
        # The limit of a coordinator that died is never revoked, so it expires.
        self._runs = {name: each for name, each in self._runs.items() if each.ends > now and name != run}
        if int(wanted):
            self._runs[run] = _Allowance(int(wanted) + _FRAME, now + int(seconds))
            self._between = _Allowance(self._most, float("inf"))
        return await _answer(send, 200, b"")

    def _allowances(self, size: int) -> list[_Allowance]:
        """The runs that allow answers of this size, the smallest limit first; one shared allowance between runs."""
        now = time.monotonic()
        runs = [each for each in self._runs.values() if each.ends > now] or [self._between]
        return sorted((each for each in runs if size <= each.size), key=lambda each: each.size)

    async def _node(self, headers: Mapping[bytes, bytes], path: str, size: int, *rest: Any) -> None:
        """Handle a member's request. Its bytes are counted, so that no member fills the memory."""
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
            # Only requests that Flower accepted count: Flower rejects those that name another node's key.
            if event["type"] == "http.response.start" and event["status"] < 300:
                if allowance is not None and path == _UPLOAD:
                    allowance.sent[key] += size
                if path == _LEAVE:
                    self._instances.release(key)
                else:
                    self._instances.hold(key, instance)
                if self._instances.must_notify(key):
                    event = {**event, "headers": [*event["headers"], (COPIED_HEADER.encode(), b"1")]}
            await send(event)

        return await self._app(scope, receive, noted)


async def _answer(send: Any, status: int, words: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words})
