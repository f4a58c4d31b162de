"""A cache of what several cells of a table share, computed once and kept in a file beside their runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hush.config import Config
from hush.server.run_directory import to_json, write_atomically


def remembered(file: Path, config: Config, *also: object, compute: Callable[[], Any]) -> Any:
    """What `compute` gives for these data, model and seed, and what else it depends on; from the file if known."""
    told = [config.data.model_dump(), config.model.model_dump(), config.seed, config.local.weight_decay, *also]
    key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    known: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {}
    if key not in known:
        known[key] = compute()
        write_atomically(file, to_json(known))
    return known[key]


def beside(path: Path, name: str) -> Path:
    """A file of the table whose run lies in `path`: a run lies in its cell's folder, and that in the table's."""
    return path.parent.parent / name
