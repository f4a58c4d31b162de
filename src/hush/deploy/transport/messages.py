"""Messages as bytes: safetensors, with one JSON text for everything that is not a tensor. Checked before decoding.

The header of a safetensors file declares the size of every tensor. `decode` compares it with what is expected, and with
the number of bytes received, before any tensor is decoded, so an invalid message costs no more than its own bytes.
Tensors are written from where they are in memory and read into new ones: one copy on either side.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from hush.text import printable
from hush.types import HushError

_DTYPES = {
    "F16": (torch.float16, 2), "F32": (torch.float32, 4), "F64": (torch.float64, 8), "I32": (torch.int32, 4),
    "I64": (torch.int64, 8),
}  # fmt: skip
_HEADER_CAP = 1 << 20
_WORDS = "hush"
DRY = "dry"  # how the names of dry runs begin; other runs have hexadecimal names
ROOM = 1 << 16

Buffer: TypeAlias = bytes | bytearray | memoryview
Spec = Mapping[str, tuple[str, tuple[int, ...]]]
# Called with the kind, the fields, and the types and shapes in the header; raises an error to reject a message.
Accepts = Callable[[str, Mapping[str, Any], Spec], None]


@dataclass(frozen=True)
class Message:
    """A message: its kind, its fields, and its tensors."""

    kind: str
    fields: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def encode(message: Message) -> bytes:
    """Encode a message; equal messages give equal bytes."""
    return b"".join(pieces(message))


def pieces(message: Message) -> list[Buffer]:
    """Return an encoded message in pieces: the header, and the memory of each tensor."""
    tensors, buffers = _laid_out(message.tensors)
    return [_head(message, tensors), *buffers]


def _laid_out(named: Mapping[str, Tensor]) -> tuple[dict[str, Any], list[Buffer]]:
    """Return the header's entries for tensors, and their memory in this order: wide numbers first, to be aligned."""
    entries: dict[str, Any] = {}
    buffers: list[Buffer] = []
    place = 0
    for name in sorted(named, key=lambda name: (-named[name].element_size(), name)):
        tensor = named[name].detach().contiguous()
        dtype = next((dtype for dtype, (kind, _) in _DTYPES.items() if kind == tensor.dtype), None)
        if dtype is None:
            raise HushError(f"{name}: tensors of {tensor.dtype} cannot be sent; accepted: {', '.join(_DTYPES)}")
        end = place + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [place, end]}
        buffers.append(tensor.flatten().numpy().data.cast("B") if tensor.numel() else b"")
        place = end
    return entries, buffers


