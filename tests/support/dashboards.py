"""Folders that dashboards look at: a coordinator's with a run under way, written as its processes write them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hush.deploy.admin.audit_log import AuditLog
from hush.deploy.admin.folders import FederationFolder, create
from hush.deploy.shared.presence import FILE, presence_file
from hush.server.run_directory import plain
from tests.support.live_runs import begun
from tests.support.report_runs import CLIENTS, record

NAMES = tuple(f"clinic-{number}" for number in range(CLIENTS))
RUN = "5d3b53a6" * 4


class Written:
    """A coordinator's folder, and a run of its federation that goes on round by round."""

    def __init__(self, path: Path, rounds: int = 30) -> None:
        self.place: FederationFolder = create(path, NAMES, "127.0.0.1:18443")
        self.log = AuditLog(self.place.server / "audit.jsonl")
        self.rounds = rounds
        self.run = self.place.runs / "pilot"

    def begin(self, left_out: Mapping[str, str] | None = None) -> None:
        """Enrol the members, and start the run."""
        for name, reason in (left_out or {}).items():
            self.log.note("not enrolled", run=RUN, member=name, reason=reason)
        begun(self.run, self.rounds)
        (self.run / "federation.json").write_text(
            json.dumps({"run": RUN, "facts": [{"name": name} for name in NAMES], "config": {}})
        )

    def round(self, number: int, refused: Mapping[str, str] | None = None) -> None:
        """Save a round, in which some members gave no update."""
        out = refused or {}
        answered = [name for name in NAMES if name not in out]
        kept = record(number)
        chosen = tuple(client for client in kept.charged if NAMES[client] not in out)
        kept = replace(
            kept, charged=chosen, weights={c: w for c, w in kept.weights.items() if c in chosen},
            refused={NAMES.index(name): reason for name, reason in out.items()},
        )  # fmt: skip
        with (self.run / "rounds.jsonl").open("ab") as file:
            file.write(json.dumps(plain(asdict(kept))).encode() + b"\n")
        seconds = {name: 0.1 + 0.01 * number + 0.02 * place for place, name in enumerate(answered)}
        self.log.note("closed", run=RUN, round=number, answered=answered, refused=dict(out), seconds=seconds)

    @contextmanager
    def serving(self, offline: tuple[str, ...] = ()) -> Iterator[None]:
        """Have `serve` run, with all members online but these."""

        def facts() -> dict[str, Any]:
            return {"address": "127.0.0.1:18443", "heard": {n: time.time() for n in NAMES if n not in offline}}

        with presence_file(self.place.server, facts):
            while not (self.place.server / FILE).exists():
                time.sleep(0.01)
            yield
