"""Launch of a pooled CNN's kernels, one after the other: clipped sums.

Guarantees:
    - Those of `hush.training.clipped_sum.ClippedSum`.

Edge cases:
    - More examples than the workspace has room for are taken in pieces.
    - A client without examples has a sum of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from hush.privacy.sensitivity import FLOAT32_ROWS
from hush.training.clipping import clip_margin
from hush.training.gpu.pooled_cnn import backward_kernels, sum_kernels
from hush.training.gpu.pooled_cnn import forward_kernels as kernels
from hush.training.gpu.pooled_cnn.network import Block, PooledCnn

# How much a program takes on, kernel by kernel: what was fastest on an H200, for many examples and for few. The first
# layer sees few inputs.
Options = dict[str, int | bool]
LARGE: dict[str, Options] = {
    "first forward": {"BP": 64, "BK": 32, "TURN": True, "num_warps": 2, "num_stages": 2},
    "forward": {"BP": 64, "BK": 64, "TURN": True, "num_warps": 4, "num_stages": 1},
    "back": {"BP": 128, "BK": 16, "num_warps": 4, "num_stages": 3},
    "first each": {"BP": 32, "BK": 32, "num_warps": 1, "num_stages": 3},
    "each": {"BP": 32, "BK": 64, "num_warps": 4, "num_stages": 3},
    "shifted each": {"BP": 16, "num_warps": 4, "num_stages": 3},
    "head": {"BF": 128, "num_warps": 4},
    "gather": {"BN": 8, "B": 256, "num_warps": 4},
    "outer": {"BN": 16, "B": 128, "num_warps": 4},
}
SMALL: dict[str, Options] = LARGE | {
    "first forward": {"BP": 64, "BK": 32, "TURN": True, "num_warps": 4, "num_stages": 2},
    "back": {"BP": 128, "BK": 32, "num_warps": 4, "num_stages": 2},
    "first each": {"BP": 64, "BK": 32, "num_warps": 2, "num_stages": 1},
    "each": {"BP": 32, "BK": 64, "num_warps": 4, "num_stages": 1},
    "head": {"BF": 512, "num_warps": 4},
    "gather": {"BN": 8, "B": 512, "num_warps": 4},
    "outer": {"BN": 16, "B": 64, "num_warps": 4},
}
_MARGIN = clip_margin(torch.float32)
FEW = 256  # examples up to which a step is small
FORKED = True  # whether what does not depend on each other runs side by side
SHIFTED = True  # whether inputs and gradients are shifted against each other where there are many inputs
_FEW_INPUTS = 64  # inputs and taps together
_LEAST, _TAPS, _WEIGHTS = 16, 25, 512  # inputs, taps, and weights of a tap for which a program has room


class Batch(NamedTuple):
    """The examples of a step, client by client.

    Attributes:
        rows: Which rows of the data they are.
        owner: Whose they are.
        ends: Where each client's begin, and after the last client where they end: clients + 1 numbers.
    """

    rows: Tensor
    owner: Tensor
    ends: Tensor


class Workspace:
    """Buffers for the intermediate results of a network, for so many examples at a time."""

    def __init__(self, network: PooledCnn, examples: int, device: torch.device) -> None:
        self.network, self.examples = network, examples
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None

        def room(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(examples, size, dtype=dtype, device=device)

        self.inputs = [room(block.input_room) for block in network.blocks]
        self.gradients = [room(block.gradient_room) for block in network.blocks]
        self.chosen = [room(block.outputs * math.prod(block.pooled), torch.uint8) for block in network.blocks]
        self.columns = room(max(b.inputs * b.kernel[1] * b.height * b.pitch for b in network.blocks))
        self.features, self.errors = room(network.features), room(network.classes)
        self.each, self.factors = room(network.first), room(1)
        self.parts = [
            1 if _shifted(block) else _parts(block.inputs * block.taps, int(_options("each", block, 0)["BK"]))
            for block in network.blocks
        ]
        self.order = torch.cat([_order(block) for block in network.blocks]).to(device)
        self.squares = room(sum(self.parts) + 1, torch.float64)


def sums(
    space: Workspace, vectors: Tensor, x: Tensor, y: Tensor, batch: Batch, clips: Tensor, how: str, out: Tensor
) -> None:
    """Write the clipped gradient sum of each client, clients x p, in float64.

    Args:
        space: Where to work.
        vectors: Parameters, clients x p.
        x: The data.
        y: Its labels.
        batch: Which rows, whose.
        clips: Norm bound of each client, in float64.
        how: How convolutions multiply.
        out: Where the sums go.
    """
    for start in range(0, max(1, len(batch.rows)), space.examples):
        part = slice(start, start + space.examples)
        piece = batch
        if start or len(batch.rows) > space.examples:
            ends = (batch.ends - start).clamp(0, space.examples).to(batch.ends.dtype)
            piece = Batch(batch.rows[part], batch.owner[part], ends)
        # A client's rows are counted piece by piece: only where there is one piece are they all known.
        partial = FLOAT32_ROWS if piece is batch else 0
        _piece(space, vectors, x, y, piece, clips, how, out, start > 0, partial)


def fused_update(vectors: Tensor, sums: Tensor, noise: Tensor, scales: Tensor) -> None:
    """Subtract scales[0] times the sum and scales[1] times the noise from each client's parameters, in place."""
    clients, size = vectors.shape
    sum_kernels.MOVE[clients, _parts(size, 1024)](vectors, sums, noise, scales, clients, SIZE=size, B=1024, num_warps=4)


