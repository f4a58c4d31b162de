"""Flower as the post office: the only folder that imports flwr. Both ends pass bytes through it, and nothing else.

A SuperLink carries the messages, with Flower's TLS, node authentication, heartbeats and store. Three things differ from
Flower's own programs, and ADR 0008 says why. A node never runs code that a server sends: `Line` speaks the SuperNode's
protocol and hands the bytes to the code that is installed. The coordinator is the run's ServerApp itself (`Hub`), so it
needs no second process and no fixed sleeps. And a gate stands before the SuperLink (`hush.engines.gate`).
"""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

from hush.engines.flower.hub import Hub
from hush.engines.flower.line import Line
from hush.engines.flower.superlink import superlink
from hush.engines.patience import ForgottenError, RefusedError

__all__ = ["ForgottenError", "Hub", "Line", "RefusedError", "superlink"]
