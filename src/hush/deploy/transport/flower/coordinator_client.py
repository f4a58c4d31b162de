"""The coordinator's Flower client: it registers nodes, starts a run, sends messages and collects replies."""

from __future__ import annotations

import contextlib
import fcntl
import math
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Metadata
from flwr.app.message import make_message
from flwr.cli.build import build_fab_from_files
from flwr.proto import control_pb2, message_pb2, runtime_pb2
from flwr.proto.fab_pb2 import Fab
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.runtime import RuntimeHttpClient

from hush.deploy.transport.flower.packing import packed, partial_message, push, record
from hush.deploy.transport.gateway import LIMIT_HEADER, LIMIT_PATH, RUN_HEADER, SECONDS_HEADER, SECRET_HEADER
from hush.deploy.transport.inbox import PartialMessage, Peer
from hush.deploy.transport.retry import ForgottenError, RefusedError, called, trusting
from hush.text import printable
from hush.types import HushError

_HEARTBEAT = 10.0
_FIRST = 5.0
_AT_ONCE = 4
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
            self._plain = httpx.Client(verify=ssl.create_default_context(cadata=ca.decode()))
        self._runtime: Any = None
        self._node = Node(node_id=1)
        self._run = 0
        self._incoming: list[PartialMessage] = []
        self._workers = ThreadPoolExecutor(_AT_ONCE)
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
        self._incoming = []
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
        headers = {SECRET_HEADER: self._secret, LIMIT_HEADER: str(cap), RUN_HEADER: str(self._run)}
        headers[SECONDS_HEADER] = str(math.ceil(seconds))
        self._plain.post(f"https://{self._where}{LIMIT_PATH}", headers=headers).raise_for_status()

    def online(self) -> list[Peer]:
        """The nodes that are online now."""
        return _peers(self._call(lambda: self._runtime.GetNodes(runtime_pb2.GetNodesRequest())).nodes)

    def send(self, letters: Mapping[int, bytes], ttl: float) -> dict[int, str]:
        """Send bytes to nodes, valid for `ttl` seconds. Returns the message identifiers by node.

        Nodes that cannot receive are omitted.
        """
        names = self._workers.map(lambda node: self._sent(node, letters[node], ttl), letters)
        return {node: name for node, name in zip(letters, names, strict=True) if name}

    def _sent(self, node: int, payload: bytes, ttl: float) -> str:
        metadata = Metadata(
            run_id=self._run, message_id="", src_node_id=self._node.node_id, dst_node_id=node,
            reply_to_message_id="", group_id="hush", created_at=time.time(), ttl=ttl, message_type="train",
        )  # fmt: skip
        metadata.delivered_at = ""
        proto, tree, objects = packed(make_message(metadata, record(payload)))
        request = runtime_pb2.PushAppMessagesRequest(messages_list=[proto], message_object_trees=[tree])
        answer = self._call(lambda: self._runtime.PushMessages(request))
        if not answer.message_ids or not answer.message_ids[0]:
            return ""
        push(self._runtime, self._call, self._node, self._run, objects, answer)
        return str(answer.message_ids[0])

    def collect(self, names: Sequence[str], cap: int) -> list[tuple[str, bytes | HushError]]:
        """Return the replies to these messages. Oversized or malformed replies are returned as errors."""
        # Flower deletes a message once it is pulled, so messages in transit are not requested again.
        known = {each.proto.metadata.reply_to_message_id for each in self._incoming}
        if wanted := [name for name in names if name not in known]:
            request = runtime_pb2.PullAppMessagesRequest(message_ids=wanted)
            answer = self._call(lambda: self._runtime.PullMessages(request))
            pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
            self._incoming += [partial_message(proto, tree, cap) for proto, tree in pairs]
        arrived = list(self._workers.map(self._fetched, self._incoming))
        done = [(each, found) for each, found in zip(self._incoming, arrived, strict=True) if found is not None]
        self._incoming = [each for each, found in zip(self._incoming, arrived, strict=True) if found is None]
        return [(each.proto.metadata.reply_to_message_id, found) for each, found in done]

    def _fetched(self, arrival: PartialMessage) -> bytes | HushError | None:
        """Return the content of a message, its error, or None while it is in transit."""
        found: bytes | HushError | None
        try:
            if arrival.proto.HasField("error"):
                raise HushError(f"Flower reports: {printable(arrival.proto.error.reason, 200)}")
            found = arrival.fetch(self._pull)
        except HushError as error:
            found = error
        if found is not None:
            confirm = message_pb2.ConfirmMessageReceivedRequest(
                node=self._node, run_id=self._run, message_object_id=arrival.proto.metadata.message_id
            )
            self._call(partial(self._runtime.ConfirmMessageReceived, confirm))
        return found

    def close(self, status: str = "completed", details: str = "") -> None:
        """End the run, if one was started, and close the connection."""
        self._stop.set()
        self._workers.shutdown()
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

    def _pull(self, name: str) -> Any:
        request = message_pb2.PullObjectRequest(node=self._node, run_id=self._run, object_id=name)
        return self._call(lambda: self._runtime.PullObject(request))


def _peers(found: Sequence[Any]) -> list[Peer]:
    return [
        Peer(each.public_key, each.node_id, each.status == "online", each.last_activated_at)
        for each in found
        if each.status != "unregistered"
    ]
