"""The server of a live page: read-only pages and server-sent events, and a stop behind a token.

Guarantees:
    - It listens on 127.0.0.1 unless an `Endpoint` says otherwise, and answers only requests whose Host is an address or
      a name of that endpoint, so that a page from elsewhere cannot read it by a name that it has pointed here.
    - The only request that changes anything is a POST to /stop. It needs the token of the address, in a header that
      other origins cannot set without being asked, and an Origin that is this server. A page opened without the token
      has no button.
    - A private endpoint has no /stop, and answers nothing without its token but /healthz, which says `ok` or why not in
      one of a few words. The token is part of the address, or in an Authorization header. It is no cookie: a browser
      would send that to every port of the same address, also to those of other users.
    - Pages hold everything that they need; their policy allows connections to this server and to no other. No header
      allows another origin to read an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
import ssl
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hush.live.source import Monitor, Source
from hush.pages.document import page, policy, resource
from hush.pages.wording import safe
from hush.types import HushError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")
PORT = 8321
METRICS, HEALTH = "/metrics", "/healthz"
_LOOK = 0.15  # seconds between two looks at the source
_APART = 0.3  # seconds between two drawings, so that short rounds do not keep a core busy
LOCAL = ("127.0.0.1", "localhost")
_NEEDED = "This page needs its token: open the address that the terminal shows, or send Authorization: Bearer TOKEN.\n"
_ENDING = 1.0  # seconds that open pages have for the last news


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a page is served, and who may read it.

    Attributes:
        host: The address to listen on.
        port: The port; None: the usual one, or a free one.
        usual: The usual port.
        names: The names that requests may be for; the first is that of the printed address.
        token: Grants what needs a token; None: a new one.
        private: Whether reading needs the token. Nothing can be stopped then.
        certificate: The files of a TLS certificate and its key; None: without TLS, for addresses of this machine only.
    """

    host: str = LOCAL[0]
    port: int | None = None
    usual: int = PORT
    names: tuple[str, ...] = LOCAL
    token: str | None = None
    private: bool = False
    certificate: tuple[Path, Path] | None = None

    def address(self, port: int, token: str) -> str:
        """Return the address of the page."""
        return f"http{'s' if self.certificate else ''}://{self.names[0]}:{port}/?token={token}"

    def accepts(self, host: str, port: int) -> bool:
        """Whether a request for this host is for this server.

        Behind TLS the port may be another one: it is mapped by containers, and the certificate names no port.
        """
        if self.certificate is None:
            return host in {f"{name}:{port}" for name in self.names}
        given = host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]
        return any(given == name or (name[:2] == "*." and given.partition(".")[2] == name[2:]) for name in self.names)


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

    def locked(self, call: Callable[[], T]) -> T:
        """Return what a function of the source returns, after a look at what is new."""
        with self._lock:
            self._stale = self.source.refresh() or self._stale
            return call()

    def since(self, number: int) -> dict[str, str]:
        """Return the parts that were drawn after a number."""
        return {name: html for name, (at, html) in list(self.parts.items()) if at > number}


