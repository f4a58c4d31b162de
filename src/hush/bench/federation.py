"""Federation benchmark: rounds between processes on this machine, compared with the local work in them."""

from __future__ import annotations

from hush.bench.findings import Findings


def measure() -> Findings:
    """Measure federations of 3 and of 20 members, and of 2 with a ResNet-18, with TLS and node authentication."""
    from hush.deploy import benchmark

    return Findings(benchmark.measure())
