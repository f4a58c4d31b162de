"""A backup of a coordinator's folder or of a member's kit in one file, and its restoration into a new folder.

Guarantees:
    - A backup is taken while everything runs. A ledger in it is a consistent copy, checked as on opening.
    - A backup is readable by its owner alone (mode 0600), as it contains private keys. Rows are not in it.
    - Restoration checks every file against the backup's list, and writes to a new folder only.

Edge cases:
    - The witness is not in a backup: restored with its ledger, it could not tell an old copy from the latest. So a
      restored ledger has to be adopted (`hush ledger adopt`), and one that lacks a charge is refused by the witness of
      its machine, or by the coordinator.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from hush.deploy.admin.folders import FederationFolder, open_kit
from hush.deploy.transport.about import installed
from hush.privacy.ledger import ledger
from hush.text import printable
from hush.types import HushError

Kind = Literal["coordinator", "member"]
LIST = "backup.json"
_NAMES: dict[Kind, tuple[str, ...]] = {
    "coordinator": (
        "federation.toml", "schema.toml", "test.*", "members", "server", "runs", "deliveries", "queue",
    ),
    "member": (
        "kit.toml", "ca.crt", "key.pem", "*.pub", "policy.toml*", "schema.toml", "held-out.json", "audit.jsonl*",
        "node", "runs", "proposals", "models",
    ),
}  # fmt: skip
_LEFT_OUT = (".part", ".lock", ".log", "presence.json")
_LEDGER = "ledger.db"
_MOST = 1 << 30  # bytes of one file


@dataclass(frozen=True)
class Backup:
    """What a backup is of, and when it was taken."""

    kind: Kind
    name: str
    time: str
    files: int


def write(folder: Path, out: Path) -> Backup:
    """Write a backup of a folder, or raise a `HushError`."""
    kind, name = _kind(folder)
    if out.exists():
        raise HushError(f"{out}: already exists; accepted: a new file")
    taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    part = out.with_name(f"{out.name}.part")
    listed: dict[str, str] = {}
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                for path, content in _contents(folder, kind):
                    listed[path] = hashlib.sha256(content).hexdigest()
                    _add(archive, path, content)
                facts = {"kind": kind, "name": name, "time": taken, "versions": installed(), "files": listed}
                _add(archive, LIST, json.dumps(facts, indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        part.rename(out)
    except OSError as error:
        raise HushError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    return Backup(kind, name, taken, len(listed))


def restore(file: Path, folder: Path) -> Backup:
    """Restore a backup into a new folder, or raise a `HushError` and leave nothing there."""
    if folder.exists() and any(folder.iterdir()):
        raise HushError(f"{folder}: not empty; accepted: a new directory")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".restored-") as made:
            place = Path(made) / "restored"
            place.mkdir(mode=0o700)
            found = _unpacked(file, place)
            if folder.exists():
                folder.rmdir()
            place.rename(folder)
    except OSError as error:
        raise HushError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return found


def advice(found: Backup, folder: Path) -> list[str]:
    """Return what to do after a restoration."""
    if found.kind == "coordinator":
        return [
            f"the state of {found.time}; charges that members made since are on record at the members",
            f"hush federation doctor {folder} --offline; then start serve, and unfinished runs again with --resume",
        ]
    if not (folder / _LEDGER).exists():
        return ["there was no ledger yet; the first join creates it"]
    return [
        f"{folder / _LEDGER} is a copy of {found.time}. Only if this member sent nothing since then is it the latest: "
        f"hush ledger adopt {folder / _LEDGER}",
        "otherwise it is refused in the next run, and the budget of its rows counts as spent (docs/operations.md)",
    ]


def _kind(folder: Path) -> tuple[Kind, str]:
    if (folder / "federation.toml").exists():
        return "coordinator", FederationFolder(folder).settings.name
    if (folder / "kit.toml").exists():
        return "member", open_kit(folder).member
    raise HushError(f"{folder}: neither a coordinator's directory nor a member's kit; accepted: one of them")


def _contents(folder: Path, kind: Kind) -> Iterator[tuple[str, bytes]]:
    """The files of a backup by their relative path; the ledger first, so that what it refers to is there."""
    if kind == "member" and (folder / _LEDGER).exists():
        with tempfile.TemporaryDirectory(prefix="hush-backup-") as made:
            copy = Path(made) / _LEDGER
            ledger.copy(folder / _LEDGER, copy)
            for path in _files(Path(made)):
                yield path.relative_to(made).as_posix(), path.read_bytes()
    for pattern in _NAMES[kind]:
        for top in sorted(folder.glob(pattern)):
            for path in _files(top) if top.is_dir() else [top]:
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    # A file that was replaced in the meantime, such as the checkpoint of an earlier round.
                    continue
                yield path.relative_to(folder).as_posix(), content


def _files(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(path for path in found if not path.name.endswith(_LEFT_OUT))


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
    archive.addfile(entry, io.BytesIO(content))


def _unpacked(file: Path, place: Path) -> Backup:
    """Unpack an archive: plain files with relative names only, exactly those of its list."""
    seen: dict[str, str] = {}
    facts: dict[str, Any] = {}
    try:
        with tarfile.open(file, mode="r:gz") as archive:
            for entry in archive:
                name = PurePosixPath(entry.name)
                source = archive.extractfile(entry) if entry.isreg() else None
                if source is None or name.is_absolute() or ".." in name.parts or entry.size > _MOST:
                    raise HushError(f"{file}: contains {printable(entry.name, 100)!r}, which a backup does not have")
                content = source.read()
                if entry.name == LIST:
                    facts = json.loads(content)
                    continue
                seen[entry.name] = hashlib.sha256(content).hexdigest()
                path = place / name
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as out:
                    out.write(content)
                    out.flush()
                    os.fsync(out.fileno())
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        raise HushError(f"{file}: not a backup, or damaged: {printable(error, 200)}") from None
    if not facts or facts.get("files") != seen:
        raise HushError(f"{file}: damaged: its files are not those of its list; accepted: an intact backup")
    if facts["kind"] == "coordinator":
        for folder in ("kits", "members", "runs"):
            (place / folder).mkdir(exist_ok=True)
    return Backup(facts["kind"], str(facts["name"]), str(facts["time"]), len(seen))
