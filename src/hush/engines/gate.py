"""What stands before a SuperLink: Flower trusts whoever reaches its port with all but the nodes' part of it.

Flower's control and runtime interfaces (register a node, start a run, take a task) share the nodes' port and ask for
no password. Behind this gate they need the coordinator's secret. Nothing is read that announces no size. And the
coordinator says how long an answer can be: no node sends a longer request, nor more than a few such answers a round.
Flower tells a stranger's key no different from one in use. The gate does, so that a member hears at once what is wrong.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

SECRET_HEADER = "hush-coordinator"
LIMIT_PATH, LIMIT_HEADER = "/hush/limit", "hush-limit"
UNLISTED = b"this key is not listed"
REQUEST_CAP = 8 << 20
_FRAME = 1 << 16
_ANSWERS = 4
_KEY_HEADER = b"flwr-public-key"
_NODE_PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "push-object",
        "pull-object", "confirm-message-received",
    )
)  # fmt: skip
_UPLOAD = "/v1/fleet/push-object"


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


class Gate:
    """What every request passes before Flower sees it."""

    def __init__(
        self, app: Callable[..., Awaitable[None]], secret: str, cap: int = REQUEST_CAP, listed: Listed | None = None
    ) -> None:
        self._app, self._listed = app, listed
        self._secret = secret.encode()
        self._most = self._cap = cap
        self._whole = _ANSWERS * cap
        self._sent: dict[bytes, int] = defaultdict(int)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse by path, secret and announced size; pass on the rest."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, path = dict(scope["headers"]), scope["path"]
        of_node = path in _NODE_PATHS
        if not of_node and not hmac.compare_digest(headers.get(SECRET_HEADER.encode(), b""), self._secret):
            return await _answer(send, 403, b"not for nodes")
        size = headers.get(b"content-length", b"")
        if scope["method"] == "POST" and not size.isdigit():
            return await _answer(send, 411, b"a request must announce its size")
        if path == LIMIT_PATH:
            return await self._limit(headers.get(LIMIT_HEADER.encode(), b""), send)
        if of_node and self._listed and (fault := self._listed.fault(headers.get(_KEY_HEADER, b""))):
            return await _answer(send, *fault)
        if of_node and int(size or b"0") > self._cap:
            return await _answer(send, 413, b"larger than this federation allows")
        if path == _UPLOAD:
            return await self._upload(headers.get(_KEY_HEADER, b""), int(size or b"0"), scope, receive, send)
        return await self._app(scope, receive, send)

    async def _limit(self, wanted: bytes, send: Any) -> None:
        """The coordinator asks anew: from now on answers are of at most this size."""
        if not wanted.isdigit():
            return await _answer(send, 400, b"a limit is a number of bytes")
        self._cap = min(self._most, int(wanted) + _FRAME)
        self._whole = _ANSWERS * (int(wanted) + _FRAME)
        self._sent.clear()
        return await _answer(send, 200, b"")

    async def _upload(self, key: bytes, size: int, scope: Any, receive: Any, send: Any) -> None:
        """Count what each node has sent since the coordinator asked, and let nobody fill the memory."""
        if self._sent[key] + size > self._whole:
            return await _answer(send, 413, b"more than this federation allows in a round")

        async def counted(event: Any) -> None:
            # Only what Flower took: whoever merely names another's key is turned away there.
            if event["type"] == "http.response.start" and event["status"] < 300:
                self._sent[key] += size
            await send(event)

        return await self._app(scope, receive, counted)


async def _answer(send: Any, status: int, words: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words})
