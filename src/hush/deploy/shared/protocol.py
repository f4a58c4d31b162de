"""The protocol version: which versions of Hush talk to each other. This file does not import PyTorch.

Both sides of a federation compute plans, limits and updates from the same public numbers, so both must compute alike.
`PROTOCOL` is raised whenever something changes in what is computed or sent: a plan, a cost, an update, a message, a
default of the config, or a file from which a run is resumed. A golden test (`tests/deploy/shared/test_protocol.py`)
fails when that happens without a new number. Versions with the same number can be on either side, and one side can be
upgraded between two rounds of a run. Equal code always has the same protocol.

A side states its version as `PROTOCOL:HASH`, with the hash of its code. The hash is a statement, not a proof: a member
is protected by its own policy, plan and ledger, whatever code the coordinator runs.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hush.types import HushError

PROTOCOL = 2
_FORM = re.compile(r"(?:([0-9]{1,6}):)?([0-9a-f]{64})")


@cache
def code_hash() -> str:
    """SHA-256 of the installed code: the name and content of every Python file of Hush."""
    total = hashlib.sha256()
    root = Path(str(files("hush")))
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


@dataclass(frozen=True)
class Version:
    """A protocol version, 0 where none is stated, and the hash of the code."""

    protocol: int
    code: str

    def __str__(self) -> str:
        return f"{self.protocol}:{self.code}"

    @property
    def words(self) -> str:
        """The version in words."""
        return f"{f'protocol {self.protocol}' if self.protocol else 'no protocol version'} (code {self.code[:16]})"


def own() -> Version:
    """Return the version of the installed code."""
    return Version(PROTOCOL, code_hash())


def read_version(text: Any) -> Version:
    """Return the version that the other side states, or raise a `HushError`."""
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise HushError("the version of the other side's code is malformed")
    return Version(int(found[1] or 0), found[2])


def is_compatible(one: Version, other: Version) -> bool:
    """Whether two versions can take part in one run."""
    return one.code == other.code or one.protocol == other.protocol
