"""The server of a live page: read-only pages and server-sent events on this machine, and a stop behind a token.

Guarantees:
    - It listens on 127.0.0.1 alone, and answers only requests whose Host is that address or localhost with its port, so
      that a page from elsewhere cannot read it by a name that it has pointed here.
    - The only request that changes anything is a POST to /stop. It needs the token of the address, in a header that
      other origins cannot set without being asked, and an Origin that is this server. A page opened without the token
      has no button.
    - Pages hold everything that they need; their policy allows connections to this server and to no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hush.live.source import Source
from hush.pages.document import page, policy, resource
from hush.pages.wording import safe
from hush.types import HushError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PORT = 8321
_LOOK = 0.15  # seconds between two looks at the source
_APART = 0.3  # seconds between two drawings, so that short rounds do not keep a core busy
_HOSTS = ("127.0.0.1", "localhost")
_ENDING = 1.0  # seconds that open pages have for the last news


class Hub:
    """Draws a source as it changes, while somebody looks, and holds the newest drawing of each part."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.number = 0
        self.parts: dict[str, tuple[int, str]] = {}
        self.title, self.stoppable = source.title, False
        self.listeners = 0
        self._drawn = -1.0
        self._stale = True
        self._lock = threading.Lock()

    def draw(self, *, everything: bool = False) -> None:
        """Look at the source, and draw what is new; nothing else draws at the same time."""
        with self._lock:
            self._stale = self.source.refresh() or self._stale
            due = time.monotonic() - self._drawn >= _APART
            if not (everything and not self.parts) and not (self._stale and self.listeners and due):
                return
            self._stale = False
            self.title, self.stoppable = self.source.title, self.source.stoppable()
            for name, html in self.source.fragments():
                if self.parts.get(name, (0, None))[1] != html:
                    self.number += 1
                    self.parts[name] = (self.number, html)
            self._drawn = time.monotonic()

    def since(self, number: int) -> dict[str, str]:
        """Return the parts that were drawn after a number."""
        return {name: html for name, (at, html) in list(self.parts.items()) if at > number}


