"""The files of a certificate: the page, the PDF and the signed JSON, written for a run or a delivered model."""

from __future__ import annotations

from pathlib import Path

from hush.certificate import facts as facts_of
from hush.certificate.page import html
from hush.certificate.pdf import pdf
from hush.certificate.sections import content
from hush.certificate.signature import fingerprint, own_key, signed
from hush.deploy.admin import keys
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.shared.delivery import SIGNED as DELIVERY
from hush.server.run_directory import read_json, write_atomically
from hush.types import HushError

PAGE, PDF, SIGNED = "certificate.html", "certificate.pdf", "certificate.signed.json"
DELIVERED = "certificate.json"


def write(
    directory: Path, out: Path | None = None, *, audit: Path | None = None, key: Path | None = None,
    with_pdf: bool = True, recompute: bool = True,
) -> list[Path]:  # fmt: skip
    """Write the certificate of a run, or of a delivered model, and return the files.

    Args:
        directory: The directory of a finished run, or of a model from `hush federation fetch`.
        out: Where to write; by default the directory itself.
        audit: The output of `hush audit --json` for this run.
        key: A private key to sign with (PEM, ECDSA on P-384); by default the coordinator's for a run of its
            federation, else one of this machine.
        with_pdf: Whether to write a PDF, which needs reportlab.
        recompute: Whether to recompute every figure with dp-accounting first.

    Raises:
        HushError: There is no finished run, a figure is wrong, or the audit is of something else.
    """
    delivered = (directory / DELIVERY).exists()
    if delivered and audit is not None:
        raise HushError(
            "--audit: a delivered model's certificate is the coordinator's; accepted: an audit with a run directory"
        )
    source = None
    if delivered:
        source = {name: (directory / name).read_text(encoding="utf-8") for name in (DELIVERED, DELIVERY)}
        facts = facts_of.of_delivery(read_json(directory / DELIVERED))
    else:
        facts = facts_of.of_run(directory, audit, recompute=recompute)
    secret, certificate = _signer(directory, facts["kind"], key)
    name = fingerprint(secret)
    title = f"Privacy certificate of run {facts['run'][:12]}"
    said = content(facts)
    files = {PAGE: html(title, said, name)}
    if with_pdf:
        files[PDF] = pdf(title, said, name)
    files[SIGNED] = signed(facts, said, files, secret, key_certificate=certificate, source=source)
    place = directory if out is None else out
    try:
        place.mkdir(parents=True, exist_ok=True)
        for file, made in files.items():
            write_atomically(place / file, made)
    except OSError as error:
        raise HushError(f"{place}: cannot be written: {error.strerror or error}") from None
    return [place / file for file in files]


def _signer(directory: Path, kind: str, key: Path | None) -> tuple[keys.PrivateKey, bytes]:
    """The key that signs, and the certificate of its federation, if it has one."""
    if key is not None:
        return keys.load_private(key), b""
    place = directory.resolve().parent.parent
    if kind == "federation" and (place / "server" / "ca.key").exists():
        return FederationFolder(place).signer()
    return own_key(), b""
