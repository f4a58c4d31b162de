"""Flower as transport. This is the only folder that imports flwr; both ends exchange bytes through it, and nothing
else.

A SuperLink registers the nodes, with Flower's TLS, node authentication and heartbeats. There are three differences from
Flower's own programs, for the reasons in ADR 0008 and 0028. A node never runs code that a server sends: `NodeClient`
implements the SuperNode's protocol and passes the bytes to the installed code. The coordinator acts as the run's
ServerApp (`CoordinatorClient`), so it needs no second process and no fixed delays. And a gateway protects the SuperLink
(`hush.deploy.transport.gateway`) and carries the messages (`hush.deploy.transport.mailbox`).
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
