"""The delivery of a model to a member: its files, and a statement about them that the coordinator signs.

The statement names the federation, the run, the member, and the SHA-256 of each file. The signature is by a key whose
certificate is signed by the CA of the federation, which is in every kit. A delivery is data: nothing in it is code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hush.deploy.admin import keys
from hush.types import HushError

MAGIC = b"HUSHDELIVERY1\n"
FILES = ("model.safetensors", "fixed.safetensors", "model.json", "certificate.json")
SIGNED = "delivery.json"  # the statement and its signature, beside the files
_HEADER_CAP = 1 << 20


@dataclass(frozen=True)
class Delivery:
    """The files of a delivery by name, the statement about them, and the text that was signed."""

    files: Mapping[str, bytes]
    statement: Mapping[str, Any]
    signed: Mapping[str, str]


def packed(files: Mapping[str, bytes], facts: Mapping[str, str], key: keys.PrivateKey, certificate: bytes) -> bytes:
    """Return a signed delivery: `facts` are federation, run and member."""
    listed = [{"name": name, "size": len(content), "sha256": _sum(content)} for name, content in files.items()]
    statement = json.dumps({**facts, "files": listed}, sort_keys=True)
    signed = {
        "statement": statement,
        "signature": keys.signature(key, MAGIC + statement.encode()).hex(),
        "certificate": certificate.decode(),
    }
    header = json.dumps(signed, sort_keys=True).encode()
    return b"".join([MAGIC, len(header).to_bytes(8, "big"), header, *files.values()])


def opened(content: bytes, ca: bytes, member: str) -> Delivery:
    """Return a delivery whose signature, sizes and sums are right and which is for this member; else raise a
    `HushError`.
    """
    start = len(MAGIC) + 8
    length = int.from_bytes(content[len(MAGIC) : start], "big")
    if not content.startswith(MAGIC) or length > min(_HEADER_CAP, len(content) - start):
        raise HushError("delivery: not a delivery, or cut off")
    signed = _object(content[start : start + length])
    statement = checked(signed, ca, member)
    files, at = dict[str, bytes](), start + length
    for entry in statement["files"]:
        files[entry["name"]] = content[at : at + entry["size"]]
        at += entry["size"]
    if at != len(content):
        raise HushError("delivery: more or fewer bytes than its statement lists")
    check_files(statement, files)
    return Delivery(files, statement, signed)


def checked(signed: Mapping[str, Any], ca: bytes, member: str) -> dict[str, Any]:
    """Return the statement of a delivery if the coordinator of this federation signed it for this member."""
    if set(signed) != {"statement", "signature", "certificate"} or not all(isinstance(v, str) for v in signed.values()):
        raise HushError("delivery: its header does not have statement, signature and certificate")
    public = keys.signer(signed["certificate"].encode(), ca)
    try:
        signature = bytes.fromhex(signed["signature"])
    except ValueError:
        raise HushError("delivery: its signature is not hexadecimal") from None
    if not keys.verified(public, signature, MAGIC + signed["statement"].encode()):
        raise HushError("delivery: it is not signed by the coordinator of this federation, or was changed")
    statement = _object(signed["statement"].encode())
    if statement.get("member") != member:
        raise HushError(f"delivery: for member {str(statement.get('member'))[:64]!r}; this member is {member}")
    entries = statement.get("files")
    if not isinstance(entries, list) or not all(_entry(each) for each in entries):
        raise HushError(f"delivery: accepted files: {', '.join(FILES)}")
    return statement


def check_files(statement: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Raise a `HushError` unless the files are those of the statement."""
    for entry in statement["files"]:
        content = files.get(entry["name"])
        if content is None or len(content) != entry["size"] or _sum(content) != entry["sha256"]:
            raise HushError(f"delivery: {entry['name']} is missing or is not the file that was signed")


def _entry(each: Any) -> bool:
    known = isinstance(each, dict) and set(each) == {"name", "size", "sha256"} and each["name"] in FILES
    return known and type(each["size"]) is int and each["size"] >= 0 and isinstance(each["sha256"], str)


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise HushError("delivery: its header is not JSON") from None
    if not isinstance(found, dict):
        raise HushError("delivery: its header is not a JSON object")
    return found


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
