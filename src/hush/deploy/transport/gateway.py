"""The gateway in front of a SuperLink. Flower trusts every client that reaches its port, except for node requests.

Flower's control and runtime interfaces (register a node, start a run, take a task) share a port with the nodes and
require no password. The gateway requires the coordinator's secret for them. It rejects requests without a declared
size, with chunked bodies, or with duplicate headers. Messages do not pass Flower but the gateway's own mailbox
(`hush.deploy.transport.mailbox`): of Flower's interface, nodes reach only what registers them and keeps them
online. The coordinator of each run sets the maximum size of an answer; every run has its own limit. The gateway also
reports unlisted keys and keys in use as different errors, which Flower does not. And it binds a key to one process: a
copy of a member's kit is refused while the first process is active, and both are notified.
"""

from __future__ import annotations

import hmac
import json
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hush.deploy.transport import about, mailbox
from hush.deploy.transport.downloads import PATH, Downloads
from hush.deploy.transport.mailbox import Mailbox, Reply, read_body, replier
from hush.types import HushError

SECRET_HEADER = "hush-coordinator"
LIMIT_PATH, LIMIT_HEADER, RUN_HEADER, SECONDS_HEADER = "/hush/limit", "hush-limit", "hush-run", "hush-seconds"
INSTANCE_HEADER, COPIED_HEADER = "hush-instance", "hush-copied"
UNLISTED, COPIED = b"this key is not listed", b"another process uses this key"
NOT_ACTIVE = b"this node is not active"
REQUEST_CAP = 1 << 16  # bytes of a node's request to Flower: a public key and some numbers
SILENCE = 4.0  # seconds after which a process is considered dead: a live one sends a request every second
_PART = 1 << 20
_AGAIN = 60.0
_KEY_HEADER = b"flwr-public-key"
_JOIN, _LEAVE = "/v1/fleet/activate-node", "/v1/fleet/deactivate-node"
_FLOWER_PATHS = frozenset({_JOIN, _LEAVE, "/v1/fleet/send-node-heartbeat"})
_NODE_PATHS = _FLOWER_PATHS | {mailbox.NEXT_PATH, mailbox.ANSWER_PATH}


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
        self._users: dict[bytes, tuple[bytes, float]] = {}
        self._noted: dict[bytes, float] = {}
        self._unnotified: set[bytes] = set()
        self._copied: set[bytes] = set()

    def is_in_use(self, key: bytes, instance: bytes) -> bool:
        """Whether a process other than this one uses the key."""
        holder, heard = self._users.get(key, (instance, 0.0))
        return holder != instance and self._clock() - heard < SILENCE

    def record_request(self, key: bytes, instance: bytes) -> None:
        """Record a request of this process."""
        self._users[key] = (instance, self._clock())

    def release(self, key: bytes) -> None:
        """Record that the process of this key has unregistered."""
        self._users.pop(key, None)

    def refuse(self, key: bytes) -> None:
        """Record that a second process tried to use the key; at most once per minute."""
        if self._clock() - self._noted.get(key, -_AGAIN) < _AGAIN:
            return
        self._noted[key] = self._clock()
        self._unnotified.add(key)
        self._copied.add(key)

    def must_notify(self, key: bytes) -> bool:
        """Whether the process that uses a key must still be notified of a second one."""
        known = key in self._unnotified
        self._unnotified.discard(key)
        return known

    def seconds_since_request(self) -> dict[bytes, float]:
        """For each key (base64 of PEM) that is in use, how many seconds ago its process sent a request."""
        now = self._clock()
        return {key: now - at for key, (_, at) in list(self._users.items())}

    def copied_keys(self) -> list[bytes]:
        """The keys (base64 of PEM) that a second process tried to use since the last call, for the operator."""
        found = sorted(self._copied)
        self._copied.difference_update(found)
        return found


