"""Plan benchmark: how fast noise is calibrated."""

from __future__ import annotations

import time

from hush.bench.findings import Findings
from hush.privacy.accounting import api
from hush.seeds import rng


def measure() -> Findings:
    """Measure the calibration of clients that all differ."""
    generator = rng(0, "bench", "plan")
    clients = [
        (
            float(10 ** generator.uniform(-1, 1)),
            1e-5,
            float(10 ** generator.uniform(-2.5, -0.5)),
            int(generator.integers(100, 5000)),
        )
        for _ in range(100)
    ]
    began = time.perf_counter()
    api.noise_multipliers(clients)
    return Findings({"plan.clients_per_second": len(clients) / (time.perf_counter() - began)})
