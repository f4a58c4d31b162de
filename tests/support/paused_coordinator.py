"""A coordinator in a process of its own that waits after each round, so that a test can look at its memory."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from hush.config import parse
from hush.deploy.admin import localhost
from hush.deploy.admin.folders import FederationFolder
from hush.types import RoundRecord


def run(folder: str, config: str, directory: str) -> None:
    """Run a config (as JSON), and go on after each round when the file that says so is there."""
    out = Path(directory)

    def waits(record: RoundRecord, left: Mapping[str, str]) -> None:
        print(f"round {record.round} waits", flush=True)
        while not (out / f"go-{record.round}").exists():
            time.sleep(0.02)

    localhost.coordinator(FederationFolder(Path(folder)), 10).run(parse(json.loads(config)), out, progress=waits)
    print("ended", flush=True)
