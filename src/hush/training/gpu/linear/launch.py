"""Launch of a linear layer's kernels: the clipped sums of one step of all clients, and the step itself.

Inputs that fit in registers are read once by one kernel. Wider ones are read twice: for the errors, block by block, and
for the sums, whose blocks run side by side.

Guarantees:
    - Those of `hush.training.clipped_sum.ClippedSum`.

Edge cases:
    - How rows are shared among programs depends on how many there are in the step: sums are the same but for the order
      in which float64 numbers are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hush.objective import BinaryCrossEntropy, CrossEntropy, Huber, Loss, MeanSquaredError
from hush.training.clipping import clip_margin
from hush.training.closed_form import LinearLayer
from hush.training.gpu.linear import kernels

# How much a program takes on, kernel by kernel: rows at a time (BN), inputs (BI) or parameters (B). What was fastest on
# an H200.
Options = dict[str, int]
OPTIONS: dict[str, Options] = {
    "fused": {"BN": 32, "num_warps": 2, "num_stages": 3},
    "large fused": {"BN": 32, "num_warps": 4, "num_stages": 2},
    "forward": {"BN": 32, "BI": 64, "num_warps": 4, "num_stages": 2},
    "outer": {"BN": 32, "BI": 64, "num_warps": 4, "num_stages": 2},
    "move": {"B": 256, "num_warps": 4},
}
PROGRAMS = 1024  # of a step, to which its rows are shared out
_MOST_SUMS = 1 << 26  # numbers in all partial sums of a step
_FUSED_INPUTS, _FUSED_WEIGHTS = 128, 4096  # inputs, and weights, of a layer that one program holds
_LARGE_WEIGHTS = 1024  # above which it takes more warps
_MARGIN = clip_margin(torch.float64)
_LOSSES = {CrossEntropy: "softmax", BinaryCrossEntropy: "sigmoid", MeanSquaredError: "squared", Huber: "huber"}


def name_of(loss: Loss) -> str | None:
    """Return the kernels' name of a loss, if they know it."""
    return _LOSSES.get(type(loss))


@dataclass(frozen=True, kw_only=True)
class Step:
    """The buffers that the steps of a group of clients read and write.

    Attributes:
        layer: The model.
        x: Inputs of all clients, rows x width.
        y: Their targets, rows, or rows x outputs.
        points: Where the clients are, and where they began: 2 x clients x p.
        from_start: One for a client whose gradients are taken where it began, else zero.
        means: Subtracted from each client's rows, clients x width, if any client has an input mean.
        packed: The rows of all steps (`hush.training.gpu.sampling.RoundBatches.packed`).
        clips: Norm bound of each client, in float64.
        drift: Added to every step, clients x p, if any client has one.
        scales: Factors of sum, noise, step and pull, four times clients x 1, in float64.
        pulls: Whether any client is pulled.
    """

    layer: LinearLayer
    x: Tensor
    y: Tensor
    points: Tensor
    from_start: Tensor
    means: Tensor | None
    packed: Tensor
    clips: Tensor
    drift: Tensor | None
    scales: Tensor
    pulls: bool

    def take(self, number: int, active: int, most: int, total: int, noise: Tensor | None) -> None:
        """Move the first clients by the step of that number.

        Args:
            number: Which step.
            active: How many clients take part: the first ones.
            most: Rows of the largest batch.
            total: Rows of all batches.
            noise: Standard normal numbers, clients x p, if any client has noise.
        """
        sums, length = self.sums(number, active, most, total)
        clients, size = self.points.shape[1:]
        block = OPTIONS["move"]["B"]
        kernels.MOVE[active, -(-size // block)](
            self.points, sums, self.packed, number * self.packed.stride(0), _or(noise, self.points),
            0 if noise is None else noise.stride(0), _or(self.drift, self.points), self.scales, clients, size, length,
            NOISY=noise is not None, DRIFTS=self.drift is not None, PULLS=self.pulls, **OPTIONS["move"],
        )  # fmt: skip

    def sums(self, number: int, active: int, most: int, total: int) -> tuple[Tensor, int]:
        """Compute partial sums, parts x clients x p, and return them with how many rows there are in each.

        A client has as many parts as it has rows for; beyond them the numbers are not set.
        """
        clients, size = self.points.shape[1:]
        width, classes = self.layer.width, self.layer.classes
        weights = _block(width) * _block(classes)
        fused = _block(width) <= _FUSED_INPUTS and weights <= _FUSED_WEIGHTS
        options = OPTIONS[("large fused" if weights > _LARGE_WEIGHTS else "fused") if fused else "outer"]
        blocks = 1 if fused else -(-width // options["BI"])
        length = _length(most, total, active * blocks, options["BN"], clients * size)
        parts = max(1, -(-most // length))
        sums = torch.empty(parts, clients, size, dtype=torch.float64, device=self.x.device)
        offset, ends = number * self.packed.stride(0), clients + 1
        means = _or(self.means, self.x)
        shared: dict[str, Any] = {
            "F": width, "CLASSES": classes, "WEIGHT": self.layer.weight, "SHIFT": self.layer.bias or 0,
            "BIASED": self.layer.bias is not None, "CENTRED": self.means is not None, "BC": _block(classes),
        }  # fmt: skip
        loss = {
            "TARGETS": 1 if self.y.ndim == 1 else self.y.shape[1],
            "LOSS": name_of(self.layer.loss),
            "MARGIN": _MARGIN,
        }
        if fused:
            kernels.FUSED[active, parts](
                self.x, self.y, self.points, self.from_start, means, self.packed, offset, self.clips, sums, clients,
                size, ends, length, **shared, **loss, BI=_block(width), **options,
            )  # fmt: skip
            return sums, length
        forward = OPTIONS["forward"]
        scaled = torch.empty(total, classes + 1, dtype=torch.float64, device=self.x.device)
        kernels.FORWARD[active, max(1, -(-most // forward["BN"]))](
            self.x, self.y, self.points, self.from_start, means, self.packed, offset, self.clips, scaled, clients,
            size, ends, **shared, **loss, **forward,
        )  # fmt: skip
        kernels.OUTER[active, blocks, parts](
            self.x, means, self.packed, offset, scaled, sums, clients, size, ends, length, **shared, **options
        )
        return sums, length


def _length(most: int, total: int, columns: int, rows: int, numbers: int) -> int:
    """Rows of a partial sum: whole tiles, so few that there are about `PROGRAMS` programs, as memory allows."""
    wanted = max(1, PROGRAMS // max(1, columns))
    parts = max(1, min(wanted, _MOST_SUMS // max(1, numbers)))
    share = -(-most // parts)
    return max(1, -(-share // rows)) * rows


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """The tensor, or what a kernel is given in its place and never reads."""
    return other if tensor is None else tensor


def _block(size: int) -> int:
    """A power of two that covers the size, from the 16 that a product needs."""
    return max(16, 1 << (size - 1).bit_length())
