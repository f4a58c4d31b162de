"""Retry of requests to a SuperLink while it is away, and an explanation in one line when that does not help."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import httpx

from hush.deploy.transport.gateway import COPIED, NOT_ACTIVE, SILENCE, UNLISTED
from hush.deploy.transport.mailbox import UNKNOWN_RUN
from hush.text import printable
from hush.types import HushError

T = TypeVar("T")
_UNKNOWN, _IN_USE = 401, 412


class RefusedError(HushError):
    """The SuperLink does not accept this key. `passing`: for how many seconds it may yet do so."""

    def __init__(self, message: str, passing: float = 0.0) -> None:
        super().__init__(message)
        self.passing = passing


class ForgottenError(HushError):
    """The SuperLink does not know this run, as after a new start."""


def called(call: Callable[[], T], where: str, patience: float = 0.0) -> T:
    """The answer to a request, tried again while the SuperLink is away, for as long as patience lasts."""
    deadline, wait = time.monotonic() + patience, 0.1
    while True:
        try:
            return call()
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if refused := _refused(status, error.response.content):
                words, passing = refused
                raise RefusedError(f"{where}: this key is refused: {words}", passing) from None
            if status < 500 or time.monotonic() > deadline:
                raise HushError(
                    f"{where}: the SuperLink answers {status}: {printable(error.response.text, 200)}"
                ) from None
        except httpx.TransportError as error:
            text = printable(error)
            untrusted = "certificate" in text.lower() or "ssl" in text.lower()
            # An expired certificate is renewed by the coordinator, and nothing has to be done here.
            if untrusted and ("expired" not in text or time.monotonic() > deadline):
                raise HushError(f"{where}: no trusted connection: {text}") from None
            if time.monotonic() > deadline:
                raise HushError(f"{where}: cannot be reached: {text}") from None
        time.sleep(wait)
        wait = min(2 * wait, 2.0)


def _refused(status: int, content: bytes) -> tuple[str, float] | None:
    """Why a key is refused, if it is that, and for how many seconds that may pass."""
    if content == UNLISTED:
        # A key that was just admitted is listed within a second.
        return "not registered, or revoked; the coordinator can add it with hush federation admit", 2.0
    if content == COPIED:
        # A process that died is taken for dead within some seconds; one that lives keeps its place.
        return (
            f"in use: {COPIED.decode()}, for example because a kit was copied; the first process stays connected",
            SILENCE + 2.0,
        )
    if content in (NOT_ACTIVE, UNKNOWN_RUN):
        return "the SuperLink was restarted", 0.0
    if status == _IN_USE:
        # Flower takes a node for online until it has missed two heartbeats.
        return "in use by another process, or by one that stopped less than 25 seconds ago", 25.0
    if status == _UNKNOWN:
        return "the clocks differ by more than Flower allows (5 minutes behind, 5 seconds ahead)", 0.0
    return None


@contextlib.contextmanager
def trusting(address: str) -> Iterator[None]:
    """Make clients quietly; a CA certificate that is none is explained."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        yield
    except (OSError, ValueError, UnicodeError) as error:
        raise HushError(f"{address}: the CA certificate cannot be used: {error}") from None