class Gateway:
    """The ASGI middleware that every request passes before it reaches Flower or the mailbox.

    `genuine` checks that the headers of a node's request are signed with its key, and when; without it, all are
    accepted as signed.
    """

    def __init__(
        self, app: Callable[..., Awaitable[None]], secret: str, cap: int = REQUEST_CAP, listed: Listed | None = None,
        instances: Instances | None = None, genuine: Callable[[Mapping[bytes, bytes]], bool] = lambda headers: True,
        post: Mailbox | None = None, downloads: Downloads | None = None,
    ) -> None:  # fmt: skip
        self._downloads = downloads
        self._about = about.About(downloads.member, secret, SECRET_HEADER) if downloads else None
        self._app, self._listed, self._genuine = app, listed, genuine
        self._secret, self._most = secret.encode(), cap
        self._instances = instances or Instances()
        self._mailbox = post or Mailbox()
        self._active: set[bytes] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Reject by path, secret, declared size and process; forward the rest."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, path, reply = dict(scope["headers"]), scope["path"], replier(send)
        if len(headers) != len(scope["headers"]):
            # With duplicate keys, the gateway would read the last and Flower the first: one member could impersonate
            # another.
            return await reply(400, [b"a header is there twice"], {})
        if b"transfer-encoding" in headers:
            # A chunked body would override the declared size.
            return await reply(411, [b"a request must announce its size"], {})
        if self._downloads and scope["method"] == "GET" and (path == PATH or path.startswith(f"{PATH}/")):
            return await _download(send, *self._downloads.answer(path, headers))
        if self._about and scope["method"] == "GET" and path == about.PATH:
            status, content = self._about.answer(headers, lambda key: key in self._instances.seconds_since_request())
            return await reply(status, [content], {})
        of_node = path in _NODE_PATHS
        if not of_node and not hmac.compare_digest(headers.get(SECRET_HEADER.encode(), b""), self._secret):
            return await reply(403, [b"not for nodes"], {})
        size = headers.get(b"content-length", b"")
        if scope["method"] == "POST" and not size.isdigit():
            return await reply(411, [b"a request must announce its size"], {})
        if of_node:
            return await self._node(headers, path, int(size or b"0"), scope, receive, send)
        if path in (LIMIT_PATH, mailbox.SEND_PATH, mailbox.COLLECT_PATH):
            return await self._coordinator(headers, path, int(size or b"0"), receive, reply)
        return await self._app(scope, receive, send)

    async def _coordinator(
        self, headers: Mapping[bytes, bytes], path: str, size: int, receive: Any, reply: Reply
    ) -> None:
        """Set the limit of a run, take its messages, or give their answers."""
        run = headers.get(RUN_HEADER.encode(), b"")
        wanted, seconds = headers.get(LIMIT_HEADER.encode(), b""), headers.get(SECONDS_HEADER.encode(), b"")
        if path == LIMIT_PATH:
            if not wanted.isdigit() or not run or not seconds.isdigit():
                return await reply(400, [b"a limit is a number of bytes, of a run, for some seconds"], {})
            # The limit of a coordinator that died is never revoked, so it expires.
            self._mailbox.limit(run, int(wanted), int(seconds))
            return await reply(200, [], {})
        body = await read_body(receive, size)
        try:
            if path == mailbox.SEND_PATH:
                return await self._mailbox.send(run, body, reply)
            asked = json.loads(b"".join(body))
            names, wait = [str(name) for name in asked["names"]], float(asked["wait"])
        except (HushError, ValueError, TypeError, KeyError, AttributeError):
            return await reply(400, [b"malformed"], {})
        return await self._mailbox.collect(run, names, wait, _disconnected(receive), reply)

    async def _node(self, headers: Mapping[bytes, bytes], path: str, size: int, *rest: Any) -> None:
        """Handle a member's request."""
        scope, receive, send = rest
        reply = replier(send)
        key, instance = headers.get(_KEY_HEADER, b""), headers.get(INSTANCE_HEADER.encode(), b"")
        if self._listed and (fault := self._listed.fault(key)):
            return await reply(fault[0], [fault[1]], {})
        flower = path in _FLOWER_PATHS
        if path != mailbox.ANSWER_PATH and size > self._most:
            return await reply(413, [b"larger than this federation allows"], {})
        if not flower and not self._genuine(headers):
            return await reply(401, [b"not signed by this key, or not now"], {})
        if self._instances.is_in_use(key, instance) and (not flower or self._genuine(headers)):
            self._instances.refuse(key)
            return await reply(409, [COPIED], {})

        async def noted(event: Any) -> None:
            # Only requests that were accepted count: Flower rejects those that name another node's key.
            if event["type"] == "http.response.start" and event["status"] < 300:
                if path == _LEAVE:
                    self._instances.release(key)
                    self._active.discard(key)
                else:
                    self._instances.record_request(key, instance)
                    self._active |= {key} if path == _JOIN else set()
                    if path == _JOIN and self._about:
                        self._about.note(key, headers)
                if self._instances.must_notify(key):
                    event = {**event, "headers": [*event["headers"], (COPIED_HEADER.encode(), b"1")]}
            await send(event)

        if flower:
            return await self._app(scope, receive, noted)
        if key not in self._active:
            # As after a restart of the SuperLink: the member registers again, so that the coordinator sees it online.
            return await reply(410, [NOT_ACTIVE], {})
        return await self._messages(headers, path, size, key, receive, noted)

    async def _messages(
        self, headers: Mapping[bytes, bytes], path: str, size: int, key: bytes, receive: Any, send: Any
    ) -> None:
        """Give a member its next message, or take its answer to one."""
        words = {
            name: headers.get(name.encode(), b"").decode("ascii", "replace")
            for name in (mailbox.MESSAGE_HEADER, mailbox.DONE_HEADER, mailbox.WAIT_HEADER)
        }
        if path == mailbox.ANSWER_PATH:
            message = words[mailbox.MESSAGE_HEADER]
            return await self._mailbox.answer(key, message, size, lambda: read_body(receive, size), replier(send))
        await read_body(receive, size)
        wait = words[mailbox.WAIT_HEADER]
        self._instances.record_request(key, headers.get(INSTANCE_HEADER.encode(), b""))
        milliseconds = int(wait) if wait.isdigit() and len(wait) < 8 else 0
        done = words[mailbox.DONE_HEADER]
        return await self._mailbox.next(key, done, 0.001 * milliseconds, _disconnected(receive), replier(send))


async def _download(send: Any, status: int, found: bytes | Path) -> None:
    if isinstance(found, bytes):
        await replier(send)(status, [found], {})
        return
    size = str(found.stat().st_size).encode()
    head = [(b"content-type", b"application/octet-stream"), (b"content-length", size)]
    with found.open("rb") as file:
        await send({"type": "http.response.start", "status": status, "headers": head})
        while part := file.read(_PART):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _disconnected(receive: Any) -> Callable[[], Awaitable[None]]:
    """A coroutine that ends when the connection of a request, whose body was read, does."""

    async def wait() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue

    return wait
