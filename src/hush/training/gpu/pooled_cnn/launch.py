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
    "back": {"BP": 128, "num_warps": 4, "num_stages": 2},
    "first each": {"BP": 32, "BK": 32, "num_warps": 1, "num_stages": 3},
    "each": {"BP": 32, "BK": 64, "num_warps": 4, "num_stages": 3},
    "shifted each": {"BP": 16, "num_warps": 4, "num_stages": 3},
    "chosen each": {"BO": 1, "num_warps": 1, "num_stages": 1},
    "head": {"BF": 128, "num_warps": 4},
    "gather": {"BN": 8, "B": 256, "num_warps": 4},
    "outer": {"BN": 16, "B": 128, "num_warps": 4},
    "finish": {"BN": 8, "B": 256, "OUTER_BN": 16, "OUTER_B": 128, "num_warps": 4},
}
SMALL: dict[str, Options] = LARGE | {
    "first forward": {"BP": 64, "BK": 32, "TURN": True, "num_warps": 4, "num_stages": 2},
    "back": {"BP": 128, "num_warps": 4, "num_stages": 2},
    "first each": {"BP": 64, "BK": 32, "num_warps": 2, "num_stages": 1},
    "each": {"BP": 32, "BK": 64, "num_warps": 4, "num_stages": 1},
    "head": {"BF": 512, "num_warps": 4},
    "gather": {"BN": 8, "B": 512, "num_warps": 4},
    "outer": {"BN": 16, "B": 64, "num_warps": 4},
    "finish": {"BN": 8, "B": 512, "OUTER_BN": 16, "OUTER_B": 64, "num_warps": 4},
}
_MARGIN = clip_margin(torch.float32)
FEW = 256  # examples up to which a step is small
FORKED = True  # whether what does not depend on each other runs side by side
SHIFTED = True  # whether inputs and gradients are shifted against each other where there are many inputs
_FEW_INPUTS = 64  # inputs and taps together
_LEAST, _TAPS, _WEIGHTS = 16, 25, 512  # inputs, taps, and weights of a tap for which a program has room
_WINDOWS = 1024  # of a first layer


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
        self.parts = [_norm_parts(network, block) for block in network.blocks]
        self.order = torch.cat([_order(block) for block in network.blocks]).to(device)
        self.laid = torch.empty(0, device=device)
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


class Queue(NamedTuple):
    """Batches of several steps on the device, and their noise.

    Attributes:
        state: The address of packed batches, which of them is next, the address of noise, and how many steps of it
            there are for each client.
        batch: Where the present batch goes; two numbers longer than a packed batch.
        advance: One if a step is to be followed by the next, zero if it is to be repeated.
    """

    state: Tensor
    batch: Tensor
    advance: Tensor


def fused_step(
    space: Workspace, vectors: Tensor, x: Tensor, y: Tensor, batch: Batch, clips: Tensor, how: str, out: Tensor,
    noise: Tensor, scales: Tensor,
) -> None:  # fmt: skip
    """What `sums` and then `fused_update` do to the parameters; `out` need not be written."""
    if 0 < len(batch.rows) <= space.examples:
        _fetch(space, x, batch, vectors)
        _squares(space, vectors, y, batch, how)
        _finish(space, vectors, batch, clips, noise, scales, None)
    else:
        sums(space, vectors, x, y, batch, clips, how, out)
        fused_update(vectors, out, noise, scales)


def queued_step(
    space: Workspace, vectors: Tensor, x: Tensor, y: Tensor, queue: Queue, examples: int, clips: Tensor, how: str,
    scales: Tensor,
) -> None:  # fmt: skip
    """What `fused_step` does, with the next batch of a queue, of at most so many examples."""
    clients = len(vectors)
    slots = (len(queue.batch) - clients - 3) // 2
    ends, rows, owner, _ = queue.batch.split([clients + 1, slots, slots, 2])
    batch, number = Batch(rows[:examples], owner[:examples], ends), max(1, examples)
    grid, known = _taking(space, number, vectors)
    kernels.TAKE[grid](
        x, queue.state, queue.batch, space.inputs[0], vectors, space.order, space.laid, clients, vectors.stride(0),
        slots, number, **known,
    )  # fmt: skip
    _squares(space, vectors, y, batch, how)
    _finish(space, vectors, batch, clips, vectors, scales, queue)


