"""The inbox: incoming messages, fetched in pieces, up to a maximum size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hush.text import printable
from hush.types import HushError

_OVERHEAD = 1 << 16
_PATIENCE = 20.0
_SMALLEST_PART = 1_000_000


@dataclass(frozen=True)
class Peer:
    """A node as the SuperLink knows it: its public key in PEM, its number, and since when it is online."""

    key: bytes
    node: int
    online: bool
    since: str


@dataclass(frozen=True)
class InboxMessage:
    """A message to this node."""

    payload: bytes
    message: Any


class PartialMessage:
    """An incoming message, some pieces of which may not have arrived yet.

    Args:
        proto: The envelope.
        names: The identifiers of the pieces.
        cap: The maximum total size in bytes.
        unpack: Assembles the payload from all pieces.
    """

    def __init__(self, proto: Any, names: Sequence[str], cap: int, unpack: Callable[[dict[str, bytes]], bytes]) -> None:
        self.proto, self._cap, self._unpack = proto, cap, unpack
        self._missing = list(names)
        self._contents: dict[str, bytes] = {}
        self._deadline = time.monotonic() + _PATIENCE

    def fetch(self, pull: Callable[[str], Any]) -> bytes | None:
        """Return the payload, or None while pieces are missing."""
        if len(self._missing) > 8 + self._cap // _SMALLEST_PART:
            raise HushError(f"a message of {len(self._missing)} parts")
        while self._missing:
            found = pull(self._missing[0])
            if not found.object_available:
                if not found.object_found or time.monotonic() > self._deadline:
                    raise HushError("a message with missing parts")
                return None
            self._contents[self._missing.pop(0)] = found.object_content
            self._deadline = time.monotonic() + _PATIENCE
            if sum(map(len, self._contents.values())) > self._cap + _OVERHEAD:
                raise HushError(f"a message of more than {self._cap} bytes")
        try:
            payload = self._unpack(self._contents)
        except Exception as error:  # a malformed message can raise anything
            raise HushError(f"a message that cannot be unpacked: {printable(repr(error), 200)}") from None
        if len(payload) > self._cap:
            raise HushError(f"a message of more than {self._cap} bytes")
        return payload
