"""Rounds between processes on this machine, over the local work in them."""

from __future__ import annotations

from hush.bench.found import Found


def measure() -> Found:
    """Federations of 3 and of 20 members, with TLS and node authentication."""
    from hush.deploy import bench

    return Found(bench.measure())
