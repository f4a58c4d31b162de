"""The coordinator's Flower client: it registers nodes and starts a run; messages and replies pass the mailbox."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import ssl
import sys
import threading
import time
import uuid
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.proto import control_pb2, runtime_pb2
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.runtime import RuntimeHttpClient

from hush.deploy.transport import mailbox
from hush.deploy.transport.gateway import LIMIT_HEADER, LIMIT_PATH, RUN_HEADER, SECONDS_HEADER, SECRET_HEADER
from hush.deploy.transport.inbox import Peer, read_message
from hush.deploy.transport.messages import Buffer, EncodedMessage
from hush.deploy.transport.retry import ForgottenError, RefusedError, called, trusting
from hush.types import HushError

_HEARTBEAT = 10.0
_FIRST = 5.0
_TIMEOUT = 60.0
_FEDERATION_APP = b"""[project]
name = "hush"
version = "1.0.0"
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "hush"

[tool.flwr.app.components]
serverapp = "app:none"
clientapp = "app:none"
"""


class _Secret:
    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        add_headers(context.request, {SECRET_HEADER: self._secret})
        return call_next(context)


class CoordinatorClient:
    """The coordinator's end of the transport.

    `turn` is a lock file with which coordinators of one federation start runs one after the other, so that each gets
    its own task from the SuperLink.
    """

    def __init__(self, address: str, ca: bytes, secret: str, patience: float = 30.0, turn: Path | None = None) -> None:
        self._where, self._ca, self._secret, self._patience = address, ca, secret, patience
        self._turn = turn
        with trusting(address):
            self._control = ControlHttpClient.from_server_address(
                address, False, ca, [RuntimeVersionHttpInterceptor(component_name="flwr"), _Secret(secret)]
            )
            self._plain = httpx.Client(
                base_url=f"https://{address}", verify=ssl.create_default_context(cadata=ca.decode()), timeout=_TIMEOUT
            )
        self._runtime: Any = None
        self._run = 0
        self._keys: dict[int, bytes] = {}
        self._stop = threading.Event()

    def register(self, key: bytes, name: str) -> int:
        """Register a public key (PEM)."""
        request = control_pb2.RegisterNodeRequest(public_key=key, name=name)
        return int(self._call(lambda: self._control.RegisterNode(request)).node_id)

    def unregister(self, node: int) -> None:
        """Remove a node permanently."""
        self._call(lambda: self._control.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=node)))

    def peers(self) -> list[Peer]:
        """All registered nodes."""
        found = self._call(lambda: self._control.ListNodes(control_pb2.ListNodesRequest())).nodes_info
        return _peers(found)

    def open(self) -> None:
        """Start a run, after which messages can be sent. Also called if the SuperLink has lost the run."""
        with self._alone():
            self._open()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock under which coordinators of this federation start runs."""
        if self._turn is None:
            yield
            return
        with self._turn.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _open(self) -> None:
        self._stop.set()
        self._finish("failed", "restarted")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the level at which a library used by Flower logs
            fab, _ = build_fab_from_files({"pyproject.toml": _FEDERATION_APP, "app.py": b"none = None\n"})
        begin = control_pb2.StartRunRequest(fab=Fab(content=fab))
        # A SuperLink that was never reached is reported soon; one that was reached may be restarting.
        patience = self._patience if self._run else min(_FIRST, self._patience)
        run = called(lambda: self._control.StartRun(begin), self._where, patience).run_id
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            plain = self._client([])
            claimed = self._call(
                partial(plain.AcquireTask, runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            )
            plain.close()
            if not claimed.token:
                time.sleep(0.1)
                continue
            self._runtime = self._client([RuntimeTokenHttpInterceptor(token=claimed.token)])
            if claimed.task.run_id == run:
                break
            # A task of a run whose coordinator died before it began; no other process will claim it.
            self._finish("failed", "abandoned")
        else:
            raise HushError(f"{self._where}: the SuperLink assigns no run; is another program taking its tasks?")
        self._run = self._call(lambda: self._runtime.PullTaskInput(runtime_pb2.PullTaskInputRequest())).run.run_id
        self._stop = threading.Event()
        threading.Thread(target=self._beat, args=(self._stop,), daemon=True).start()

    def limit(self, cap: int, seconds: float) -> None:
        """Set the gateway's size limit for answers to this run (a few per node), until the next call or for this many
        seconds.

        Other runs have their own limits.
        """
        self._call(lambda: self._allow(cap, seconds))

    def _allow(self, cap: int, seconds: float) -> None:
        self._post(LIMIT_PATH, headers={LIMIT_HEADER: str(cap), SECONDS_HEADER: str(math.ceil(seconds))})

    def _post(self, path: str, pieces: Sequence[Buffer] = (), headers: Mapping[str, str] | None = None) -> bytearray:
        """Send a request of the coordinator of this run, and return the content of the response."""
        size = sum(map(len, pieces))
        named = {
            SECRET_HEADER: self._secret,
            RUN_HEADER: str(self._run),
            "content-length": str(size),
            **(headers or {}),
        }
        # Large pieces are sent from where they are.
        content: Iterator[Any] = iter(pieces)
        with self._plain.stream("POST", path, content=content, headers=named) as response:
            if response.status_code >= 400:
                response.read()
                response.raise_for_status()
            length = response.headers.get("content-length")
            return read_message(length, response.iter_raw(), sys.maxsize)

    def online(self) -> list[Peer]:
        """The nodes that are online now."""
        found = _peers(self._call(lambda: self._runtime.GetNodes(runtime_pb2.GetNodesRequest())).nodes)
        self._keys = {peer.node: peer.key for peer in found}
        return found

    def send(self, outgoing: Mapping[int, EncodedMessage], ttl: float) -> dict[int, str]:
        """Send messages to nodes that are online, valid for `ttl` seconds. Returns the message names by node.

        What several messages share is sent once.
        """
        names = {node: uuid.uuid4().hex for node in outgoing if node in self._keys}
        batch: dict[int, EncodedMessage] = {}
        size, bodies = 0, set[int]()
        for node in names:
            body = outgoing[node].body
            whole = len(outgoing[node].head) + sum(map(len, body))
            more = len(outgoing[node].head) if id(body) in bodies else whole
            if batch and size + more > mailbox.BATCH:
                self._push(batch, names, ttl)
                batch, size, bodies, more = {}, 0, set(), whole
            batch[node] = outgoing[node]
            size += more
            bodies.add(id(body))
        if batch:
            self._push(batch, names, ttl)
        return names

    def _push(self, batch: Mapping[int, EncodedMessage], names: Mapping[int, str], ttl: float) -> None:
        parts: dict[str, Sequence[Buffer]] = {}
        words = []
        for node, message in batch.items():
            shared = f"body {id(message.body)}"
            parts |= {names[node]: [message.head], shared: message.body}
            to = b64encode(self._keys[node]).decode()
            words.append({"name": names[node], "to": to, "parts": [names[node], shared]})
        body = mailbox.packed({"messages": words, "ttl": ttl}, parts)
        self._call(lambda: self._post(mailbox.SEND_PATH, body))

    def collect(self, names: Sequence[str], cap: int, wait: float = 0.0) -> list[tuple[str, Buffer | HushError]]:
        """Wait for replies to these messages, and fetch those that are there. Oversized replies are errors."""
        asked = json.dumps({"names": list(names), "wait": wait}).encode()
        _, found = mailbox.unpacked(self._call(lambda: self._post(mailbox.COLLECT_PATH, [asked])))
        return [
            (name, reply if len(reply) <= cap else HushError(f"a message of more than {cap} bytes"))
            for name, reply in found.items()
        ]

    def close(self, status: str = "completed", details: str = "") -> None:
        """End the run, if one was started, and close the connection."""
        self._stop.set()
        self._finish(status, details)
        self._control.close()
        self._plain.close()

    def _finish(self, status: str, details: str) -> None:
        if self._runtime is not None:
            with contextlib.suppress(httpx.HTTPError):
                self._allow(0, 0.0)
            with contextlib.suppress(httpx.HTTPError):
                self._runtime.PushTaskOutput(runtime_pb2.PushTaskOutputRequest(sub_status=status, details=details))
            self._runtime.close()
            self._runtime = None

    def _client(self, more: list[Any]) -> Any:
        interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"), _Secret(self._secret), *more]
        return RuntimeHttpClient.from_server_address(self._where, False, self._ca, interceptors)

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return called(call, self._where, self._patience)
        except RefusedError:
            raise ForgottenError(f"{self._where}: the SuperLink was restarted and no longer knows this run") from None

    def _beat(self, stop: threading.Event) -> None:
        client = self._runtime
        while not stop.wait(_HEARTBEAT):
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())


def _peers(found: Sequence[Any]) -> list[Peer]:
    return [
        Peer(each.public_key, each.node_id, each.status == "online", each.last_activated_at)
        for each in found
        if each.status != "unregistered"
    ]
