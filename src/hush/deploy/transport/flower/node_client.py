"""A node's Flower client: it registers with the SuperNode's protocol and takes messages from the gateway's mailbox.

It runs no code received over either.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import fleet_pb2
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from hush.deploy.transport import about
from hush.deploy.transport.gateway import COPIED_HEADER, INSTANCE_HEADER
from hush.deploy.transport.inbox import InboxMessage, read_message
from hush.deploy.transport.mailbox import ANSWER_PATH, DONE_HEADER, MESSAGE_HEADER, NEXT_PATH, NOT_AWAITED, WAIT_HEADER
from hush.deploy.transport.retry import RefusedError, called, trusting
from hush.types import HushError

_HEARTBEAT = 10.0
_WAIT = 0.9  # seconds that a request for the next message waits for it; shorter than _HEARD
_TIMEOUT = 60.0
_HEARD = 1.0  # seconds: after a longer silence, a copy of the kit may take this process's place


class _Instance:
    """Marks the requests of this process, and learns from the gateway when another process uses the same key."""

    def __init__(self, copied: Callable[[], object]) -> None:
        # Not a secret: it only distinguishes two processes.
        self._name, self._copied, self.spoke = uuid.uuid4().hex, copied, 0.0
        self._versions = json.dumps(about.installed(), separators=(",", ":"))

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        add_headers(context.request, {INSTANCE_HEADER: self._name, about.HEADER: self._versions})
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
        signer = NodeAuthHttpInterceptor(key, key.public_key())
        auth = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), signer, self._instance]
        self._auth = [signer, self._instance]
        with trusting(address):
            self._client = FleetHttpClient.from_server_address(address, False, ca, auth)
            self._pulse = FleetHttpClient.from_server_address(address, False, ca, auth)
            self._post = httpx.Client(
                base_url=f"https://{address}", verify=ssl.create_default_context(cadata=ca.decode()), timeout=_TIMEOUT
            )
        self._node: Any = None
        self._done = ""
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
        """Wait about a second for the next message, and return it if there is one."""
        try:
            found: InboxMessage | None = self._call(lambda: self._next(cap))
            return found
        except RefusedError:
            # A restarted SuperLink has lost this node, and will accept its key again.
            self._return()
            return None

    def _next(self, cap: int) -> InboxMessage | None:
        headers = {DONE_HEADER: self._done, WAIT_HEADER: str(round(1000 * _WAIT))}
        response = self._request(NEXT_PATH, headers)
        try:
            if response.status_code != 200:
                response.read()
                response.raise_for_status()
                return None
            # Asked for again, it is passed over: also if it is too long.
            name = response.headers.get(MESSAGE_HEADER, "")
            try:
                payload = read_message(response.headers.get("content-length"), response.iter_raw(1 << 20), cap)
            except HushError:
                self._done = name
                raise
        finally:
            response.close()
        self._done = name
        return InboxMessage(payload, name)

    def reply(self, parcel: InboxMessage, payload: bytes) -> bool:
        """Send the answer to a message. Returns false if the coordinator does not wait for it any more."""

        def push() -> bool:
            response = self._request(ANSWER_PATH, {MESSAGE_HEADER: parcel.name}, payload)
            try:
                if response.read() == NOT_AWAITED:
                    return False
                response.raise_for_status()
            finally:
                response.close()
            return True

        return bool(self._call(push))

    def _request(self, path: str, headers: Mapping[str, str], content: bytes = b"") -> httpx.Response:
        """Send a request of this node, signed like those to Flower."""
        request = self._post.build_request("POST", path, content=content, headers=headers)
        context = SimpleNamespace(request=request)

        def signed(at: int) -> httpx.Response:
            if at == len(self._auth):
                return self._post.send(request, stream=True)
            response: httpx.Response = self._auth[at].intercept(context, lambda _: signed(at + 1))
            return response

        return signed(0)

    def close(self) -> None:
        """Unregister."""
        if self._node is not None:
            with contextlib.suppress(httpx.HTTPError):
                self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=self._node.node_id))
        self.drop()

    def drop(self) -> None:
        """Close the connection without unregistering, like a process that dies."""
        self._stop.set()
        for each in (self._client, self._pulse, self._post):
            each.close()

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