def live_app(source: Source, port: int, token: str) -> tuple[Starlette, threading.Event]:
    """Return the application for a source, and the event that ends its streams."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import HTMLResponse, PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    hub, ending = Hub(source), threading.Event()
    script = files("hush.live").joinpath("live.js").read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": policy([resource("script.js"), script], connect=True) + "; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    allowed = {f"{host}:{port}" for host in _HOSTS}

    def rights(given: str) -> bool:
        return hmac.compare_digest(given.encode(), token.encode())

    async def home(request: Request) -> Response:
        await asyncio.to_thread(hub.draw, everything=True)
        key = request.query_params.get("token", "")
        return HTMLResponse(_document(hub, script, key if rights(key) else ""), headers=headers)

    async def events(request: Request) -> Response:
        stream = _events(hub, ending, request)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def stop(request: Request) -> Response:
        origin = request.headers.get("origin", "")
        if not rights(request.headers.get("x-hush-token", "")) or origin not in {f"http://{host}" for host in allowed}:
            return PlainTextResponse("Not allowed: open the page with the address that the terminal shows.", 403)
        try:
            return PlainTextResponse(await asyncio.to_thread(source.stop), headers=headers)
        except (HushError, OSError) as error:
            return PlainTextResponse(f"Not stopped: {error}", 409, headers=headers)

    class OwnHost:
        """Refuses requests for another host."""

        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
                if host not in allowed:
                    await PlainTextResponse("unknown host", 421)(scope, receive, send)
                    return
            await self.app(scope, receive, send)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                await asyncio.to_thread(hub.draw)
                await asyncio.sleep(_LOOK)

        task = asyncio.create_task(watch())
        yield
        task.cancel()

    routes = [Route("/", home), Route("/events", events), Route("/stop", stop, methods=["POST"])]
    return Starlette(routes=routes, middleware=[Middleware(OwnHost)], lifespan=lifespan), ending


async def _events(hub: Hub, ending: threading.Event, request: Request) -> AsyncIterator[str]:
    """Yield the news as server-sent events: at first everything, then what changes."""
    hub.listeners += 1
    seen, said, last = 0, None, time.monotonic()
    try:
        yield "retry: 1000\n\n"
        while True:
            closing = ending.is_set()
            number, state = hub.number, (hub.title, hub.stoppable)
            if (parts := hub.since(seen)) or state != said:
                seen, said, last = number, state, time.monotonic()
                news = {"parts": parts, "title": hub.title, "stoppable": hub.stoppable}
                yield f"data: {json.dumps(news)}\n\n"
            elif time.monotonic() - last > 10:
                last = time.monotonic()
                yield ": still here\n\n"
            if closing or await request.is_disconnected():
                return
            await asyncio.sleep(0.05)
    finally:
        hub.listeners -= 1


def _document(hub: Hub, script: str, token: str) -> str:
    """Return the page as it is now; the stream changes its parts."""
    source = hub.source
    button = (
        f'<button type="button" class="action" id="stop" data-token="{safe(token)}"'
        f"{'' if hub.stoppable else ' hidden'}>Stop after this round</button>"
        if token
        else ""
    )
    panels = [name for name in source.parts if name not in ("state", "tiles")]
    held = "".join(f'<div class="part" id="{safe(name)}">{hub.parts.get(name, (0, ""))[1]}</div>' for name in panels)
    top = "".join(f'<div id="{name}">{hub.parts.get(name, (0, ""))[1]}</div>' for name in ("state", "tiles"))
    body = (
        f'<h1 id="title">{safe(hub.title)}</h1>'
        f'<div class="bar"><span id="connection" data-state="lost">connecting</span>{button}'
        f'<span id="said" role="status"></span></div>{top}<div class="charts live">{held}</div>'
        '<noscript><p class="soft">Without JavaScript, reload the page to see the next rounds.</p></noscript>'
    )
    return page(f"{hub.title} · Hush", source.kind, body, scripts=[script], connect=True)


def serve(source: Source, *, port: int | None = None, opened: Any = None) -> None:
    """Serve a page until Ctrl-C. `opened` is called with its address; without a port, 8321 or a free one is taken."""
    server, listening, address = _server(source, port)
    if opened is not None:
        opened(address)
    server.run(sockets=[listening])


@contextmanager
def background(source: Source, *, port: int | None = None) -> Iterator[str]:
    """Serve a page from a thread while the body of a `with` runs. Yields its address.

    At the end, open pages get the last state before the server stops.
    """
    server, listening, address = _server(source, port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="hush-live", daemon=True)
    thread.start()
    try:
        yield address
    finally:
        time.sleep(_ENDING if server.watched else 0)
        server.handle_exit(0, None)
        thread.join(timeout=5)


def _server(source: Source, port: int | None) -> tuple[Any, socket.socket, str]:
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise HushError("live page: needs starlette and uvicorn; install them with: pip install 'hush[ui]'")
    import uvicorn

    listening = _listen(port)
    number, token = listening.getsockname()[1], uuid.uuid4().hex
    app, ending = live_app(source, number, token)

    class Server(uvicorn.Server):
        """Ends its streams before it waits for connections."""

        @property
        def watched(self) -> bool:
            """Whether a page is open."""
            return bool(self.server_state.connections)

        def handle_exit(self, sig: int, frame: Any) -> None:
            ending.set()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=2, ws="none")
    return Server(config), listening, f"http://127.0.0.1:{number}/?token={token}"


def _listen(port: int | None) -> socket.socket:
    """Return a socket on this machine's loopback address: at the port, or at 8321 or a free one where none is given."""
    for number in (PORT, 0) if port is None else (port,):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", number))
        except (OSError, OverflowError) as error:
            listening.close()
            if port is not None:
                raise HushError(f"--port: {port} cannot be used: {error}") from None
            continue
        listening.listen(64)
        return listening
    raise HushError("live page: no free port on 127.0.0.1")
