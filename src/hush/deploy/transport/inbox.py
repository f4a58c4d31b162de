"""The inbox: incoming messages, read up to a maximum size, and the nodes that they come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hush.types import HushError


@dataclass(frozen=True)
class Peer:
    """A node as the SuperLink knows it: its public key in PEM, its number, and since when it is online."""

    key: bytes
    node: int
    online: bool
    since: str


@dataclass(frozen=True)
class InboxMessage:
    """A message to this node, and its name in the mailbox."""

    payload: bytes | bytearray
    name: str


def read_message(announced: str | None, pieces: Iterable[bytes], cap: int) -> bytearray:
    """Return a message of at most `cap` bytes, or raise a `HushError` before more than that are in memory.

    `announced` is the size that the sender declared, if it did.
    """
    if announced is None or not announced.isdigit() or int(announced) > cap:
        raise HushError(f"a message of more than {cap} bytes, or of unknown size")
    content, at = bytearray(int(announced)), 0
    for piece in pieces:
        if at + len(piece) > len(content):
            raise HushError(f"a message of more than the {len(content)} bytes that were announced")
        content[at : at + len(piece)] = piece
        at += len(piece)
    if at < len(content):
        raise HushError(f"a message of {at} bytes where {len(content)} were announced")
    return content