def _head(message: Message, entries: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> bytes:
    fields = {"kind": message.kind, **message.fields, **(more or {})}
    words = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    text = json.dumps({"__metadata__": {_WORDS: words}, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class EncodedMessage(NamedTuple):
    """An encoded message in two parts: its header, and its numbers, which several messages can share."""

    head: bytes
    body: Sequence[Buffer] = ()


def encode_each(message: Message, each: Mapping[str, Mapping[str, Any]]) -> dict[str, EncodedMessage]:
    """Encode a message for several receivers, with more fields for each of them; they share the numbers."""
    entries, body = _laid_out(message.tensors)
    return {name: EncodedMessage(_head(message, entries, more), body) for name, more in each.items()}


def decode(content: Buffer, cap: int, expected: Spec | Accepts | None = None) -> Message:
    """Decode a message, or raise a `HushError` that says briefly what is wrong with it.

    `expected` lists the tensors that must be present, with types and shapes, or is a function that raises an error for
    an unexpected header. Without it, any tensors within the cap are accepted.
    """
    if len(content) > cap:
        raise HushError(f"{len(content)} bytes; accepted: at most {cap}")
    header, start = _header(content)
    words = header.pop("__metadata__", None)
    if not isinstance(words, dict) or set(words) != {_WORDS} or not isinstance(words[_WORDS], str):
        raise HushError("its header has no Hush metadata")
    _check(header, len(content) - start, None if callable(expected) else expected)
    fields = _object(words[_WORDS])
    kind = fields.pop("kind", None)
    if not isinstance(kind, str):
        raise HushError("it does not state its type")
    if callable(expected):
        expected(kind, fields, {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()})
    return Message(kind, fields, {name: _tensor(content, start, entry) for name, entry in header.items()})


def _tensor(content: Buffer, start: int, entry: Mapping[str, Any]) -> Tensor:
    """Return the tensor of a header's entry, which was checked."""
    dtype, shape = _DTYPES[entry["dtype"]][0], entry["shape"]
    found = torch.empty(shape, dtype=dtype)
    if found.numel():
        first, end = entry["data_offsets"]
        found.view(-1).numpy().data.cast("B")[:] = memoryview(content)[start + first : start + end]
    return found


def kind_of(content: Buffer) -> str:
    """Return the kind of a message, from its header alone."""
    return str(_words(content).get("kind", ""))


def dry_run_of(content: Buffer) -> str:
    """Return the run of a message if it is a dry run, else an empty text; from the header alone."""
    try:
        run = str(_words(content).get("run", ""))
    except HushError:
        return ""
    return run if run.startswith(DRY) else ""


def _words(content: Buffer) -> dict[str, Any]:
    words = _header(content)[0].get("__metadata__")
    text = words.get(_WORDS) if isinstance(words, dict) else None
    return _object(text) if isinstance(text, str) else {}


def digest(message: Message) -> str:
    """Return a digest of the complete message."""
    found = hashlib.sha256()
    for piece in pieces(message):
        found.update(piece)
    return found.hexdigest()


def name_of(tensor: Tensor) -> str:
    """Return a digest of a tensor's values, type and shape."""
    return digest(Message("tensor", {}, {"": tensor}))


def want(message: Message, *names: str) -> list[Any]:
    """Return the values of exactly these fields, or raise a `HushError`."""
    if set(message.fields) != set(names):
        found = printable(", ".join(sorted(message.fields)), 200)
        raise HushError(f"{printable(message.kind, 40)}: expected {', '.join(names)}; found {found}")
    return [message.fields[name] for name in names]


def _header(content: Buffer) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _HEADER_CAP):
        raise HushError("its header is longer than the message")
    return _object(bytes(content[8 : 8 + length])), 8 + length


def _object(text: Buffer | str) -> dict[str, Any]:
    try:
        found = json.loads(text if isinstance(text, str) else bytes(text))
    except (ValueError, RecursionError):
        raise HushError("its header is not JSON") from None
    if not isinstance(found, dict):
        raise HushError("its header is not a JSON object")
    return found


def _check(header: Mapping[str, Any], size: int, expected: Spec | None) -> None:
    if expected is not None and set(header) != set(expected):
        found = printable(", ".join(sorted(header)), 100) or "nothing"
        raise HushError(f"it holds {found}, not {', '.join(sorted(expected))}")
    ends = []
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise HushError("its header is not that of safetensors")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if (
            not _are_integers(shape)
            or not _are_integers(offsets)
            or len(offsets) != 2
            or str(entry["dtype"]) not in _DTYPES
        ):
            raise HushError("its header has invalid sizes or an unsupported type")
        if expected is not None and (entry["dtype"], tuple(shape)) != expected[name]:
            dtype, wanted = expected[name]
            raise HushError(f"{printable(name, 40)} is {entry['dtype']} {shape[:8]}, not {dtype} {list(wanted)}")
        if offsets[1] - offsets[0] != _DTYPES[entry["dtype"]][1] * math.prod(shape):
            raise HushError("its header and its sizes disagree")
        ends.append((offsets[0], offsets[1]))
    place = 0
    for begin, end in sorted(ends):
        if begin != place:
            raise HushError("its header and its sizes disagree")
        place = end
    if place != size:
        raise HushError(f"{size} bytes of numbers where its header has {place}")


def _are_integers(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= 16
        and all(type(value) is int and 0 <= value < 1 << 40 for value in values)
    )
