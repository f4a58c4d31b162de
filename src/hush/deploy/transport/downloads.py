"""Downloads of deliveries by members: signed requests to the gateway, which answers them while `serve` runs.

A request names its time and is signed with the member's key over path and time. A member sees the deliveries with its
own name and no others. This file does not import PyTorch, since the SuperLink process does not need it.
"""

from __future__ import annotations

import datetime
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path

from hush.deploy.admin import keys
from hush.deploy.admin.folders import FederationFolder
from hush.types import HushError

PATH = "/hush/deliveries"
KEY_HEADER, TIME_HEADER, SIGNATURE_HEADER = "hush-key", "hush-time", "hush-signature"
_DOMAIN = b"hush download\n"
_LONGEST = datetime.timedelta(minutes=5)
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

Found = tuple[int, bytes | Path]


def headers(key: keys.PrivateKey, path: str) -> dict[str, str]:
    """Return the headers of a signed request for a path."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    return {
        KEY_HEADER: b64encode(keys.public_pem(key)).decode(),
        TIME_HEADER: now,
        SIGNATURE_HEADER: keys.signature(key, _DOMAIN + f"{path}\n{now}".encode()).hex(),
    }


class Downloads:
    """Answers requests for deliveries from the folder of a federation."""

    def __init__(self, place: FederationFolder, note: Callable[..., None] = lambda event, **facts: None) -> None:
        self._place, self._note = place, note

    def answer(self, path: str, given: Mapping[bytes, bytes]) -> Found:
        """Return the status and the content of an answer: text, or the path of a file."""
        try:
            member = self.member(path, given)
        except HushError as error:
            return 403, str(error).encode()
        if path == PATH:
            found = [
                {"run": each.parent.name, "time": each.stat().st_mtime, "size": each.stat().st_size}
                for each in self._place.deliveries.glob(f"*/{member}.delivery")
            ]
            return 200, json.dumps(sorted(found, key=lambda each: each["time"])).encode()
        run = path.removeprefix(f"{PATH}/")
        file = self._place.deliveries / run / f"{member}.delivery"
        if not RUN.fullmatch(run) or not file.is_file():
            return 404, b"no delivery of this run for this member"
        self._note("delivered", member=member, run=run)
        return 200, file

    def member(self, path: str, given: Mapping[bytes, bytes]) -> str:
        """Return the name of the member that signed a request, or raise a `HushError`."""
        pem, when, signature = (
            given.get(name.encode(), b"").decode("ascii", "replace")
            for name in (KEY_HEADER, TIME_HEADER, SIGNATURE_HEADER)
        )
        try:
            sent, raw, decoded = datetime.datetime.fromisoformat(when), bytes.fromhex(signature), b64decode(pem)
            age = abs(datetime.datetime.now(datetime.UTC) - sent)
        except (ValueError, TypeError):
            raise HushError("the request is not signed") from None
        names = [name for name, key in self._place.members(lambda error: None).items() if key == decoded]
        if not names:
            raise HushError("this key is not listed")
        if age > _LONGEST:
            raise HushError("the request is older than five minutes, or a clock is wrong")
        if not keys.verified(keys.load_public(decoded, "key"), raw, _DOMAIN + f"{path}\n{when}".encode()):
            raise HushError("the signature of the request is wrong")
        return names[0]
