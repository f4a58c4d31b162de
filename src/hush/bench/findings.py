"""Findings of a benchmark suite: figures under stable keys, their targets, and notes."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

TARGETS: Mapping[str, tuple[str, float]] = {
    "cpu.w1.ours_over_plain": ("<=", 1.0),
    "cpu.w1.opacus_over_ours": (">=", 1.7),
    "cpu.w1.flower_opacus_over_ours": (">=", 1.6),
    "cpu.w2.plain_over_ours": (">=", 3.0),
    "cpu.w2.opacus_over_ours": (">=", 9.0),
    "cpu.w1.secure_over_seeded": ("<=", 1.25),
    "cpu.w2.secure_over_seeded": ("<=", 1.25),
    "cpu.w4.ours_over_plain": ("<=", 1.3),
    "cpu.w4.opacus_over_ours": (">=", 2.0),
    "gpu.w1.samples_per_second": (">=", 1.2e6),
    "gpu.w1.tf32_samples_per_second": (">=", 1.8e6),
    "gpu.w1.opacus_over_ours": (">=", 60.0),
    "gpu.w1.double_vmap_over_ours": (">=", 8.0),
    "gpu.w1.secure_over_seeded": ("<=", 1.25),
    "gpu.w2.secure_over_seeded": ("<=", 1.25),
    "gpu.w2.lockstep.samples_per_second": (">=", 40.0e6),
    "gpu.w3.opacus_over_ours": (">=", 15.0),
    "gpu.w3.simulated.float32_samples_per_second": (">=", 15_000.0),
    "gpu.w3.simulated.tf32_samples_per_second": (">=", 30_000.0),
    "gpu.w3.simulated.bf16_samples_per_second": (">=", 30_000.0),
    "gpu.w3.secure_over_seeded": ("<=", 1.25),
    "gpu.w4.samples_per_second": (">=", 12_000.0),
    "gpu.w4.bf16_samples_per_second": (">=", 30_000.0),
    "gpu.w4.opacus_over_ours": (">=", 10.0),
    "gpu.w5.over_w4": (">=", 2.0),
    "gpu.sweep.runs_per_minute": (">=", 6.0),
    "server.rpca_naive_over_ours": (">=", 80.0),
    "server.resnet18.pairwise_over_mean": ("<=", 2.5),
    "server.resnet18.rpca_over_mean": ("<=", 8.0),
    "plan.clients_per_second": (">=", 50.0),
    "scale.time_10k_over_1k": ("<=", 11.0),
    "scale.time_100k_over_10k": ("<=", 12.0),
    "scale.rss_mib_100k": ("<=", 4096.0),
    "scale.rss_mib_10k_over_start": ("<=", 400.0),
    "ray.w1.over_process": ("<=", 1.15),
    "ray.flower_opacus_over_ours.32_samples": (">=", 3.0),
    "ray.flower_opacus_over_ours.128_samples": (">=", 3.0),
    "ray.pfl_opacus_over_ours.32_samples": (">=", 3.0),
    "ray.pfl_opacus_over_ours.128_samples": (">=", 3.0),
    "memory.resnet18.process_mib": ("<=", 2048.0 + 43.0),
    "memory.resnet18.driver_mib": ("<=", 2048.0),
    "ray.server.robust-hdp.time_2000_over_500": ("<=", 5.0),
    "ray.server.hush.time_2000_over_500": ("<=", 5.0),
    "ray.server.pfa.time_2000_over_500": ("<=", 5.0),
    "ray.server.rc-dpfl.time_2000_over_500": ("<=", 5.0),
    "scale.rss_mib_10k": ("<=", 2000.0),
    "federation.20_members.round_seconds": ("<=", 2.0),
    "federation.resnet18.round_over_local": ("<=", 1.6),
}


_THEN = "; "  # between the commands of a record


@dataclass(frozen=True)
class Findings:
    """The measurements of a suite.

    Attributes:
        figures: Numbers by key.
        notes: How a number was obtained, or why it misses its target or was not measured, by key.
        profiles: Where the time goes, by key: rows of (name, fraction of the time).
    """

    figures: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    profiles: dict[str, list[tuple[str, float]]] = field(default_factory=dict)

    def __or__(self, other: Findings) -> Findings:
        return Findings(self.figures | other.figures, _joined(self.notes, other.notes), self.profiles | other.profiles)

    def record(self, command: str) -> dict[str, Any]:
        """The measurements as a JSON record."""
        return {
            "command": command,
            "figures": self.figures,
            "notes": self.notes,
            "short": short(self.figures),
            "profiles": self.profiles,
            "machine": _machine(),
            "versions": _versions(),
            "measured": time.strftime("%Y-%m-%d"),
        }


def add_to(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record to the one in a file, which may not be there yet. What is measured again replaces what was before.

    The file then names both commands, the higher of the loads, and the load at the end of what gave each figure.
    """
    before = json.loads(path.read_text()) if path.exists() else {}
    both = {key: {**before.get(key, {}), **record[key]} for key in ("figures", "notes", "profiles", "machine")}
    loads = [each["machine"]["load"] for each in (before, record) if each]
    commands = dict.fromkeys([*before.get("command", "").split(_THEN), record["command"]])
    joined = {
        **record,
        **both,
        "command": _THEN.join(filter(None, commands)),
        "machine": {**both["machine"], "load": max(loads)},
        "short": short(both["figures"]),
        "loads": {**before.get("loads", {}), **dict.fromkeys(record["figures"], record["machine"]["load"])},
    }
    path.write_text(json.dumps(joined, indent=2) + "\n")


def short(figures: Mapping[str, float]) -> list[str]:
    """Return the keys of figures that miss their target."""
    return [key for key, value in figures.items() if key in TARGETS and not met(key, value)]


def met(key: str, value: float) -> bool:
    """Return whether a figure meets its target."""
    sense, bound = TARGETS[key]
    return value <= bound if sense == "<=" else value >= bound


def _joined(a: Mapping[str, str], b: Mapping[str, str]) -> dict[str, str]:
    return {key: " ".join(part for part in (a.get(key), b.get(key)) if part) for key in {**a, **b}}


def _machine() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": device,
        "load": round(os.getloadavg()[0], 2),
    }


def _versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    for name in ("hush", "opacus", "flwr", "ray", "scikit-learn", "dp-accounting"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
