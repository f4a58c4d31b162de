"""Flower as the post office: the only file that imports flwr. Both ends pass bytes through it, and nothing else.

A SuperLink carries the messages, with Flower's TLS, node authentication, heartbeats and store. Three things differ from
Flower's own programs, and ADR 0008 says why. A node never runs code that a server sends: `Line` speaks the SuperNode's
protocol and hands the bytes to the code that is installed. The coordinator is the run's ServerApp itself, so it needs
no second process and no fixed sleeps. And a gate stands before the SuperLink (`hush.engines.gate`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import control_pb2, fleet_pb2, message_pb2, runtime_pb2
from flwr.proto.fab_pb2 import Fab
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from hush.engines.arrival import Arrival, Parcel, Peer
from hush.engines.gate import SECRET_HEADER, Gate
from hush.engines.patience import RefusedError as RefusedError
from hush.engines.patience import called, trusting
from hush.types import HushError

_HEARTBEAT = 10.0
_AT_ONCE = 4
_PATIENCE = 10.0
_PART = 4 << 20
_IN_MEMORY = ":flwr-in-memory:"
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


def superlink(host: str, port: int, certificate: Mapping[str, Path], secret: str) -> None:
    """Run a SuperLink until the process is stopped. `certificate` has the files of `ca`, `certificate` and `key`.

    It keeps nothing: members have their ledgers, the coordinator its run directory, and both ask again.
    """
    import uvicorn
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig, load_control_authn_plugin
    from flwr.superlink.main import create_app

    files = [str(certificate[name]) for name in ("ca", "certificate", "key")]
    ca, server, key = (Path(file).read_bytes() for file in files)
    config = SuperLinkLifespanConfig(
        control_address="", health_server_address=None, host=host, port=port, insecure=False,
        certificates=(ca, server, key), superexec_auth_secret=None, authn_plugin=load_control_authn_plugin(),
        event_log_plugin=None, fleet_event_log_plugin=None, enable_event_log=False, artifact_provider=None,
        enable_supernode_auth=True, fleet_api_type="grpc-rere", fleet_api_address=None, simulation=False,
        ssl_ca_certfile=files[0], ssl_certfile=files[1], ssl_keyfile=files[2], database=_IN_MEMORY,
        isolation="process", runtime_dependency_install=False,
    )  # fmt: skip
    app = Gate(create_app(config, SuperLinkLifespan), secret)
    uvicorn.run(app, host=host, port=port, ssl_certfile=files[1], ssl_keyfile=files[2], access_log=False,
                log_level="warning", workers=1, timeout_graceful_shutdown=2)  # fmt: skip


class _Secret:
    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        add_headers(context.request, {SECRET_HEADER: self._secret})
        return call_next(context)


def _record(payload: bytes) -> RecordDict:
    # Each record is a request of its own: as few as the gate lets pass.
    parts = range(0, max(1, len(payload)), _PART)
    return RecordDict({str(at): ConfigRecord({"part": payload[at : at + _PART]}) for at in parts})


def _packed(message: Message) -> tuple[Any, message_pb2.ObjectTree, Mapping[str, Any]]:
    """A message as Flower sends it: an envelope, the tree of its objects, and the objects."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects, tree = get_all_nested_objects(message), get_object_tree(message)
        return message_to_proto(remove_content_from_message(message)), tree, objects


def _arrival(proto: Any, tree: message_pb2.ObjectTree, cap: int) -> Arrival:
    def unpack(contents: dict[str, bytes]) -> bytes:
        content = inflate_object_from_contents(tree.object_id, contents).content
        return b"".join(content[name]["part"] for name in sorted(content, key=int))

    return Arrival(proto, [each.object_id for each in iterate_object_tree(tree)], cap, unpack)