def _piece(
    s: Workspace, vectors: Tensor, x: Tensor, y: Tensor, batch: Batch, clips: Tensor, how: str, out: Tensor, add: bool,
    partial: int,
) -> None:  # fmt: skip
    number, clients, network = len(batch.rows), len(vectors), s.network
    rows, owner, ends = batch
    stride = vectors.stride(0)
    if number:
        _fetch(s, x, batch, clients)
        for at, block in enumerate(network.blocks):
            _forward(s, at, block, vectors, batch, how)
        last = network.blocks[-1]
        kernels.HEAD[number,](
            s.features, vectors, y, rows, owner, ends, s.chosen[-1], s.errors, s.gradients[-1], s.squares, clients,
            stride, FIRST=network.first, F=network.features, CLASSES=network.classes, PP=math.prod(last.pooled),
            PW=last.pooled[1], **_gradient(last), PARTS=s.squares.shape[1], PART=s.squares.shape[1] - 1,
            BC=_block(network.classes), **_of("head", number),
        )  # fmt: skip
        with _beside(s) as side:
            for at in range(len(network.blocks) - 1, -1, -1):
                with side(at > 0):
                    _each(s, at, network.blocks[at], batch, clients, how)
                if at:
                    _back(s, at, network.blocks[at], network.blocks[at - 1], vectors, batch, how)
        sum_kernels.FACTORS[_parts(number, 64),](
            s.squares, clips, owner, ends, s.factors, clients, _MARGIN,
            PARTS=s.squares.shape[1], BQ=_block(s.squares.shape[1]), B=64, num_warps=2,
        )  # fmt: skip
    gathering, outer = _of("gather", number), _of("outer", number)
    sum_kernels.GATHER[clients, _parts(network.first, int(gathering["B"]))](
        s.each, s.factors, ends, s.order, out, out.stride(0), SIZE=network.first, ADD=add, **gathering
    )
    sum_kernels.OUTER[clients, _parts(network.features, int(outer["B"]))](
        s.errors, s.features, s.factors, ends, out, out.stride(0), FIRST=network.first, F=network.features,
        CLASSES=network.classes, ADD=add, PARTIAL=partial, BC=_block(network.classes), **outer,
    )  # fmt: skip


@contextmanager
def _beside(s: Workspace) -> Iterator[Callable[[bool], AbstractContextManager[object]]]:
    """A context in which work can run beside the backward pass, on a second stream that is awaited at the end."""
    side = s.side if FORKED else None
    if side is None:
        yield lambda _: nullcontext()
        return
    here, used = torch.cuda.current_stream(side.device), []

    def beside(wanted: bool) -> AbstractContextManager[object]:
        if not wanted:
            return nullcontext()
        used.append(wanted)
        side.wait_stream(here)
        return torch.cuda.stream(side)

    yield beside
    # A stream that did nothing must not be awaited while a step is captured: it is no part of the graph.
    if used:
        here.wait_stream(side)


def _fetch(s: Workspace, x: Tensor, batch: Batch, clients: int) -> None:
    block = s.network.blocks[0]
    size = block.inputs * block.height * block.width
    kernels.FETCH[len(batch.rows), _parts(size, 1024)](
        x, batch.rows, batch.ends, s.inputs[0], clients, SIZE=size, W=block.width, HW=block.height * block.width,
        ROOM=block.input_room, PLANE=block.plane, PITCH=block.pitch, BEGIN=_inside(block), B=1024, num_warps=4,
    )  # fmt: skip