def _piece(
    s: Workspace, vectors: Tensor, x: Tensor, y: Tensor, batch: Batch, clips: Tensor, how: str, out: Tensor, add: bool,
    partial: int,
) -> None:  # fmt: skip
    number, clients, network = len(batch.rows), len(vectors), s.network
    _, owner, ends = batch
    if number:
        _fetch(s, x, batch, vectors)
        _squares(s, vectors, y, batch, how)
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


def _finish(
    s: Workspace, vectors: Tensor, batch: Batch, clips: Tensor, noise: Tensor, scales: Tensor, queue: Queue | None
) -> None:  # fmt: skip
    network, clients, options = s.network, len(vectors), _of("finish", len(batch.rows))
    programs = _parts(network.first, int(options["B"])) + _parts(network.features, int(options["OUTER_B"]))
    state, place, advance = (s.order,) * 3 if queue is None else (queue.state, queue.batch[-2:], queue.advance)
    sum_kernels.FINISH[clients, programs](
        s.each, s.errors, s.features, s.squares, clips, batch.ends, s.order, vectors, noise, scales, clients,
        vectors.stride(0), _MARGIN, state, place, advance, SIZE=network.first, F=network.features,
        CLASSES=network.classes, PARTIAL=FLOAT32_ROWS, PARTS=s.squares.shape[1], BQ=_block(s.squares.shape[1]),
        BC=_block(network.classes), QUEUED=queue is not None, **options,
    )  # fmt: skip


def _squares(s: Workspace, vectors: Tensor, y: Tensor, batch: Batch, how: str) -> None:
    """Forward and backward pass: what sums are made of, and squared norms."""
    number, clients, network = len(batch.rows), len(vectors), s.network
    if not number:
        return
    rows, owner, ends = batch
    stride = vectors.stride(0)
    last = network.blocks[-1]
    for at, block in enumerate(network.blocks):
        _forward(s, at, block, vectors, batch, how)
    kernels.HEAD[number,](
        s.features, vectors, y, rows, owner, ends, s.chosen[-1], s.errors, s.gradients[-1], s.squares, clients, stride,
        FIRST=network.first, F=network.features, CLASSES=network.classes, PP=math.prod(last.pooled),
        PW=last.pooled[1], **_gradient(last), PARTS=s.squares.shape[1], PART=s.squares.shape[1] - 1,
        BC=_block(network.classes), **_of("head", number),
    )  # fmt: skip
    with _beside(s) as side:
        for at in range(len(network.blocks) - 1, -1, -1):
            with side(at > 0):
                _each(s, at, network.blocks[at], batch, clients, how)
            if at:
                _back(s, at, network.blocks[at], network.blocks[at - 1], batch, clients, how)


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


def _fetch(s: Workspace, x: Tensor, batch: Batch, vectors: Tensor) -> None:
    number = len(batch.rows)
    grid, known = _taking(s, number, vectors)
    kernels.FETCH[grid](
        x, batch.rows, batch.ends, s.inputs[0], vectors, s.order, s.laid, len(vectors), vectors.stride(0), number,
        **known,
    )  # fmt: skip


