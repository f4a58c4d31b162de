"""The mailbox of the gateway: messages between the coordinators of runs and their members, each message one request.

    coordinator   /hush/send      messages to members; what several of them share is sent once
                  /hush/collect   waits for answers to these messages
    member        /hush/next      waits for its next message
                  /hush/answer    the answer to it

Flower would store a message as a tree of objects, each of which passes its dozen layers in a request of its own, and
members would have to ask for messages over and over. With twenty members that took most of a round.

Guarantees:
    - A message is delivered again until its member asks for the next one, so none is lost with a connection.
    - An answer is taken from the key that the message is for, once, and not above the limit of its run. So members
      together can store one answer of that size for each message that a coordinator sent.
    - What belongs to a run is dropped when the run ends, or when its coordinator has not been heard of for too long.

The gateway checks who asks (`hush.deploy.transport.gateway`). Nothing is stored on disk.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hush.types import HushError

SEND_PATH, COLLECT_PATH = "/hush/send", "/hush/collect"
NEXT_PATH, ANSWER_PATH = "/hush/next", "/hush/answer"
MESSAGE_HEADER, DONE_HEADER, WAIT_HEADER = "hush-message", "hush-done", "hush-wait"
UNKNOWN_RUN, NOT_AWAITED = b"this run is not known here", b"this answer is not awaited any more"
BATCH = 64 << 20  # bytes of messages or answers in one request of a coordinator, unless a single one is larger
_LONGEST_WAIT = 20.0
_PIECE = 1 << 20
_ROOM = 1 << 16

Buffer: TypeAlias = bytes | bytearray | memoryview
Reply: TypeAlias = Callable[[int, Sequence[Buffer], Mapping[str, str]], Awaitable[None]]
Disconnected: TypeAlias = Callable[[], Awaitable[None]]  # ends when the connection does


@dataclass(kw_only=True, eq=False)
class _QueuedMessage:
    """A message to a member, and its answer."""

    name: str
    run: bytes
    key: bytes
    parts: tuple[Buffer, ...]
    ends: float
    receiving: bool = False
    answer: list[bytes] | None = None


@dataclass(eq=False)
class _Run:
    """The limit of a run's answers, until when it holds, and the run's messages."""

    size: int
    ends: float
    messages: dict[str, _QueuedMessage] = field(default_factory=dict)


class Mailbox:
    """The messages in transit."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[bytes, _Run] = {}
        self._queues: dict[bytes, dict[str, _QueuedMessage]] = {}
        self._waiting: dict[bytes, set[asyncio.Event]] = {}

    def limit(self, run: bytes, size: int, seconds: int) -> None:
        """Set the maximum size of an answer to a run, for some seconds; 0 ends the run."""
        now = self._clock()
        for name in [name for name, each in self._runs.items() if each.ends <= now or (name == run and not size)]:
            for message in list(self._runs.pop(name).messages.values()):
                self._drop(message)
        if size:
            kept = self._runs[run].messages if run in self._runs else {}
            self._runs[run] = _Run(size + _ROOM, now + seconds, kept)

    async def send(self, run: bytes, body: Iterable[bytes], reply: Reply) -> None:
        """Put messages into their members' queues."""
        known = self._known(run)
        if known is None:
            return await reply(410, [UNKNOWN_RUN], {})
        head, parts = unpacked(b"".join(body))
        ends = self._clock() + float(head["ttl"])
        for words in head["messages"]:
            message = _QueuedMessage(
                name=words["name"], run=run, key=words["to"].encode(), parts=tuple(parts[at] for at in words["parts"]),
                ends=ends,
            )  # fmt: skip
            known.messages[message.name] = message
            self._queues.setdefault(message.key, {})[message.name] = message
            self._wake(message.key)
        return await reply(200, [], {})

    async def collect(self, run: bytes, names: Sequence[str], wait: float, gone: Disconnected, reply: Reply) -> None:
        """Wait for answers to these messages. Answers of the run that are not asked for were taken, and are dropped."""
        known = self._known(run)
        if known is None:
            return await reply(410, [UNKNOWN_RUN], {})
        for message in [each for name, each in known.messages.items() if name not in names and each.answer is not None]:
            self._drop(message)

        def answered() -> list[_QueuedMessage]:
            messages = (known.messages.get(name) for name in names)
            return [message for message in messages if message is not None and message.answer is not None]

        await self._until(run, lambda: bool(answered()), wait, gone)
        found, size = list[_QueuedMessage](), 0
        for message in answered():
            size += sum(map(len, message.answer or ()))
            if found and size > BATCH:
                break
            found.append(message)
        return await reply(200, packed({}, {message.name: message.answer or [] for message in found}), {})

    async def next(self, key: bytes, done: str, wait: float, gone: Disconnected, reply: Reply) -> None:
        """Wait for a member's next message; `done` names the message that it has dealt with."""
        queue = self._queues.setdefault(key, {})
        queue.pop(done, None)

        def first() -> _QueuedMessage | None:
            now = self._clock()
            for message in [each for each in queue.values() if each.ends <= now]:
                self._drop(message)
            return next(iter(queue.values()), None)

        await self._until(key, lambda: first() is not None, wait, gone)
        message = first()
        if message is None:
            return await reply(204, [], {})
        return await reply(200, message.parts, {MESSAGE_HEADER: message.name})

    async def answer(
        self, key: bytes, name: str, size: int, receive: Callable[[], Awaitable[list[bytes]]], reply: Reply
    ) -> None:
        """Take the answer to a message. An answer that is not awaited, or is too long, is refused before it is read."""
        message = next((run.messages[name] for run in self._runs.values() if name in run.messages), None)
        known = None if message is None else self._known(message.run)
        if message is None or known is None or message.key != key or message.receiving:
            return await reply(410, [NOT_AWAITED], {})
        if size > known.size:
            return await reply(413, [b"larger than this run allows"], {})
        if message.answer is None:
            message.receiving = True
            try:
                message.answer = await receive()
            finally:
                message.receiving = False
            message.parts = ()
            self._queues.get(key, {}).pop(name, None)
            self._wake(message.run)
        return await reply(200, [], {})

    def _known(self, run: bytes) -> _Run | None:
        """A run whose limit has not expired."""
        found = self._runs.get(run)
        return found if found is not None and found.ends > self._clock() else None

    def _drop(self, message: _QueuedMessage) -> None:
        self._queues.get(message.key, {}).pop(message.name, None)
        if message.run in self._runs:
            self._runs[message.run].messages.pop(message.name, None)

    def _wake(self, who: bytes) -> None:
        for event in self._waiting.get(who, ()):
            event.set()

    async def _until(self, who: bytes, true: Callable[[], bool], wait: float, gone: Disconnected) -> None:
        """Wait until this is true, time is up, or the connection is gone."""
        if true() or wait <= 0:
            return
        event = asyncio.Event()
        waiting = self._waiting.setdefault(who, set())
        waiting.add(event)
        left = asyncio.ensure_future(gone())
        try:
            deadline = self._clock() + min(wait, _LONGEST_WAIT)
            while not true() and not left.done() and (rest := deadline - self._clock()) > 0:
                event.clear()
                woken = asyncio.create_task(event.wait())
                await asyncio.wait({woken, left}, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
        finally:
            left.cancel()
            waiting.discard(event)


def packed(head: Mapping[str, Any], parts: Mapping[str, Sequence[Buffer]]) -> list[Buffer]:
    """Return named parts with their sizes, and other fields, as the pieces of one body."""
    sizes = {name: sum(map(len, pieces)) for name, pieces in parts.items()}
    words = json.dumps({**head, "parts": sizes}, separators=(",", ":")).encode()
    return [len(words).to_bytes(4, "big"), words, *(piece for pieces in parts.values() for piece in pieces)]


def unpacked(body: Buffer) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Return the fields of such a body, and its parts by name, not copied, or raise a `HushError`."""
    start, whole = 4 + int.from_bytes(body[:4], "big"), memoryview(body)
    try:
        head = json.loads(bytes(body[4:start]))
        sizes = {str(name): int(size) for name, size in head["parts"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise HushError("the gateway's answer is malformed") from None
    parts = {}
    for name, size in sizes.items():
        parts[name] = whole[start : start + size]
        start += size
    if start != len(body) or any(size < 0 for size in sizes.values()):
        raise HushError("the gateway's answer is incomplete")
    return head, parts


async def read_body(receive: Callable[[], Awaitable[Any]], most: int) -> list[bytes]:
    """Return the pieces of a request's body, at most this long; raises a `ConnectionError` if it does not arrive."""
    pieces, size = list[bytes](), 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise ConnectionError("the connection ended before the request did")
        size += len(event.get("body", b""))
        if size > most:
            raise ConnectionError("the request is longer than announced")
        pieces.append(event.get("body", b""))
        if not event.get("more_body", False):
            return pieces


def replier(send: Callable[[Any], Awaitable[None]]) -> Reply:
    """Return a function that answers a request with a status, the pieces of a body, and headers."""

    async def reply(status: int, pieces: Sequence[Buffer], headers: Mapping[str, str]) -> None:
        size = sum(map(len, pieces))
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        # A refused request is not read to its end, so its connection cannot be used again.
        named += [(b"connection", b"close")] if status >= 400 else []
        named += [] if status == 204 else [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": status, "headers": named})
        for piece in pieces:
            for at in range(0, len(piece), _PIECE):
                body = bytes(memoryview(piece)[at : at + _PIECE])
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return reply
