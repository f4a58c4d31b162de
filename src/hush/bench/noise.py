"""Noise benchmark: normal numbers a second, secure beside seeded, on either device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hush.bench.findings import Findings
from hush.bench.timing import best
from hush.privacy.noise import Secure, Seeded
from hush.privacy.source import Source


def normals(key: str, size: int, device: str) -> Findings:
    """Measure draws of that many float32 numbers."""
    sources: dict[str, Source] = {"seeded": Seeded(0, 0, 1), "secure": Secure()}
    seconds = best({name: _draw(source, device, size) for name, source in sources.items()}, turns=9)
    rates = {f"{key}.noise.{name}_normals_per_second": size / taken for name, taken in seconds.items()}
    return Findings({**rates, f"{key}.noise.secure_over_seeded": seconds["secure"] / seconds["seeded"]})


def _draw(source: Source, device: str, size: int) -> Callable[[], object]:
    rng = source.device_rng(torch.device(device)) if device != "cpu" else None
    if rng is None:
        return lambda: source.normal(size, torch.float32).to(device)
    target = torch.empty(size, device=device)
    return lambda: rng.fill(target)