def _taking(s: Workspace, number: int, vectors: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs that fetch inputs and lay weights out, and what they know."""
    if len(s.laid) < len(vectors):
        s.laid = vectors.new_empty(len(vectors), s.network.first)
    block, wide = s.network.blocks[0], 1024
    image = block.height * block.width
    laying = _parts(s.network.first, wide)
    known = {
        "LAID": s.network.first, "LAYING": laying, "SIZE": block.inputs * image, "W": block.width, "HW": image,
        "ROOM": block.input_room, "PLANE": block.plane, "PITCH": block.pitch, "BEGIN": _inside(block), "B": wide,
        "num_warps": 4,
    }  # fmt: skip
    return (number + len(vectors) * laying, _parts(block.inputs * image, wide)), known


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


def _back(s: Workspace, at: int, block: Block, before: Block, batch: Batch, clients: int, how: str) -> None:
    number = len(batch.rows)
    options = _of("back", number)
    backward_kernels.BACK[number, _parts(block.height * block.pitch, int(options["BP"]))](
        s.gradients[at], s.laid, batch.owner, batch.ends, s.columns, clients, s.laid.stride(0), **_layer(block),
        ROOM=block.gradient_room, PLANE=block.gradient_plane, PITCH=block.pitch,
        BEGIN=block.gradient_first + block.padding[0] * block.pitch, H=block.height, **_strides(block),
        HOW=how, BI=_block(block.inputs), BO=_block(block.outputs), **options,
    )  # fmt: skip
    if at == 1 and _chosen(s.network):
        return
    size = block.inputs * block.height * block.width
    backward_kernels.FOLD[number, _parts(size, 1024)](
        s.columns, batch.ends, s.chosen[at - 1], s.gradients[at - 1], clients, IN=block.inputs, KW=block.kernel[1],
        PITCH=block.pitch, H=block.height, W=block.width, OW=block.size[1], LEFT=block.padding[1],
        **_gradient(before), B=1024, num_warps=4,
    )  # fmt: skip


def _each(s: Workspace, at: int, block: Block, batch: Batch, clients: int, how: str) -> None:
    number = len(batch.rows)
    known: dict[str, int | str] = {
        **_layer(block), "ROOM": block.input_room, "PLANE": block.plane, "PITCH": block.pitch,
        "SIZE": s.network.first, "PARTS": s.squares.shape[1], "PART": sum(s.parts[:at]),
    }  # fmt: skip
    if at == 0 and _chosen(s.network):
        options, after = _of("chosen each", number), s.network.blocks[1]
        backward_kernels.EACH_CHOSEN[number, _parts(block.outputs, int(options["BO"]))](
            s.inputs[0], s.columns, s.chosen[0], batch.ends, s.each, s.squares, clients, **known,
            PH=block.pooled[0], PW=block.pooled[1], SUMS=after.kernel[1], SUM_PITCH=after.pitch,
            SUM_WIDTH=after.size[1], LEFT=after.padding[1], OWN=s.parts[0], BP=_block(math.prod(block.pooled)),
            **options,
        )  # fmt: skip
        return
    known |= {
        "D_ROOM": block.gradient_room, "D_PLANE": block.gradient_plane, "D_BEGIN": block.gradient_first,
        "OH": block.size[0], "HOW": how, "BO": _block(block.outputs),
    }  # fmt: skip
    given = (s.inputs[at], s.gradients[at], batch.ends, s.each, s.squares, clients)
    if _shifted(block):
        backward_kernels.EACH_SHIFTED[number,](*given, **known, BI=_block(block.inputs), **_of("shifted each", number))
    else:
        backward_kernels.EACH[number, _parts(block.inputs * block.taps, int(_options("each", block, 0)["BK"]))](
            *given, **known, **_options("each", block, number)
        )


def _norm_parts(network: PooledCnn, block: Block) -> int:
    """Programs that share an example's squared norm for a block, at most."""
    if block is network.blocks[0] and _chosen(network):
        return _parts(block.outputs, min(int(options["chosen each"]["BO"]) for options in (SMALL, LARGE)))
    if _shifted(block):
        return 1
    return _parts(block.inputs * block.taps, int(_options("each", block, 0)["BK"]))


def _chosen(network: PooledCnn) -> bool:
    first = network.blocks[0]
    few = first.inputs * first.taps <= _FEW_INPUTS and math.prod(first.pooled) <= _WINDOWS
    return few and len(network.blocks) > 1


def _shifted(block: Block) -> bool:
    return SHIFTED and block.inputs >= _LEAST and block.taps <= _TAPS and block.inputs * block.outputs <= _WEIGHTS


def _order(block: Block) -> Tensor:
    """Where in the vector each number of an example's gradient belongs."""
    place = torch.arange(block.weights + block.outputs, dtype=torch.int32)
    if _shifted(block):
        weights = place[: block.weights].view(block.outputs, block.inputs, block.taps)
        place = torch.cat([weights.permute(2, 0, 1).flatten(), place[block.weights :]])
    return place + block.first


def _strides(block: Block) -> dict[str, int]:
    """From one weight to the next in the order of `_order`, along each axis."""
    if _shifted(block):
        return {"TAP": block.inputs * block.outputs, "OF_OUT": block.inputs, "OF_IN": 1}
    return {"TAP": 1, "OF_OUT": block.inputs * block.taps, "OF_IN": block.taps}


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
