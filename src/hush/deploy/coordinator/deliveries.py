"""Deliveries of a finished run: each member gets its own model, signed, with its own guarantee card."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hush.deploy.admin.folders import FederationFolder
from hush.deploy.coordinator.agreement import Agreement
from hush.deploy.shared import delivery
from hush.deploy.shared.protocol import code_hash
from hush.engines.driver import CompletedRun
from hush.engines.trained import trained_model
from hush.server.run_directory import to_json, write_atomically
from hush.trained_model import TrainedModel, contents

CERTIFICATE = "certificate.json"
UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]|^(?![A-Za-z0-9])")  # in the name of a run, which members request it by


def deliver(place: FederationFolder, done: CompletedRun, agreement: Agreement, name: str) -> list[Path]:
    """Write the signed delivery of each member of a run; nothing if nothing was trained."""
    if not done.result.trained:
        return []
    whole = trained_model(done.federation, done.models, done.assignments, done.result)
    key, certificate = place.signer()
    name = UNUSUAL.sub("-", name)
    folder = place.deliveries / name
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for client, member in enumerate(agreement.names):
        own = of_member(whole, client, member)
        files = {
            **contents(own),
            CERTIFICATE: to_json(statement(place, done, agreement, name, client)),
        }
        facts = {"federation": place.settings.name, "run": name, "member": member}
        made.append(folder / f"{member}.delivery")
        write_atomically(made[-1], delivery.packed(files, facts, key, certificate))
    return made


def of_member(whole: TrainedModel, client: int, name: str) -> TrainedModel:
    """Return the model that one member uses, with its guarantee card and no other member's."""
    return replace(
        whole,
        networks=(whole.networks[whole.placed[client]],),
        placed=(0,),
        clients=(name,),
        guarantees=(whole.guarantees[client],),
    )


def statement(
    place: FederationFolder, done: CompletedRun, agreement: Agreement, name: str, client: int
) -> dict[str, Any]:
    """Return the certificate of a run for one member: what was trained, with which guarantee for this member."""
    result = done.result
    return {
        "federation": place.settings.name,
        "run": name,
        "id": agreement.run,
        "member": agreement.names[client],
        "members": agreement.names,
        "recipe": result.recipe,
        "model": result.model,
        "rounds": result.rounds,
        "ended": result.ended,
        "delivered": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "code": code_hash(),
        "config_hash": result.config_hash,
        "config": result.config,
        "guarantee": result.guarantees[client],
        "not_covered": result.not_covered,
        "warnings": result.warnings,
        "public_test": {"score": result.score, "primary": result.primary, "loss": result.loss},
        "versions": result.versions,
    }
