"""Flower as the post office: the only folder that imports flwr. Both ends pass bytes through it, and nothing else.

A SuperLink carries the messages, with Flower's TLS, node authentication, heartbeats and store. Three things differ from
Flower's own programs, and ADR 0008 says why. A node never runs code that a server sends: `Line` speaks the SuperNode's
protocol and hands the bytes to the code that is installed. The coordinator is the run's ServerApp itself (`Hub`), so it
needs no second process and no fixed sleeps. And a gate stands before the SuperLink (`hush.deploy.transport.gateway`).
"""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

from hush.deploy.transport.flower.coordinator_client import CoordinatorClient
from hush.deploy.transport.flower.node_client import NodeClient
from hush.deploy.transport.flower.superlink import superlink
from hush.deploy.transport.retry import ForgottenError, RefusedError

__all__ = ["CoordinatorClient", "ForgottenError", "NodeClient", "RefusedError", "superlink"]
