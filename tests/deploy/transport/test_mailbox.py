"""The mailbox waits: for a message, for an answer, not beyond its time, and not for a connection that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hush.deploy.transport.mailbox import MESSAGE_HEADER, Buffer, Mailbox, packed, unpacked
from hush.types import HushError


class Answer:
    def __init__(self) -> None:
        self.status, self.body, self.headers = 0, b"", dict[str, str]()

    async def __call__(self, status: int, pieces: Sequence[Buffer], headers: Mapping[str, str]) -> None:
        self.status, self.body, self.headers = status, b"".join(pieces), dict(headers)


async def never() -> None:
    await asyncio.sleep(60)


async def at_once() -> None:
    return


def outgoing(*names: str) -> list[bytes]:
    words: dict[str, Any] = {"messages": [{"name": n, "to": "key", "parts": ["text"]} for n in names], "ttl": 60.0}
    return [b"".join(packed(words, {"text": [b"message"]}))]


def test_who_waits_is_woken_and_nobody_waits_longer_than_asked() -> None:
    async def run() -> None:
        post, ignored = Mailbox(), Answer()
        post.limit(b"run", 100, 60)
        began = time.monotonic()
        nothing = Answer()
        await post.next(b"key", "", 0.1, never, nothing)
        assert (nothing.status, 0.09 < time.monotonic() - began < 2) == (204, True)
        message, reply = Answer(), Answer()
        next_one = asyncio.create_task(post.next(b"key", "", 20.0, never, message))
        collected = asyncio.create_task(post.collect(b"run", ["a"], 20.0, never, reply))
        await asyncio.sleep(0.05)
        assert not next_one.done()
        assert not collected.done()
        await post.send(b"run", outgoing("a"), ignored)
        await next_one
        assert (message.status, message.body, message.headers[MESSAGE_HEADER]) == (200, b"message", "a")
        assert not collected.done()

        async def body() -> list[bytes]:
            return [b"yes", b" sir"]

        await post.answer(b"key", "a", 7, body, ignored)
        await collected
        assert dict(unpacked(reply.body)[1]) == {"a": b"yes sir"}
        assert time.monotonic() - began < 10
        gone = Answer()
        await post.next(b"key", "", 20.0, at_once, gone)
        assert time.monotonic() - began < 10, "nobody is waited for whose connection is gone"
        assert not any(post._waiting.values())

    asyncio.run(run())


def test_an_answer_that_breaks_off_can_be_sent_again() -> None:
    async def run() -> None:
        post, sent = Mailbox(), Answer()
        post.limit(b"run", 100, 60)
        await post.send(b"run", outgoing("a"), sent)

        async def broken() -> list[bytes]:
            raise ConnectionError

        async def whole() -> list[bytes]:
            return [b"yes"]

        with pytest.raises(ConnectionError):
            await post.answer(b"key", "a", 3, broken, sent)
        await post.answer(b"key", "a", 3, whole, sent)
        assert sent.status == 200

    asyncio.run(run())


def test_a_body_that_is_cut_off_is_noticed() -> None:
    whole = b"".join(packed({"ttl": 1.0}, {"a": [b"12", b"3"], "b": [b""]}))
    head, parts = unpacked(whole)
    assert head == {"ttl": 1.0, "parts": {"a": 3, "b": 0}}
    assert {name: bytes(part) for name, part in parts.items()} == {"a": b"123", "b": b""}
    for wrong in (whole[:-1], whole + b"x", b"", b"\0\0\0\2{}", b"\0\0\0\1["):
        with pytest.raises(HushError, match="gateway"):
            unpacked(wrong)
