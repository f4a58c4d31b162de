"""Messages as bytes: safetensors, with one JSON text for everything that is not a tensor. Checked before decoding.

The header of a safetensors file declares the size of every tensor. `decode` compares it with what is expected, and with
the number of bytes received, before any tensor is decoded, so an invalid message costs no more than its own bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from hush.text import printable
from hush.types import HushError

_DTYPES = {"F32": 4, "F64": 8, "I64": 8}
_HEADER_CAP = 1 << 20
_WORDS = "hush"
ROOM = 1 << 16

Spec = Mapping[str, tuple[str, tuple[int, ...]]]
# Called with the kind, the fields, and the types and shapes in the header; raises an error to reject a message.
Accepts = Callable[[str, Mapping[str, Any], Spec], None]


@dataclass(frozen=True)
class Message:
    """A message: its kind, its fields, and its tensors."""

    kind: str
    says: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def encode(letter: Message) -> bytes:
    """Encode a message; equal messages give equal bytes."""
    words = json.dumps({"kind": letter.kind, **letter.says}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return save({name: tensor.contiguous() for name, tensor in letter.tensors.items()}, {_WORDS: words})


def decode(content: bytes, cap: int, expected: Spec | Accepts | None = None) -> Message:
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
    says = _object(words[_WORDS])
    kind = says.pop("kind", None)
    if not isinstance(kind, str):
        raise HushError("it does not state its type")
    if callable(expected):
        expected(kind, says, {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()})
    try:
        return Message(kind, says, load(content))
    except Exception as error:  # The errors of safetensors are identified by module; none of them may terminate a run
        raise HushError(f"not safetensors: {printable(error)}") from None


def kind_of(content: bytes) -> str:
    """Return the kind of a message, from its header alone."""
    words = _header(content)[0].get("__metadata__")
    text = words.get(_WORDS) if isinstance(words, dict) else None
    return str(_object(text).get("kind")) if isinstance(text, str) else ""


def digest(letter: Message) -> str:
    """Return a digest of the complete message."""
    return hashlib.sha256(encode(letter)).hexdigest()


def name_of(tensor: Tensor) -> str:
    """Return a digest of a tensor's values, type and shape."""
    return digest(Message("tensor", {}, {"": tensor}))


def want(letter: Message, *names: str) -> list[Any]:
    """Return the values of exactly these fields, or raise a `HushError`."""
    if set(letter.says) != set(names):
        found = printable(", ".join(sorted(letter.says)), 200)
        raise HushError(f"{printable(letter.kind, 40)}: expected {', '.join(names)}; found {found}")
    return [letter.says[name] for name in names]


def _header(content: bytes) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _HEADER_CAP):
        raise HushError("its header is longer than the message")
    return _object(content[8 : 8 + length]), 8 + length


def _object(text: bytes | str) -> dict[str, Any]:
    try:
        found = json.loads(text)
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
        if not _whole(shape) or not _whole(offsets) or len(offsets) != 2 or str(entry["dtype"]) not in _DTYPES:
            raise HushError("its header has invalid sizes or an unsupported type")
        if expected is not None and (entry["dtype"], tuple(shape)) != expected[name]:
            dtype, wanted = expected[name]
            raise HushError(f"{printable(name, 40)} is {entry['dtype']} {shape[:8]}, not {dtype} {list(wanted)}")
        if offsets[1] - offsets[0] != _DTYPES[entry["dtype"]] * math.prod(shape):
            raise HushError("its header and its sizes disagree")
        ends.append((offsets[0], offsets[1]))
    place = 0
    for begin, end in sorted(ends):
        if begin != place:
            raise HushError("its header and its sizes disagree")
        place = end
    if place != size:
        raise HushError(f"{size} bytes of numbers where its header has {place}")


def _whole(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= 16
        and all(type(value) is int and 0 <= value < 1 << 40 for value in values)
    )
