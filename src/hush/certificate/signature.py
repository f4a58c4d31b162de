"""The signature of a certificate: made with a key of this machine, an organisation or a federation, and verified.

A signed certificate is one JSON file with the statement as text, its signature (ECDSA on P-384), and the public key.
The statement has the facts, every sentence of the page, and the SHA-256 of the page and the PDF.

Guarantees:
    - `verified` refuses a file in which any byte of the statement, and so any field, differs from what was signed, and
      pages beside it that are not those that were signed.
    - With `trust`, it refuses a signature by any other key: a public key, or the CA of a federation that certified the
      coordinator's.

Edge cases:
    - A key that somebody made for themselves proves that whoever holds it signed, and nothing about who that is. Who
      signs another statement with a key of their own passes without `trust`: its fingerprint differs.
    - The certificate of a delivered model has the delivery that the coordinator signed inside. With the CA as `trust`,
      this is what is verified.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from hush.certificate import facts as facts_of
from hush.certificate.sections import Content
from hush.deploy.admin import keys
from hush.deploy.shared import delivery
from hush.privacy.ledger import witness
from hush.types import HushError

MAGIC = b"HUSHCERTIFICATE1\n"
KEY = "certificate.key"
_FIELDS = {"statement", "signature", "public_key", "key_certificate"}
_MOST = 1 << 26


@dataclass(frozen=True)
class Verified:
    """A statement whose signature is right: the fingerprint of its key, and what was and was not checked."""

    statement: Mapping[str, Any]
    fingerprint: str
    checks: tuple[str, ...]


def own_key() -> keys.PrivateKey:
    """Return the key of this machine and user that signs certificates, made once, beside the key of the ledgers."""
    here = witness.here()
    here.key()
    path = here.directory / KEY
    if not path.exists():
        keys.write_secret(path, keys.private_pem(keys.new_key()))
    return keys.load_private(path)


def fingerprint(key: keys.PrivateKey | keys.PublicKey) -> str:
    """Return what identifies a public key: the SHA-256 of its PEM text."""
    return f"SHA256:{hashlib.sha256(keys.public_pem(key)).hexdigest()}"


def signed(
    facts: Mapping[str, Any], content: Content, files: Mapping[str, bytes], key: keys.PrivateKey, *,
    key_certificate: bytes = b"", source: Mapping[str, str] | None = None,
) -> bytes:  # fmt: skip
    """Return a signed certificate.

    Args:
        facts: The facts.
        content: What the page says.
        files: The page and the PDF by name.
        key: The key that signs.
        key_certificate: The certificate of the key by the CA of a federation.
        source: For a delivered model: its certificate.json and delivery.json as text.
    """
    statement = {
        "format": facts_of.FORMAT,
        "signed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "facts": dict(facts),
        "text": plain_text(content),
        "files": {name: hashlib.sha256(each).hexdigest() for name, each in files.items()},
        "source": None if source is None else dict(source),
    }
    text = json.dumps(statement, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    words = {
        "statement": text,
        "signature": keys.signature(key, MAGIC + text.encode()).hex(),
        "public_key": keys.public_pem(key).decode(),
        "key_certificate": key_certificate.decode(),
    }
    return json.dumps(words, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def verified(path: Path, trust: Path | None = None) -> Verified:
    """Verify a signed certificate, and the page and PDF beside it.

    Args:
        path: The signed file.
        trust: The public key that must have signed it, or the CA certificate of the federation (PEM).

    Raises:
        HushError: It was changed, is not a signed certificate, or was signed with another key.
    """
    words = _words(keys.read(path, "a signed certificate"), path)
    public = keys.load_public(words["public_key"].encode(), path)
    if keys.public_pem(public).decode() != words["public_key"]:
        raise HushError(f"{path}: its public key is not in the usual form; it was changed")
    try:
        found = bytes.fromhex(words["signature"])
    except ValueError:
        raise HushError(f"{path}: its signature is not hexadecimal; it was changed") from None
    if found.hex() != words["signature"] or not keys.verified(public, found, MAGIC + words["statement"].encode()):
        raise HushError(f"{path}: its signature does not fit what it says; it was changed after it was signed")
    if words["key_certificate"]:
        _check_same(words["key_certificate"], public, path)
    statement = _statement(words["statement"], path)
    checks = [*_files(statement, path), *_trusted(words, statement, public, trust, path)]
    return Verified(statement, fingerprint(public), tuple(checks))


def plain_text(content: Content) -> list[str]:
    """Return every sentence of a certificate in order, with the table's cells in lines."""
    rows = [" | ".join(row) for row in (content.heads, *content.rows)]
    rest = [line for each in content.sections for line in (f"{each.title}:", *each.paragraphs, *each.points)]
    return [content.headline, *content.summary, *rows, *content.reading, *rest]