class Hub:
    """The coordinator's end."""

    def __init__(self, address: str, ca: bytes, secret: str, patience: float = 30.0) -> None:
        self._where, self._ca, self._secret, self._patience = address, ca, secret, patience
        with trusting(address):
            self._control = ControlHttpClient.from_server_address(
                address, False, ca, [RuntimeVersionHttpInterceptor(component_name="flwr"), _Secret(secret)]
            )
        self._runtime: Any = None
        self._node = Node(node_id=1)
        self._run = 0
        self._arriving: list[Arrival] = []
        self._workers = ThreadPoolExecutor(_AT_ONCE)
        self._stop = threading.Event()

    def register(self, key: bytes, name: str) -> int:
        """Let a public key (PEM) in."""
        request = control_pb2.RegisterNodeRequest(public_key=key, name=name)
        return int(self._call(lambda: self._control.RegisterNode(request)).node_id)

    def unregister(self, node: int) -> None:
        """Shut a node out, for good."""
        self._call(lambda: self._control.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=node)))

    def peers(self) -> list[Peer]:
        """All nodes that are registered."""
        found = self._call(lambda: self._control.ListNodes(control_pb2.ListNodesRequest())).nodes_info
        return _peers(found)

    def open(self) -> None:
        """Begin a run: from now on messages can be sent."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Flower uses
            fab, _ = build_fab_from_files({"pyproject.toml": _FEDERATION_APP, "app.py": b"none = None\n"})
        run = self._call(lambda: self._control.StartRun(control_pb2.StartRunRequest(fab=Fab(content=fab)))).run_id
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
            # A run whose coordinator died before it began: nobody will take it up.
            self._finish("failed", "abandoned")
        else:
            raise HushError(f"{self._where}: the SuperLink gives out no run; is another program taking its tasks?")
        self._run = self._call(lambda: self._runtime.PullTaskInput(runtime_pb2.PullTaskInputRequest())).run.run_id
        self._stop = threading.Event()
        threading.Thread(target=self._beat, args=(self._stop,), daemon=True).start()

    def online(self) -> list[Peer]:
        """The nodes that could be asked now."""
        return _peers(self._call(lambda: self._runtime.GetNodes(runtime_pb2.GetNodesRequest())).nodes)

    def send(self, letters: Mapping[int, bytes], ttl: float) -> dict[int, str]:
        """Have nodes get these bytes, if they ask within `ttl` seconds. Returns the messages' names, by node.

        A node that cannot be sent to is left out.
        """
        names = self._workers.map(lambda node: self._sent(node, letters[node], ttl), letters)
        return {node: name for node, name in zip(letters, names, strict=True) if name}

    def _sent(self, node: int, payload: bytes, ttl: float) -> str:
        metadata = Metadata(
            run_id=self._run, message_id="", src_node_id=self._node.node_id, dst_node_id=node,
            reply_to_message_id="", group_id="hush", created_at=time.time(), ttl=ttl, message_type="train",
        )  # fmt: skip
        metadata.delivered_at = ""
        proto, tree, objects = _packed(make_message(metadata, _record(payload)))
        request = runtime_pb2.PushAppMessagesRequest(messages_list=[proto], message_object_trees=[tree])
        answer = self._call(lambda: self._runtime.PushMessages(request))
        if not answer.message_ids or not answer.message_ids[0]:
            return ""
        _push(self._runtime, self._call, self._node, self._run, objects, answer)
        return str(answer.message_ids[0])

    def collect(self, names: Sequence[str], cap: int) -> list[tuple[str, bytes | HushError]]:
        """What has come back for these messages. What is too large or broken comes as an error."""
        # Flower forgets a message once it is pulled, so what is on its way is not asked for again.
        known = {each.proto.metadata.reply_to_message_id for each in self._arriving}
        if wanted := [name for name in names if name not in known]:
            request = runtime_pb2.PullAppMessagesRequest(message_ids=wanted)
            answer = self._call(lambda: self._runtime.PullMessages(request))
            pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
            self._arriving += [_arrival(proto, tree, cap) for proto, tree in pairs]
        arrived = list(self._workers.map(self._fetched, self._arriving))
        done = [(each, found) for each, found in zip(self._arriving, arrived, strict=True) if found is not None]
        self._arriving = [each for each, found in zip(self._arriving, arrived, strict=True) if found is None]
        return [(each.proto.metadata.reply_to_message_id, found) for each, found in done]

    def _fetched(self, arrival: Arrival) -> bytes | HushError | None:
        """What a message holds, what is wrong with it, or None while it is on its way."""
        found: bytes | HushError | None
        try:
            if arrival.proto.HasField("error"):
                raise HushError(f"Flower reports: {arrival.proto.error.reason[:200]}")
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
        """End the run, if one was begun, and the connection."""
        self._stop.set()
        self._workers.shutdown()
        self._finish(status, details)
        self._control.close()

    def _finish(self, status: str, details: str) -> None:
        if self._runtime is not None:
            with contextlib.suppress(httpx.HTTPError):
                self._runtime.PushTaskOutput(runtime_pb2.PushTaskOutputRequest(sub_status=status, details=details))
            self._runtime.close()
            self._runtime = None

    def _client(self, more: list[Any]) -> Any:
        interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"), _Secret(self._secret), *more]
        return RuntimeHttpClient.from_server_address(self._where, False, self._ca, interceptors)

    def _call(self, call: Callable[[], Any]) -> Any:
        return called(call, self._where, self._patience)

    def _beat(self, stop: threading.Event) -> None:
        client = self._runtime
        while not stop.wait(_HEARTBEAT):
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())

    def _pull(self, name: str) -> Any:
        request = message_pb2.PullObjectRequest(node=self._node, run_id=self._run, object_id=name)
        return self._call(lambda: self._runtime.PullObject(request))


class Line:
    """A node's end."""

    def __init__(self, address: str, ca: bytes, key: ec.EllipticCurvePrivateKey, patience: float = 600.0) -> None:
        self._where, self._patience = address, patience
        self._key = public_key_to_bytes(key.public_key())
        self._stop = threading.Event()
        auth = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ]
        with trusting(address):
            self._client = FleetHttpClient.from_server_address(address, False, ca, auth)
            self._pulse = FleetHttpClient.from_server_address(address, False, ca, auth)
        self._node: Any = None

    def open(self, before: int = 0) -> int:
        """Report for duty. Returns the node's number; `before` is the one that it had in an earlier life, if any."""
        if before:
            # Flower takes a node that died for one that is online, until its heartbeat is missed.
            with contextlib.suppress(httpx.HTTPError):
                self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=before))
        self._activate()
        threading.Thread(target=self._beat, daemon=True).start()
        return int(self._node.node_id)

    def _activate(self) -> None:
        request = fleet_pb2.ActivateNodeRequest(public_key=self._key, heartbeat_interval=_HEARTBEAT)
        self._node = Node(node_id=self._call(lambda: self._client.ActivateNode(request)).node_id)

    def _return(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._activate()
            except RefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def poll(self, cap: int) -> Parcel | None:
        """The next message, if there is one."""
        try:
            answer = self._call(lambda: self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self._node)))
        except RefusedError:
            # A SuperLink that was started anew has forgotten this node, and will soon know its key again.
            self._return()
            return None
        if not answer.messages_list:
            return None
        proto, tree = answer.messages_list[0], answer.message_object_trees[0]
        run = proto.metadata.run_id

        def pull(name: str) -> Any:
            request = message_pb2.PullObjectRequest(node=self._node, run_id=run, object_id=name)
            return self._call(lambda: self._client.PullObject(request))

        arrival = _arrival(proto, tree, cap)
        while (payload := arrival.fetch(pull)) is None:
            time.sleep(0.02)
        confirm = message_pb2.ConfirmMessageReceivedRequest(
            node=self._node, run_id=run, message_object_id=proto.metadata.message_id
        )
        self._call(lambda: self._client.ConfirmMessageReceived(confirm))
        return Parcel(payload, message_from_proto(proto))

    def reply(self, parcel: Parcel, payload: bytes) -> None:
        """Answer a message."""
        proto, tree, objects = _packed(Message(_record(payload), reply_to=parcel.message))
        request = fleet_pb2.PushMessagesRequest(
            node=self._node, messages_list=[proto], message_object_trees=[tree], clientapp_runtime_list=[0.0]
        )
        answer = self._call(lambda: self._client.PushMessages(request))
        _push(self._client, self._call, self._node, proto.metadata.run_id, objects, answer)

    def close(self) -> None:
        """Sign off."""
        if self._node is not None:
            with contextlib.suppress(httpx.HTTPError):
                self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=self._node.node_id))
        self.drop()

    def drop(self) -> None:
        """Close the connection without a word, as a process that dies would."""
        self._stop.set()
        self._client.close()
        self._pulse.close()

    def _call(self, call: Callable[[], Any]) -> Any:
        return called(call, self._where, self._patience)

    def _beat(self) -> None:
        while not self._stop.wait(_HEARTBEAT / 2):
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_HEARTBEAT)
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                self._pulse.SendNodeHeartbeat(request)


def _push(client: Any, call: Callable[..., Any], node: Node, run: int, objects: Mapping[str, Any], answer: Any) -> None:
    for name in answer.objects_to_push:
        request = message_pb2.PushObjectRequest(
            node=node, run_id=run, object_id=name, object_content=objects[name].deflate(),
            session_id=answer.session_id,
        )  # fmt: skip
        if not call(partial(client.PushObject, request)).stored:
            raise HushError("the SuperLink did not store a part of the message")


def _peers(found: Sequence[Any]) -> list[Peer]:
    return [
        Peer(each.public_key, each.node_id, each.status == "online", each.last_activated_at)
        for each in found
        if each.status != "unregistered"
    ]
