"""Findings about a machine that takes part in a federation: what was checked, whether it is well, and what to do."""

from __future__ import annotations

import datetime
import email.utils
import os
import shutil
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cryptography import x509

from hush.deploy.admin import keys
from hush.text import printable
from hush.types import HushError

Level = Literal["ok", "warning", "error"]
SOON = 30.0  # days before it ends from which a certificate is warned of
_LEAST, _SCARCE = 1 << 28, 1 << 31  # bytes free on a disk: too few, and few
_BEHIND, _AHEAD, _NOTABLE = 300.0, 5.0, 2.0  # seconds: what Flower accepts of a member's clock, and what is reported
_TIMEOUT = 10.0
_PYTHON = ((3, 11), (3, 14))


@dataclass(frozen=True)
class Finding:
    """One checked thing. `remedy` says what to do, unless it is well."""

    level: Level
    check: str
    words: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The finding in one line."""
        return f"{self.level:8} {self.check}: {self.words}{f'; {self.remedy}' if self.remedy else ''}"


def checked(check: str, words: Callable[[], str], remedy: str) -> Finding:
    """Return what a function says if it succeeds, or its `HushError` as a finding with this remedy."""
    try:
        return Finding("ok", check, words())
    except (HushError, OSError) as error:
        return Finding("error", check, printable(error, 1000), remedy)


def disk(folder: Path) -> Finding:
    """Return how much room a folder has: a full disk stops a member or a run, although nothing is lost."""
    free = shutil.disk_usage(folder).free
    words = f"{free / 2**30:.1f} GiB free at {folder}"
    if free < _LEAST:
        return Finding("error", "disk", words, "free some space: rounds cannot be saved")
    if free < _SCARCE:
        return Finding("warning", "disk", words, "free some space soon")
    return Finding("ok", "disk", words)


def private(paths: Iterable[Path]) -> list[Finding]:
    """Return whether files with secrets are those of this user alone; those that do not exist are left out."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            status = path.stat()
            mode = stat.S_IMODE(status.st_mode)
            wanted = "700" if path.is_dir() else "600"
            if mode & 0o077:
                words = f"{path}: accessible to other users (mode {mode:04o})"
                found.append(Finding("error", "permissions", words, f"chmod {wanted} {path}"))
            elif status.st_uid != os.geteuid():
                words = f"{path}: owned by user {status.st_uid}, and this is user {os.geteuid()}"
                found.append(Finding("error", "permissions", words, "run hush as the owner of the files"))
    return found or [Finding("ok", "permissions", "keys and secrets are those of this user alone")]


