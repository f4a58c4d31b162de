"""The certificate command: write the certificate of a run for a privacy officer, and verify one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hush.text import printable
from hush.types import HushError

_LONGEST = 4000


def certificate(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="A finished run, or a model that was fetched from a federation."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The directory to write to; default: RUN.")] = None,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The output of hush audit --json for this run.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key to sign with; default: one of this machine.")
    ] = None,
    pdf: Annotated[bool, typer.Option(help="Write a PDF beside the page.")] = True,
    check: Annotated[bool, typer.Option(help="Recompute every figure first (hush ledger check).")] = True,
    verify: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Verify a certificate.signed.json, and the files beside it.")
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --verify: the public key, or CA of the federation, that must have signed."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a one-page certificate of a run for a privacy officer (HTML, PDF, signed JSON), or verify one."""
    from hush.certificate.files import write
    from hush.certificate.signature import verified
    from hush.server.run_directory import to_json

    if (directory is None) == (verify is None):
        raise HushError("certificate: accepted: the directory of a run, or --verify FILE")
    if verify is not None:
        found = verified(verify, trust)
        if as_json:
            checks = {
                "verified": True,
                "fingerprint": found.fingerprint,
                "checks": found.checks,
                "statement": found.statement,
            }
            sys.stdout.write(to_json(checks).decode())
            return
        lines = [
            *found.statement["text"][:2],
            f"signed {found.statement['signed']} with the key {found.fingerprint}",
            *found.checks,
        ]
        print("\n".join(printable(line, _LONGEST) for line in lines))
        return
    if trust is not None:
        raise HushError("--trust: given without --verify; leave it out")
    assert directory is not None
    made = write(directory, out, audit=audit, key=key, with_pdf=pdf, recompute=check)
    if as_json:
        sys.stdout.write(to_json([str(path) for path in made]).decode())
    else:
        print("\n".join(printable(path, _LONGEST) for path in made))