def _forward(s: Workspace, at: int, block: Block, vectors: Tensor, batch: Batch, how: str) -> None:
    high, wide = block.pooled
    if at + 1 < len(s.network.blocks):
        after = s.network.blocks[at + 1]
        out, to = s.inputs[at + 1], (after.input_room, after.plane, after.pitch, _inside(after))
    else:
        out, to = s.features, (s.network.features, high * wide, wide, 0)
    named = dict(zip(("TO_ROOM", "TO_PLANE", "TO_PITCH", "TO_BEGIN"), to, strict=True))
    options = _options("forward", block, len(batch.rows))
    kernels.FORWARD[len(batch.rows), _parts(high * wide, int(options["BP"]))](
        s.inputs[at], vectors, batch.owner, batch.ends, out, s.chosen[at], len(vectors), vectors.stride(0),
        **_layer(block), ROOM=block.input_room, PLANE=block.plane, PITCH=block.pitch, PH=high, PW=wide, **named,
        HOW=how, BO=_block(block.outputs), **options,
    )  # fmt: skip


def _back(s: Workspace, at: int, block: Block, before: Block, vectors: Tensor, batch: Batch, how: str) -> None:
    number, clients = len(batch.rows), len(vectors)
    options = _of("back", number)
    backward_kernels.BACK[number, _parts(block.height * block.pitch, int(options["BP"]))](
        s.gradients[at], vectors, batch.owner, batch.ends, s.columns, clients, vectors.stride(0), **_layer(block),
        ROOM=block.gradient_room, PLANE=block.gradient_plane, PITCH=block.pitch,
        BEGIN=block.gradient_first + block.padding[0] * block.pitch, H=block.height,
        HOW=how, BI=_block(block.inputs), **options,
    )  # fmt: skip
    size = block.inputs * block.height * block.width
    backward_kernels.FOLD[number, _parts(size, 1024)](
        s.columns, batch.ends, s.chosen[at - 1], s.gradients[at - 1], clients, IN=block.inputs, KW=block.kernel[1],
        PITCH=block.pitch, H=block.height, W=block.width, OW=block.size[1], LEFT=block.padding[1],
        **_gradient(before), B=1024, num_warps=4,
    )  # fmt: skip


def _each(s: Workspace, at: int, block: Block, batch: Batch, clients: int, how: str) -> None:
    number = len(batch.rows)
    known = {
        **_layer(block), "ROOM": block.input_room, "PLANE": block.plane, "PITCH": block.pitch, "HOW": how,
        "D_ROOM": block.gradient_room, "D_PLANE": block.gradient_plane, "D_BEGIN": block.gradient_first,
        "OH": block.size[0], "SIZE": s.network.first, "PARTS": s.squares.shape[1], "PART": sum(s.parts[:at]),
        "BO": _block(block.outputs),
    }  # fmt: skip
    given = (s.inputs[at], s.gradients[at], batch.ends, s.each, s.squares, clients)
    if _shifted(block):
        backward_kernels.EACH_SHIFTED[number,](*given, **known, BI=_block(block.inputs), **_of("shifted each", number))
    else:
        backward_kernels.EACH[number, s.parts[at]](*given, **known, **_options("each", block, number))


def _shifted(block: Block) -> bool:
    return SHIFTED and block.inputs >= _LEAST and block.taps <= _TAPS and block.inputs * block.outputs <= _WEIGHTS


def _order(block: Block) -> Tensor:
    """Where in the vector each number of an example's gradient belongs."""
    place = torch.arange(block.weights + block.outputs, dtype=torch.int32)
    if _shifted(block):
        weights = place[: block.weights].view(block.outputs, block.inputs, block.taps)
        place = torch.cat([weights.permute(2, 0, 1).flatten(), place[block.weights :]])
    return place + block.first


def _of(name: str, number: int) -> Options:
    return (SMALL if 0 < number <= FEW else LARGE)[name]


def _options(name: str, block: Block, number: int) -> Options:
    return _of(f"first {name}" if block.inputs * block.taps <= _FEW_INPUTS else name, number)


def _layer(block: Block) -> dict[str, int]:
    high, wide = block.kernel
    return {"FIRST": block.first, "IN": block.inputs, "OUT": block.outputs, "KH": high, "KW": wide}


def _gradient(block: Block) -> dict[str, int]:
    """Where the gradient for a block's output goes."""
    places = (block.gradient_room, block.gradient_plane, block.pitch, block.gradient_first)
    return dict(zip(("TO_ROOM", "TO_PLANE", "TO_PITCH", "TO_BEGIN"), places, strict=True))


def _inside(block: Block) -> int:
    """Where the first number of a padded input is."""
    return block.padding[0] * block.pitch + block.padding[1]


def _block(size: int) -> int:
    """A power of two that covers the size, from the 16 that a product needs."""
    return max(16, 1 << math.ceil(math.log2(max(size, 1))))


def _parts(size: int, block: int) -> int:
    return -(-size // block)