def _words(raw: bytes, path: Path) -> dict[str, str]:
    try:
        if len(raw) > _MOST:
            raise ValueError
        words = json.loads(raw)
        if not isinstance(words, dict) or set(words) != _FIELDS or not all(isinstance(v, str) for v in words.values()):
            raise ValueError
        # What is beside the statement is written in one way alone, so that no byte can change unnoticed.
        if json.dumps(words, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n" != raw:
            raise ValueError
    except (ValueError, RecursionError):
        raise HushError(
            f"{path}: not a signed certificate as it was written; accepted: certificate.signed.json"
        ) from None
    return words


def _statement(text: str, path: Path) -> dict[str, Any]:
    """The statement, if it has the parts of one: whoever holds a key can sign anything."""
    kinds = {"format": str, "signed": str, "facts": dict, "text": list, "files": dict, "source": dict | None}
    try:
        found = json.loads(text)
        right = isinstance(found, dict) and set(found) == set(kinds) and found["format"] == facts_of.FORMAT
        right = right and all(isinstance(found[name], kind) for name, kind in kinds.items())
        right = right and all(isinstance(each, str) for each in [*found["text"], *found["files"].values()])
    except (ValueError, RecursionError):
        right = False
    if not right:
        raise HushError(f"{path}: not a certificate of this version of hush")
    return dict(found)


def _check_same(certificate: str, public: keys.PublicKey, path: Path) -> None:
    try:
        certified: Any = x509.load_pem_x509_certificate(certificate.encode()).public_key()
        same = keys.public_pem(certified) == keys.public_pem(public)
    except (ValueError, AttributeError):
        same = False
    if not same:
        raise HushError(f"{path}: the certificate of its key is for another key; it was changed")


def _files(statement: Mapping[str, Any], path: Path) -> list[str]:
    checks = []
    for name, digest in statement["files"].items():
        beside = path.parent / Path(name).name
        if not beside.exists():
            checks.append(f"{name}: not here, so not verified")
        elif hashlib.sha256(beside.read_bytes()).hexdigest() != digest:
            raise HushError(f"{beside}: not the file that was signed; it was changed")
        else:
            checks.append(f"{name}: as it was signed")
    return checks


def _trusted(
    words: Mapping[str, str], statement: Mapping[str, Any], public: keys.PublicKey, trust: Path | None, path: Path
) -> list[str]:
    if trust is None:
        return [
            "unchanged since it was signed with this key. A key proves that whoever holds it signed, not who that "
            "is: compare its "
            "fingerprint with one that you got in another way, or pass --trust with their public key or the ca.crt "
            "of the federation"
        ]
    pem = keys.read(trust, "a public key, or a CA certificate")
    if b"BEGIN CERTIFICATE" not in pem:
        if keys.public_pem(keys.load_public(pem, trust)) != keys.public_pem(public):
            raise HushError(f"{path}: signed with another key than {trust}: {fingerprint(public)}")
        return [f"signed with the key in {trust}"]
    source = statement["source"]
    if source is not None:
        _check_delivery(statement, source, pem, path)
        return ["its facts are those that the coordinator of this federation signed for this member"]
    if not words["key_certificate"]:
        raise HushError(
            f"{path}: signed with a key that no CA certified; accepted with it: --trust and that public key"
        )
    keys.signer(words["key_certificate"].encode(), pem)
    return ["signed by the coordinator of this federation"]


def _check_delivery(statement: Mapping[str, Any], source: Mapping[str, str], ca: bytes, path: Path) -> None:
    """Raise a `HushError` unless the coordinator signed the facts."""
    try:
        text = source["certificate.json"]
        content = json.loads(text)
        stated = delivery.checked(json.loads(source["delivery.json"]), ca, str(content.get("member")))
        digests = [entry["sha256"] for entry in stated["files"] if entry["name"] == "certificate.json"]
        same = digests == [hashlib.sha256(text.encode()).hexdigest()]
        same = same and facts_of.of_delivery(content) == statement["facts"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        same = False
    if not same:
        raise HushError(f"{path}: its facts are not those that the coordinator signed")
