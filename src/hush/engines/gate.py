"""What stands before a SuperLink: Flower trusts whoever reaches its port with all but the nodes' part of it.

Flower's control and runtime interfaces (register a node, start a run, take a task) share the nodes' port and ask for
no password. Behind this gate they need the coordinator's secret. And nothing is read that announces no size, or, from a
node, too large a one.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

SECRET_HEADER = "hush-coordinator"
REQUEST_CAP = 8 << 20
_NODE_PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "push-object",
        "pull-object", "confirm-message-received",
    )
)  # fmt: skip


class Gate:
    """What every request passes before Flower sees it."""

    def __init__(self, app: Callable[..., Awaitable[None]], secret: str, cap: int = REQUEST_CAP) -> None:
        self._app = app
        self._secret = secret.encode()
        self._cap = cap

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse by path, secret and announced size; pass on the rest."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            allowed = scope["path"] in _NODE_PATHS
            if not allowed and not hmac.compare_digest(headers.get(SECRET_HEADER.encode(), b""), self._secret):
                return await _refuse(send, 403, b"not for nodes")
            size = headers.get(b"content-length", b"")
            if scope["method"] == "POST" and not size.isdigit():
                return await _refuse(send, 411, b"a request must announce its size")
            if allowed and int(size or b"0") > self._cap:
                return await _refuse(send, 413, b"larger than this federation allows")
        return await self._app(scope, receive, send)


async def _refuse(send: Any, status: int, words: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words})