def writable(folder: Path) -> list[Finding]:
    """Return findings if a folder cannot be written here, or can be by other users."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    found = []
    if not os.access(folder, os.W_OK):
        found.append(Finding("error", "permissions", f"{folder}: cannot be written", "run hush as its owner"))
    if mode & 0o022:
        words = f"{folder}: writable by other users (mode {mode:04o})"
        found.append(Finding("warning", "permissions", words, f"chmod go-w {folder}"))
    return found


def own_versions(installed: Mapping[str, str]) -> Finding:
    """Return the versions on this machine."""
    words = ", ".join(f"{name} {value}" for name, value in installed.items())
    low, high = _PYTHON
    if not low <= sys.version_info[:2] < high:
        return Finding("error", "versions", words, f"install Python {low[0]}.{low[1]} or later, below {high[1]}")
    missing = [name for name, value in installed.items() if value == "none"]
    if missing:
        return Finding("error", "versions", words, "pip install 'hush[deploy]'")
    return Finding("ok", "versions", words)


def other_versions(who: str, installed: Mapping[str, str], theirs: Mapping[str, str]) -> Finding:
    """Return how the versions of the other side compare."""
    if not theirs:
        return Finding("warning", "versions", f"{who} does not tell its versions", "install the same version there")
    words = f"{who} has {', '.join(f'{name} {value}' for name, value in theirs.items())}"
    if theirs.get("protocol") != installed["protocol"]:
        remedy = f"install versions of Hush with the same protocol: here it is {installed['protocol']}"
        return Finding("error", "versions", words, remedy)
    unlike = [name for name in ("hush", "torch") if theirs.get(name) != installed[name]]
    if unlike:
        return Finding("ok", "versions", f"{words}: another {' and '.join(unlike)}, with the same protocol")
    return Finding("ok", "versions", words)


def clock(who: str, ahead: float, remedy: str) -> Finding:
    """Return how a member's clock compares with the coordinator's: by how many seconds it is ahead."""
    way = "ahead of" if ahead > 0 else "behind"
    words = f"{who} clock is {abs(ahead):.1f} s {way} the coordinator's"
    if not -_BEHIND < ahead < _AHEAD:
        return Finding("error", "clock", words, remedy)
    if abs(ahead) > _NOTABLE:
        return Finding("warning", "clock", words, remedy)
    return Finding("ok", "clock", words)


def certificate(
    name: str, valid: tuple[datetime.datetime, datetime.datetime], remedy: str, now: datetime.datetime | None = None
) -> Finding:
    """Return how long a certificate is valid, from when and until when it is."""
    (first, last), now = valid, now or datetime.datetime.now(datetime.UTC)
    days = (last - now).total_seconds() / 86400
    if now < first:
        return Finding("error", "certificate", f"{name} is valid from {first:%Y-%m-%d %H:%M} UTC", "correct the clock")
    if days < 0:
        return Finding("error", "certificate", f"{name} expired on {last:%Y-%m-%d %H:%M} UTC", remedy)
    words = f"{name} is valid until {last:%Y-%m-%d}, for {days:.0f} more days"
    return Finding("warning" if days < SOON else "ok", "certificate", words, remedy if days < SOON else "")


def served(address: str, ca: bytes) -> tuple[x509.Certificate | None, str]:
    """Return the certificate that a server shows, and why it is not trusted, or an empty text.

    Raises:
        OSError: Nobody answers at the address.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    why = ""
    for trusted in (True, False):
        context = ssl.create_default_context(cadata=ca.decode("ascii", "replace")) if trusted else _trusting()
        try:
            with (
                socket.create_connection((host, int(port)), _TIMEOUT) as plain,
                context.wrap_socket(plain, server_hostname=host) as line,
            ):
                return x509.load_der_x509_certificate(line.getpeercert(binary_form=True) or b""), why
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message
        except ssl.SSLError as error:
            return None, str(error.reason or error)
    return None, why


def _trusting() -> ssl.SSLContext:
    """A context that accepts any certificate, to look at it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def shown_certificate(address: str, ca: bytes, renew: str) -> Iterator[Finding]:
    """Yield whether somebody answers at an address, with a certificate that the CA signed."""
    try:
        found, why = served(address, ca)
    except (OSError, ValueError) as error:
        remedy = "start hush federation serve there, or open the port in the firewall; or correct the address"
        yield Finding("error", "connection", f"{address}: nobody answers: {printable(error, 200)}", remedy)
        return
    if why and "expired" not in why:
        remedy = (
            renew if "match" in why else
            "ca.crt here is not the CA that signed it: get ca.crt from the coordinator over a trusted channel"
        )  # fmt: skip
        yield Finding("error", "certificate", f"{address}: not trusted: {printable(why, 200)}", remedy)
    elif found is not None:
        yield Finding("ok", "connection", f"{address} answers, with TLS")
    if found is not None:
        valid = found.not_valid_before_utc, found.not_valid_after_utc
        yield certificate(f"the certificate of {address}", valid, renew)


def fetch_about(address: str, ca: bytes, path: str, headers: Mapping[str, str]) -> tuple[dict[str, Any] | str, float]:
    """Return what the gateway tells about itself, or why not, and by how many seconds this clock is ahead of its clock.

    Raises:
        HushError: It does not answer.
    """
    import httpx

    context = ssl.create_default_context(cadata=ca.decode())
    began = time.time()
    try:
        with httpx.Client(verify=context, timeout=_TIMEOUT, trust_env=False) as client:
            response = client.get(f"https://{address}{path}", headers=dict(headers))
    except httpx.HTTPError as error:
        raise HushError(f"{address}: {printable(error, 200)}") from None
    middle = 0.5 * (began + time.time())
    # The header has whole seconds, rounded down.
    dated = response.headers.get("date")
    ahead = middle - email.utils.parsedate_to_datetime(dated).timestamp() - 0.5 if dated else 0.0
    found = response.json() if response.status_code == 200 else printable(response.text, 200)
    return found, 0.0 if abs(ahead) < 1.0 else ahead


def authority(path: Path) -> Iterator[Finding]:
    """Yield how long the CA of a federation is valid."""
    try:
        found = keys.validity(path)
    except HushError as error:
        yield Finding("error", "certificate", printable(error, 500), "restore it from a backup or from another kit")
        return
    yield certificate(f"the CA ({path.name})", found, "plan a new CA: a new ca.crt at all members (docs/operations.md)")
