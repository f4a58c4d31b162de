"""A cache of what several cells of a table share, computed once and stored in a file next to their runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hush.config import Config
from hush.server.run_directory import to_json, write_atomically


def cached(file: Path, config: Config, *also: object, compute: Callable[[], Any]) -> Any:
    """Return the result of `compute` for these data, model, seed and other inputs; from the file if it is there."""
    key_parts = [config.data.model_dump(), config.model.model_dump(), config.seed, config.local.weight_decay, *also]
    key = hashlib.sha256(json.dumps(key_parts, sort_keys=True).encode()).hexdigest()[:16]
    known: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {}
    if key not in known:
        known[key] = compute()
        write_atomically(file, to_json(known))
    return known[key]


def table_file(path: Path, name: str) -> Path:
    """The file of a table, given the path of a run: runs are in the folder of their cell, below that of the table."""
    return path.parent.parent / name
