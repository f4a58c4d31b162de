"""A node's Flower client: it implements the SuperNode's protocol, and runs no code received over it."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.common.serde import message_from_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from hush.deploy.transport.flower.packing import packed, partial_message, push, record
from hush.deploy.transport.gateway import COPIED_HEADER, INSTANCE_HEADER
from hush.deploy.transport.inbox import InboxMessage
from hush.deploy.transport.retry import RefusedError, called, trusting

_HEARTBEAT = 10.0
_HEARD = 1.0  # seconds: after a longer silence, a copy of the kit may take this process's place


class _Instance:
    """Marks the requests of this process, and learns from the gateway when another process uses the same key."""

    def __init__(self, copied: Callable[[], object]) -> None:
        # Not a secret: it only distinguishes two processes.
        self._name, self._copied, self.spoke = uuid.uuid4().hex, copied, 0.0

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        add_headers(context.request, {INSTANCE_HEADER: self._name})
        self.spoke = time.monotonic()
        response = call_next(context)
        if COPIED_HEADER in response.headers:
            self._copied()
        return response


class NodeClient:
    """A node's end of the transport. `copied` is called when another process tries to use the same key."""

    def __init__(
        self, address: str, ca: bytes, key: ec.EllipticCurvePrivateKey, patience: float = 600.0,
        copied: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._where, self._patience = address, patience
        self._key = public_key_to_bytes(key.public_key())
        self._stop = threading.Event()
        self._instance = _Instance(copied)
        auth = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
            self._instance,
        ]
        with trusting(address):
            self._client = FleetHttpClient.from_server_address(address, False, ca, auth)
            self._pulse = FleetHttpClient.from_server_address(address, False, ca, auth)
        self._node: Any = None
        self._keep: Callable[[int], object] = lambda number: None

    def open(self, before: int = 0, keep: Callable[[int], object] = lambda number: None) -> int:
        """Register with the SuperLink. Returns the node number; `before` is the number of the last session, if any.

        `keep` is called with the number, and again with the new number if a restarted SuperLink assigns one.
        """
        self._keep = keep
        self._return(before)
        threading.Thread(target=self._beat, daemon=True).start()
        return int(self._node.node_id)

    def _activate(self, before: int) -> None:
        if before:
            # Flower considers a node that died online until it misses a heartbeat.
            with contextlib.suppress(httpx.HTTPError):
                self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=before))
        request = fleet_pb2.ActivateNodeRequest(public_key=self._key, heartbeat_interval=_HEARTBEAT)
        self._node = Node(node_id=self._call(lambda: self._client.ActivateNode(request)).node_id)
        self._keep(int(self._node.node_id))

    def _return(self, before: int = 0) -> None:
        """Register. A key that was just admitted, or whose node died, is refused for a while, so this is retried."""
        began = time.monotonic()
        while True:
            try:
                return self._activate(before)
            except RefusedError as error:
                if time.monotonic() - began >= min(error.passing, self._patience):
                    raise
                time.sleep(0.5)

    def poll(self, cap: int) -> InboxMessage | None:
        """Return the next message, if there is one."""
        try:
            return self._polled(cap)
        except RefusedError:
            # A restarted SuperLink has lost this node, and will accept its key again.
            self._return()
            return None

    def _polled(self, cap: int) -> InboxMessage | None:
        answer = self._call(lambda: self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self._node)))
        if not answer.messages_list:
            return None
        proto, tree = answer.messages_list[0], answer.message_object_trees[0]
        run = proto.metadata.run_id

        def pull(name: str) -> Any:
            request = message_pb2.PullObjectRequest(node=self._node, run_id=run, object_id=name)
            return self._call(lambda: self._client.PullObject(request))

        coming = partial_message(proto, tree, cap)
        while (payload := coming.fetch(pull)) is None:
            time.sleep(0.02)
        confirm = message_pb2.ConfirmMessageReceivedRequest(
            node=self._node, run_id=run, message_object_id=proto.metadata.message_id
        )
        self._call(lambda: self._client.ConfirmMessageReceived(confirm))
        return InboxMessage(payload, message_from_proto(proto))

    def reply(self, parcel: InboxMessage, payload: bytes) -> None:
        """Send the answer to a message."""
        proto, tree, objects = packed(Message(record(payload), reply_to=parcel.message))
        request = fleet_pb2.PushMessagesRequest(
            node=self._node, messages_list=[proto], message_object_trees=[tree], clientapp_runtime_list=[0.0]
        )
        answer = self._call(lambda: self._client.PushMessages(request))
        push(self._client, self._call, self._node, proto.metadata.run_id, objects, answer)

    def close(self) -> None:
        """Unregister."""
        if self._node is not None:
            with contextlib.suppress(httpx.HTTPError):
                self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=self._node.node_id))
        self.drop()

    def drop(self) -> None:
        """Close the connection without unregistering, like a process that dies."""
        self._stop.set()
        self._client.close()
        self._pulse.close()

    def _call(self, call: Callable[[], Any]) -> Any:
        return called(call, self._where, self._patience)

    def _beat(self) -> None:
        beaten = 0.0
        while not self._stop.wait(0.5 * _HEARD):
            now = time.monotonic()
            if now - beaten < 0.5 * _HEARTBEAT and now - self._instance.spoke < _HEARD:
                continue
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_HEARTBEAT)
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                self._pulse.SendNodeHeartbeat(request)
            beaten = now
