"""Fetching a delivered model at a member: download, verify with the CA in the kit, try it, and only then store it."""

from __future__ import annotations

import json
import shutil
import ssl
import tempfile
from pathlib import Path
from typing import Any

from hush.deploy.admin.folders import Kit
from hush.deploy.shared import delivery
from hush.deploy.transport import downloads
from hush.deploy.transport.retry import called
from hush.models.encoders import is_code
from hush.server.run_directory import read_json, write_atomically
from hush.text import printable
from hush.trained_model import TrainedModel
from hush.trained_model import load as load_model
from hush.types import HushError

_TIMEOUT = 600.0


def available(kit: Kit) -> list[dict[str, Any]]:
    """Return the deliveries for this member, the newest last: run, time and size."""
    found = json.loads(_response(kit, downloads.PATH))
    if not isinstance(found, list) or not all(isinstance(each, dict) and "run" in each for each in found):
        raise HushError(f"{kit.address}: the list of deliveries is malformed")
    return found


def fetch(
    kit: Kit, run: str | None, out: Path | None, most: int, model: str | None = None
) -> tuple[Path, dict[str, Any]]:
    """Fetch a model, by default the newest, and return its directory and its certificate.

    Args:
        kit: The member's kit.
        run: The run.
        out: The directory to write; by default `models/RUN` in the kit.
        most: The largest delivery that is accepted, in bytes.
        model: The architecture as `module:function`, where it is not a built-in one.

    Raises:
        HushError: There is no such delivery, it is not signed by this federation for this member, or it was changed.
    """
    known = [str(each["run"]) for each in available(kit)]
    run = run or (known[-1] if known else "")
    if run not in known or not downloads.RUN.fullmatch(run):
        listed = printable(", ".join(known)) or "none; a run delivers its model when it has finished"
        raise HushError(f"no delivery of run {printable(run, 80)!r} for {kit.member}; available: {listed}")
    found = delivery.opened(_response(kit, f"{downloads.PATH}/{run}", most), kit.ca(), kit.member)
    if found.statement.get("run") != run:
        raise HushError(f"delivery: of run {printable(found.statement.get('run'), 80)} in place of {run}")
    target = out or kit.path / "models" / run
    if target.exists() and any(target.iterdir()):
        raise HushError(f"{target}: not empty; choose another directory with --out")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        for name, content in found.files.items():
            (Path(folder) / name).write_bytes(content)
        write_atomically(Path(folder) / delivery.SIGNED, json.dumps(found.signed, indent=2).encode())
        if not needs_code(Path(folder)) or model is not None:
            load_model(folder, model)
        shutil.copytree(folder, target, dirs_exist_ok=True)
    return target, json.loads(found.files["certificate.json"])


def verify(kit: Kit, directory: Path) -> dict[str, Any]:
    """Return the certificate of a fetched model if its files are still those that the coordinator signed."""
    statement = delivery.checked(read_json(directory / delivery.SIGNED), kit.ca(), kit.member)
    names = [entry["name"] for entry in statement["files"]]
    files = {name: (directory / name).read_bytes() for name in names if (directory / name).is_file()}
    delivery.check_files(statement, files)
    return read_json(directory / "certificate.json")


def words(certificate: dict[str, Any], directory: Path) -> list[str]:
    """Return a certificate in a few lines."""
    card = certificate["guarantee"]
    scores, primary = certificate["public_test"]["score"], certificate["public_test"]["primary"]
    mean, spent = scores.get("mean"), card["epsilon_spent"]
    spending = "epsilon unknown to the coordinator; see hush ledger show"
    if spent is not None:
        spending = f"epsilon {spent:.4g} spent in this run, as the coordinator computes it"
    return [
        f"model of run {printable(certificate['run'], 80)} of federation {printable(certificate['federation'], 80)}: "
        f"{printable(certificate['model'], 80)}, recipe {printable(certificate['recipe'], 80)}, "
        f"{certificate['rounds']} rounds, {len(certificate['members'])} members",
        f"guarantee for {printable(card['name'] or certificate['member'], 80)}: {spending}, delta {card['delta']:g} "
        f"({card['relation']})",
        *([f"{primary} on the coordinator's public test set: {mean:.4g}"] if isinstance(mean, float) else []),
        f"signature verified; use it with: hush predict {directory} rows.csv",
    ]


def load(kit: Kit, directory: Path, encoder: str | None = None) -> TrainedModel:
    """Return a fetched model after verifying it; `encoder` names the frozen encoder, where that is code."""
    verify(kit, directory)
    return load_model(directory, encoder=encoder)


def needs_code(folder: Path) -> bool:
    """Whether a model is somebody's own module, or behind an encoder that is code, which only its user may name."""
    found = read_json(folder / "model.json")
    return bool(found.get("own")) or is_code(str(found.get("settings", {}).get("encoder") or ""))


def _response(kit: Kit, path: str, most: int = 1 << 20) -> bytes:
    """Return what the gateway answers to a signed request, at most so many bytes."""
    import httpx

    context = ssl.create_default_context(cadata=kit.ca().decode())

    def get() -> bytes:
        with (
            httpx.Client(verify=context, timeout=_TIMEOUT, trust_env=False) as client,
            client.stream(
                "GET", f"https://{kit.address}{path}", headers=downloads.headers(kit.key(), path)
            ) as response,
        ):
            if response.status_code != 200:
                response.read()
                response.raise_for_status()
            parts, size = [], 0
            for part in response.iter_bytes():
                size += len(part)
                if size > most:
                    raise HushError(f"{kit.address}: the delivery is larger than {most} bytes (limits.max_message)")
                parts.append(part)
        return b"".join(parts)

    return called(get, kit.address, 5.0)
