"""The folders of a federation: the coordinator's, and the kit of each member.

DIR/federation.toml      name, address, time limits of a round
DIR/members/NAME.pub     public keys of the admitted members; `hush federation revoke` removes one
DIR/server/              CA, certificate, heads of the members' ledgers, audit log
DIR/runs/                one directory per run
DIR/queue/               the runs that wait for each other (`hush.deploy.coordinator.queue`)
DIR/deliveries/RUN/      the signed model of each member of a finished run
DIR/kits/NAME/           given to the member: kit.toml, ca.crt, policy.toml, and (if created here) its key
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.deploy.admin import keys
from hush.types import HushError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in `federation.toml`. Times are in seconds.

    Attributes:
        name: The name of the federation.
        address: The address of the SuperLink, host and port.
        deadline: The maximum duration of a round.
        patience: How long a round waits at most for the remaining members after a quorum has answered.
        max_rows: The maximum number of rows that a member may declare.
        slack: How long a round waits for the remaining members, as a multiple of the time in which half of them
            answered. It is shorter for members that failed before.
        gather: How long a run waits for its members before the first round.
        approval: How long a run waits for people at the members to approve it.
        at_once: How many runs of the queue go on at the same time.
    """

    name: str
    address: str
    deadline: float = 600.0
    patience: float = 600.0
    gather: float = 60.0
    approval: float = 3600.0
    slack: float = 5.0
    max_rows: float = 1e6
    at_once: float = 1.0

    @property
    def host(self) -> str:
        """The host part of the address."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])


class FederationFolder:
    """The coordinator's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = path / "server"
        self.runs = path / "runs"
        self.deliveries = path / "deliveries"
        self.settings = _settings(path / "federation.toml")

    def secret(self) -> str:
        """The secret for the SuperLink's interfaces that are not for nodes."""
        return keys.read(self.server / "coordinator.secret", "the coordinator's secret").decode().strip()

    def ca(self) -> bytes:
        """The CA certificate."""
        return keys.read(self.server / "ca.crt", "the CA certificate")

    def certificate(self) -> dict[str, Path]:
        """The paths of the server's certificate files, after validation."""
        keys.check_server(self.server)
        return {
            "ca": self.server / "ca.crt",
            "certificate": self.server / "server.crt",
            "key": self.server / "server.key",
        }

    def signer(self) -> tuple[keys.PrivateKey, bytes]:
        """The key that signs deliveries, and its certificate; created if there is none."""
        if not (self.server / "signing.key").exists():
            keys.make_signer(self.server, self.settings.name)
        key = keys.load_private(self.server / "signing.key")
        return key, keys.read(self.server / "signing.crt", "the certificate of deliveries")

    def members(self, fault: Callable[[HushError], None] | None = None) -> dict[str, bytes]:
        """The public keys of all members by name, in order.

        A file without a valid key is an error. If `fault` is given, it is called with the error instead, and the file
        is ignored.
        """
        found = {}
        for path in sorted((self.path / "members").glob("*.pub")):
            try:
                found[path.stem] = keys.public_pem(keys.load_public(keys.read(path, "a public key"), path))
            except HushError as error:
                if fault is None:
                    raise
                fault(error)
        return found

    def admit(self, name: str, public: bytes) -> None:
        """Add a member."""
        path = self.path / "members" / f"{_named(name)}.pub"
        pem = keys.public_pem(keys.load_public(public, f"key of {name}"))
        if any(old.read_bytes() == pem for old in (self.path / "members").glob("*.revoked")):
            raise HushError(f"key of {name}: previously revoked; accepted: a new key")
        if path.exists() and path.read_bytes() != pem:
            raise HushError(f"{path}: {name} already has a different key; revoke it first")
        if pem in (key for other, key in self.members().items() if other != name):
            raise HushError(f"key of {name}: another member already uses this key; accepted: a unique key")
        path.write_bytes(pem)

    def revoke(self, name: str) -> bytes:
        """Remove a member; the same key can never be admitted again."""
        path = self.path / "members" / f"{_named(name)}.pub"
        content = keys.read(path, f"the public key of member {name}")
        path.replace(path.with_name(f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.revoked"))
        return content

    def heads(self) -> dict[str, str]:
        """The latest recorded head of each member's ledger."""
        path = self.server / "heads.json"
        try:
            return dict(json.loads(path.read_bytes())) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise HushError(f"{path}: cannot be read: {error}") from None

    def keep_heads(self, heads: dict[str, str]) -> None:
        """Record ledger heads, unless another run has recorded a later one."""
        # The SuperLink process imports this file as well, and does not need PyTorch.
        from hush.server.run_directory import write_atomically

        with (self.server / "heads.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            kept = self.heads()
            newest = {name: max(kept.get(name, ""), heads.get(name, ""), key=_row) for name in kept | heads}
            write_atomically(self.server / "heads.json", json.dumps(newest, indent=2, sort_keys=True).encode())

    @property
    def turn(self) -> Path:
        """The lock file with which coordinators start runs one after the other."""
        return self.server / "run.lock"


@dataclass(frozen=True)
class Kit:
    """A member's folder."""

    path: Path
    member: str
    address: str

    @property
    def ledger(self) -> Path:
        """The member's ledger file."""
        return self.path / "ledger.db"

    def key(self) -> keys.PrivateKey:
        """The member's private key; created if there is none, with the public key next to it."""
        path = self.path / "key.pem"
        if not path.exists():
            made = keys.new_key()
            keys.write_secret(path, keys.private_pem(made))
            (self.path / f"{self.member}.pub").write_bytes(keys.public_pem(made))
        return keys.load_private(path)

    def ca(self) -> bytes:
        """The CA certificate that the server's certificate must be signed with."""
        return keys.read(self.path / "ca.crt", "the CA certificate of the federation")


def open_kit(path: Path) -> Kit:
    """Open the kit in a folder."""
    file = path / "kit.toml"
    if not file.exists() and (path / "federation.toml").exists():
        raise HushError(
            f"{path}: this is the coordinator's directory; a member joins with its own kit, such as {path}/kits/NAME"
        )
    raw = _toml(file)
    if set(raw) != {"member", "address"} or not all(isinstance(value, str) for value in raw.values()):
        raise HushError(f"{file}: expected member and address, found {', '.join(raw)}")
    return Kit(path, _named(raw["member"]), raw["address"])


def create(
    path: Path, members: Sequence[str], address: str, *, hosts: Sequence[str] = (), days: int = 365,
    with_keys: bool = True, policy: str = "", times: dict[str, float] | None = None,
) -> FederationFolder:  # fmt: skip
    """Create a federation, its CA and certificate, and a kit for each member."""
    if path.exists() and any(path.iterdir()):
        raise HushError(f"{path}: not empty; accepted: a new directory")
    if len(set(members)) != len(members) or not members:
        raise HushError(
            f"--members: found {','.join(members) or 'nobody'}; accepted: distinct names, separated by commas"
        )
    names = [_named(name) for name in members]
    _check_address(address, "--address")
    try:
        for folder in ("server", "members", "kits", "runs"):
            (path / folder).mkdir(parents=True)
        (path / "server").chmod(0o700)
        times = {"deadline": 600.0, "patience": 600.0, "gather": 60.0, **(times or {})}
        lines = [
            f'name = "{path.name}"',
            f'address = "{address}"',
            *(f"{key} = {float(v)}" for key, v in times.items()),
        ]
        (path / "federation.toml").write_text("\n".join(lines) + "\n")
        keys.make_authority(path / "server", path.name, 10 * days)
        host = Settings(name="", address=address).host
        keys.make_server(path / "server", list(dict.fromkeys([host, *hosts, "localhost", "127.0.0.1"])), days)
        keys.write_secret(path / "server" / "coordinator.secret", keys.new_secret().encode())
        place = FederationFolder(path)
        for name in names:
            _make_kit(place, name, with_keys, policy)
    except OSError as error:
        raise HushError(f"{path}: cannot be created: {error.strerror or error}") from None
    return place


def _make_kit(place: FederationFolder, name: str, with_keys: bool, policy: str) -> None:
    kit = place.path / "kits" / name
    kit.mkdir(mode=0o700)
    shutil.copy(place.server / "ca.crt", kit / "ca.crt")
    (kit / "kit.toml").write_text(f'member = "{name}"\naddress = "{place.settings.address}"\n')
    (kit / "policy.toml").write_text(policy)
    if with_keys:
        place.admit(name, keys.public_pem(open_kit(kit).key()))


def _settings(path: Path) -> Settings:
    raw = _toml(path)
    known = set(Settings.__dataclass_fields__)
    if not {"name", "address"} <= set(raw) <= known:
        raise HushError(f"{path}: expected {', '.join(sorted(known))}; found {', '.join(raw)}")
    for name, value in raw.items():
        wanted: Any = str if name in ("name", "address") else (int, float)
        if isinstance(value, bool) or not isinstance(value, wanted) or (wanted is not str and value <= 0):
            raise HushError(
                f"{path}: {name} is {value!r}; accepted: {'a string' if wanted is str else 'a positive number'}"
            )
    found = Settings(**raw)
    _check_address(found.address, f"{path}: address")
    return found


def _check_address(address: str, where: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise HushError(f"{where}: found {address!r}; accepted: host:port, such as example.org:8443")


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(keys.read(path, "a file of a federation").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HushError(f"{path}: not valid TOML: {error}") from None


def _row(head: str) -> int:
    """Return the entry number in a ledger head."""
    number = head.partition(":")[0]
    return int(number) if number.isdigit() else -1


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise HushError(f"member {name!r}: accepted: up to 64 letters, digits, dots, dashes and underscores")
    return name
