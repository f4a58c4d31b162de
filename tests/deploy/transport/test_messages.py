"""Row 13: mutated payloads. None is accepted, none ends anything, and none costs more than its own bytes."""

from __future__ import annotations

import json
import tracemalloc

import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

import torch

from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.seeds import rng
from hush.types import HushError

SIZE = 650
SPEC = {"vector": ("F32", (SIZE,))}
SAYS = {"run": "r", "round": 3, "client": "a", "serial": 1, "head": "1:0", "asked": "d", "choice": None}
GOOD = messages.encode(Message("update", SAYS, {"vector": torch.arange(SIZE, dtype=torch.float32)}))
CAP = messages.ROOM + int(1.1 * 4 * SIZE)


def header(change: str, value: object) -> bytes:
    """The good payload with one thing of its header replaced."""
    length = int.from_bytes(GOOD[:8], "little")
    header_fields = json.loads(GOOD[8 : 8 + length])
    if change in ("dtype", "shape", "data_offsets"):
        header_fields["vector"][change] = value
    elif change == "drop":
        del header_fields[str(value)]
    else:
        header_fields[change] = value
    text = json.dumps(header_fields).encode()
    return len(text).to_bytes(8, "little") + text + GOOD[8 + length :]


def test_a_message_comes_out_as_it_went_in() -> None:
    message = messages.decode(GOOD, CAP, SPEC)
    assert (message.kind, dict(message.fields)) == ("update", SAYS)
    assert torch.equal(message.tensors["vector"], torch.arange(SIZE, dtype=torch.float32))
    assert messages.kind_of(GOOD) == "update"
    assert messages.encode(message) == GOOD


WRONG = {
    "another type": header("dtype", "F64"),
    "half": header("dtype", "BF16"),
    "another shape": header("shape", [SIZE - 1]),
    "negative": header("shape", [-SIZE]),
    "huge": header("shape", [1 << 50]),
    "product too large": header("shape", [1 << 39, 1 << 39, 1 << 39]),
    "true for one": header("shape", [True]),
    "text for a number": header("shape", ["650"]),
    "offsets beyond": header("data_offsets", [0, 1 << 30]),
    "offsets backwards": header("data_offsets", [2600, 0]),
    "offsets inside": header("data_offsets", [4, 2604]),
    "another name": header("other", {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
    "no tensor": header("drop", "vector"),
    "no Hush metadata": header("drop", "__metadata__"),
    "words that are a list": header("__metadata__", {"hush": "[]"}),
    "words without a kind": header("__metadata__", {"hush": "{}"}),
    "nothing": b"",
    "seven bytes": b"\0" * 7,
    "a header longer than all": (1 << 62).to_bytes(8, "little") + GOOD[8:],
    "a deep header": (4 * 10**5).to_bytes(8, "little") + b"[" * (4 * 10**5),
    "cut": GOOD[:-1],
    "more": GOOD + b"\0",
    "more than the cap": GOOD + b"\0" * CAP,
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(HushError) as error:
        messages.decode(WRONG[name], CAP if name != "a deep header" else 1 << 20, SPEC)
    assert "\n" not in str(error.value)


def mutated(number: int) -> bytes:
    """One of many payloads that differ from a good one in the header or in their length."""
    drawn = rng(number, "mutant")
    content = bytearray(GOOD)
    kind = int(drawn.integers(5))
    length = 8 + int.from_bytes(GOOD[:8], "little")
    if kind == 0:
        return bytes(content[: int(drawn.integers(len(content)))])
    if kind == 1:
        return bytes(content) + drawn.bytes(int(drawn.integers(1, 4000)))
    if kind == 2:
        return drawn.bytes(int(drawn.integers(4000)))
    places = drawn.integers(0, 8 if kind == 3 else length, size=int(drawn.integers(1, 6)))
    for place in places:
        content[int(place)] ^= int(drawn.integers(1, 256))
    return bytes(content)


def survivors(numbers: range) -> list[Message]:
    through = []
    for number in numbers:
        try:
            message = messages.decode(mutated(number), CAP, SPEC)
        except HushError:
            continue
        through.append(message)
    return through


@pytest.mark.parametrize("numbers", [range(2000), pytest.param(range(10_000), marks=pytest.mark.soak)])
def test_mutants_never_pass_as_another_update(numbers: range) -> None:
    """A flipped bit in the words can leave a whole message, with other words; the coordinator compares all of these."""
    tracemalloc.start()
    through = survivors(numbers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    good = messages.digest(messages.decode(GOOD, CAP, SPEC))
    for message in through:
        assert message.tensors["vector"].shape == (SIZE,)
        # One kind of space for another leaves the same message.
        assert message.kind != "update" or dict(message.fields) != SAYS or messages.digest(message) == good
    assert len(through) < len(numbers) // 5
    assert peak < 20 * CAP


def test_unknown_fields_are_named() -> None:
    message = messages.decode(GOOD, CAP, SPEC)
    with pytest.raises(HushError, match="update: expected run; found asked"):
        messages.want(message, "run")
