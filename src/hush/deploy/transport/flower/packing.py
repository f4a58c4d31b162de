"""Packing bytes into Flower's messages and back: an envelope, a tree of objects, and the objects, one request each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from hush.deploy.transport.inbox import PartialMessage
from hush.types import HushError

_PART = 4 << 20


def record(payload: bytes) -> RecordDict:
    """Wrap bytes as the content of a message."""
    # Each record is a separate request: as few as the gateway's size limit permits.
    parts = range(0, max(1, len(payload)), _PART)
    return RecordDict({str(at): ConfigRecord({"part": payload[at : at + _PART]}) for at in parts})


def packed(message: Message) -> tuple[Any, message_pb2.ObjectTree, Mapping[str, Any]]:
    """Return a message as Flower sends it: an envelope, the tree of its objects, and the objects."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects, tree = get_all_nested_objects(message), get_object_tree(message)
        return message_to_proto(remove_content_from_message(message)), tree, objects


def partial_message(proto: Any, tree: message_pb2.ObjectTree, cap: int) -> PartialMessage:
    """Return an incoming message of at most this many bytes."""

    def unpack(contents: dict[str, bytes]) -> bytes:
        content = inflate_object_from_contents(tree.object_id, contents).content
        return b"".join(content[name]["part"] for name in sorted(content, key=int))

    return PartialMessage(proto, [each.object_id for each in iterate_object_tree(tree)], cap, unpack)


def push(client: Any, call: Callable[..., Any], node: Node, run: int, objects: Mapping[str, Any], answer: Any) -> None:
    """Send the objects of a message that the SuperLink does not have yet."""
    for name in answer.objects_to_push:
        request = message_pb2.PushObjectRequest(
            node=node, run_id=run, object_id=name, object_content=objects[name].deflate(),
            session_id=answer.session_id,
        )  # fmt: skip
        if not call(partial(client.PushObject, request)).stored:
            raise HushError("the SuperLink did not store a part of the message")
