"""About the software of the other side: versions and clocks, as the gateway and the members tell each other.

A member sends its versions when it registers. The gateway answers a signed request of a member with its own, and a
request with the coordinator's secret with those of all members. Nothing here decides anything: it is shown to people
(`hush federation doctor`). This file does not import PyTorch, since the SuperLink process does not need it.
"""

from __future__ import annotations

import datetime
import hmac
import json
import platform
from base64 import b64encode
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hush.deploy.shared.protocol import PROTOCOL
from hush.text import printable
from hush.types import HushError

PATH, HEADER = "/hush/about", "hush-versions"
_STAMP = b"flwr-timestamp"
_LONGEST = 500
_PACKAGES = ("hush", "torch", "flwr", "cryptography")


def installed() -> dict[str, str]:
    """Return the versions that matter between two machines, by name."""
    found = {"protocol": str(PROTOCOL), "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def read_versions(text: bytes) -> dict[str, str]:
    """Return the versions in a header; those that cannot be read are left out."""
    try:
        raw = json.loads(text[:_LONGEST])
    except ValueError:
        return {}
    known = raw if isinstance(raw, dict) else {}
    return {name: printable(known[name], 40) for name in installed() if isinstance(known.get(name), str)}


class About:
    """What the gateway tells about itself and the members. `member` checks a signed request, and returns its name."""

    def __init__(self, member: Callable[[str, Mapping[bytes, bytes]], str], secret: str, secret_header: str) -> None:
        self._member, self._secret, self._secret_header = member, secret.encode(), secret_header.encode()
        self._heard: dict[bytes, dict[str, Any]] = {}

    def note(self, key: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Note the versions of a member that registers, and by how many seconds its clock differs."""
        try:
            stamp = datetime.datetime.fromisoformat(headers.get(_STAMP, b"").decode("ascii"))
            ahead: float | None = round((stamp - datetime.datetime.now(datetime.UTC)).total_seconds(), 1)
        except (ValueError, TypeError):
            ahead = None
        self._heard[key] = {"versions": read_versions(headers.get(HEADER.encode(), b"")), "ahead": ahead}

    def answer(self, headers: Mapping[bytes, bytes], online: Callable[[bytes], bool]) -> tuple[int, bytes]:
        """Return the status and the content of an answer; `online` says whether a key (base64 of PEM) is in use."""
        found: dict[str, Any] = {"versions": installed()}
        if hmac.compare_digest(headers.get(self._secret_header, b""), self._secret):
            found["members"] = {key.decode(): {**each, "online": online(key)} for key, each in self._heard.items()}
            return 200, json.dumps(found).encode()
        try:
            found["member"] = self._member(PATH, headers)
        except HushError as error:
            return 403, str(error).encode()
        return 200, json.dumps({**found, "online": online(headers.get(b"hush-key", b""))}).encode()


def as_header(key: bytes) -> str:
    """Return a public key in PEM as it is in headers, and in what the gateway says of members."""
    return b64encode(key).decode()