def live_app(source: Source, endpoint: Endpoint, port: int, token: str) -> tuple[Starlette, threading.Event]:
    """Return the application for a source at a port, and the event that ends its streams."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request as FoundRequest
    from starlette.responses import HTMLResponse, PlainTextResponse, StreamingResponse
    from starlette.responses import Response as FoundResponse
    from starlette.routing import Route

    hub, ending, stopping = Hub(source), threading.Event(), not endpoint.private
    monitor: Monitor
    script = files("hush.live").joinpath("live.js").read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": policy([resource("script.js"), script], connect=True) + "; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    origins = {f"http://{host}:{port}" for host in LOCAL}

    def rights(given: str) -> bool:
        return hmac.compare_digest(given.encode(), token.encode())

    async def home(request: Request) -> Response:
        await asyncio.to_thread(hub.draw, everything=True)
        key = request.query_params.get("token", "")
        return HTMLResponse(_document(hub, script, key if rights(key) and stopping else ""), headers=headers)

    async def events(request: Request) -> Response:
        stream = _events(hub, ending, request)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def stop(request: Request) -> Response:
        origin = request.headers.get("origin", "")
        if not rights(request.headers.get("x-hush-token", "")) or origin not in origins:
            return PlainTextResponse("Not allowed: open the page with the address that the terminal shows.", 403)
        try:
            return PlainTextResponse(await asyncio.to_thread(source.stop), headers=headers)
        except (HushError, OSError) as error:
            return PlainTextResponse(f"Not stopped: {error}", 409, headers=headers)

    async def metrics(request: Request) -> Response:
        content, kind = await asyncio.to_thread(hub.locked, partial(monitor.metrics, request.headers.get("accept", "")))
        return FoundResponse(content, headers={**headers, "Content-Type": kind})

    async def health(request: Request) -> Response:
        well, words = await asyncio.to_thread(hub.locked, monitor.health)
        return PlainTextResponse(f"{words}\n", 200 if well else 503, headers=headers)

    class OwnRequests:
        """Refuses requests for another host, and without the token where reading needs it."""

        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and (refused := self._refused(FoundRequest(scope))):
                await refused(scope, receive, send)
                return
            await self.app(scope, receive, send)

        def _refused(self, request: Request) -> Response | None:
            if endpoint.private and request.url.path == HEALTH:
                return None
            if not endpoint.accepts(request.headers.get("host", ""), port):
                return PlainTextResponse("unknown host", 421)
            kind, _, given = request.headers.get("authorization", "").partition(" ")
            key = given.strip() if kind.lower() == "bearer" else request.query_params.get("token", "")
            if endpoint.private and not rights(key):
                return PlainTextResponse(_NEEDED, 401, {**headers, "WWW-Authenticate": "Bearer"})
            return None

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                await asyncio.to_thread(hub.draw)
                await asyncio.sleep(_LOOK)

        task = asyncio.create_task(watch())
        yield
        task.cancel()

    routes = [Route("/", home), Route("/events", events)]
    routes += [Route("/stop", stop, methods=["POST"])] if stopping else []
    if isinstance(source, Monitor):
        monitor = source
        routes += [Route(METRICS, metrics), Route(HEALTH, health)]
    return Starlette(routes=routes, middleware=[Middleware(OwnRequests)], lifespan=lifespan), ending


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
    parts = "".join(f'<div class="part" id="{safe(name)}">{hub.parts.get(name, (0, ""))[1]}</div>' for name in panels)
    top = "".join(f'<div id="{name}">{hub.parts.get(name, (0, ""))[1]}</div>' for name in ("state", "tiles"))
    body = (
        f'<h1 id="title">{safe(hub.title)}</h1>'
        f'<div class="bar"><span id="connection" data-state="lost">connecting</span>{button}'
        f'<span id="said" role="status"></span></div>{top}'
        f'<h2 class="unseen">Charts and tables</h2><div class="charts live">{parts}</div>'
        '<noscript><p class="soft">Without JavaScript, reload the page to see the next rounds.</p></noscript>'
    )
    return page(f"{hub.title} · Hush", source.kind, body, scripts=[script], connect=True)


def serve(source: Source, *, port: int | None = None, opened: Any = None, endpoint: Endpoint | None = None) -> None:
    """Serve a page until Ctrl-C. `opened` is called with its address; without a port, 8321 or a free one is taken.

    An `endpoint` says instead where it is served, and who may read it.
    """
    server, listening, address = _server(source, endpoint or Endpoint(port=port))
    if opened is not None:
        opened(address)
    server.run(sockets=[listening])


@contextmanager
def background(source: Source, *, port: int | None = None, endpoint: Endpoint | None = None) -> Iterator[str]:
    """Serve a page from a thread while the body of a `with` runs, as `serve` does. Yields its address.

    At the end, open pages get the last state before the server stops.
    """
    server, listening, address = _server(source, endpoint or Endpoint(port=port))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="hush-live", daemon=True)
    thread.start()
    try:
        yield address
    finally:
        time.sleep(_ENDING if server.watched else 0)
        server.handle_exit(0, None)
        thread.join(timeout=5)


def _server(source: Source, endpoint: Endpoint) -> tuple[Any, socket.socket, str]:
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise HushError("live page: needs starlette and uvicorn; install them with: pip install 'hush[ui]'")
    import uvicorn

    listening = _listen(endpoint.host, endpoint.port, endpoint.usual)
    number, token = listening.getsockname()[1], endpoint.token or uuid.uuid4().hex
    app, ending = live_app(source, endpoint, number, token)

    class Server(uvicorn.Server):
        """Ends its streams before it waits for connections."""

        @property
        def watched(self) -> bool:
            """Whether a page is open."""
            return bool(self.server_state.connections)

        def handle_exit(self, sig: int, frame: Any) -> None:
            ending.set()
            super().handle_exit(sig, frame)

    certificate, key = endpoint.certificate or (None, None)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, timeout_graceful_shutdown=2, ws="none", ssl_certfile=certificate,
        ssl_keyfile=key, server_header=False,
    )  # fmt: skip
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        listening.close()
        raise HushError(f"{certificate}: cannot be used for TLS with {key}: {error}") from None
    return Server(config), listening, endpoint.address(number, token)


def _listen(host: str, port: int | None, usual: int) -> socket.socket:
    """Return a socket at an address: at the port, or at the usual or a free one where none is given."""
    for number in (usual, 0) if port is None else (port,):
        listening: socket.socket | None = None
        try:
            family, kind, _, _, place = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
        except (OSError, OverflowError) as error:
            if listening is not None:
                listening.close()
            if port is not None:
                raise HushError(f"--port: {port} cannot be used: {error}") from None
            if listening is None:
                raise HushError(f"--listen: {host} cannot be used: {error}") from None
            continue
        listening.listen(64)
        return listening
    raise HushError(f"live page: no free port on {host}")
