"""Random neighbouring batches with extreme values, and the sums that every path of training makes of them.

A pair of batches has random parameters, rows and clip. One row is there or not, or is another one; whatever the numbers
in it, and in the other rows, the sums may differ by the clip, or by twice the clip.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from hush.models import Model, from_module
from hush.models.model import wrap
from hush.models.user_loss import user_loss
from hush.objective import CLASSIFICATION, BinaryCrossEntropy, Huber, MeanSquaredError, Objective
from hush.training.closed_form import closed_form_sums, linear_layer_of
from hush.training.gpu.linear.clipped_sum import linear_sums
from hush.training.per_example.discrete_sums import integer_sums
from hush.training.per_example.recorder import Recorder
from hush.training.per_example.sums import padded_sums
from hush.training.per_example.vmap import vmap_sums
from hush.training.precision import Precision
from hush.training.select import clipped_sums
from tests.support.interpreter import DEVICE

CLASSES, ROWS, TOGETHER = 4, 6, 50
# Squares of the largest overflow float32, those of the smallest vanish.
SCALES = (0.0, 1e-42, 1e-20, 1e-3, 1.0, 1.0, 30.0, 1e4, 1e12, 1e19)
ODD = (math.nan, math.inf, -math.inf, 1e25, 1e-44, -0.0)
Sums = Callable[[Model, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0][:, -1])


class Bare(nn.Module):
    """A parameter in arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(5, CLASSES), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.inner(x)


class Token(nn.Module):
    """A class token and positions before attention, a matrix on the right, and its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(4, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.matrix, self.out = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x @ self.matrix], 1) + self.positions
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.out(x[:, 0] @ self.matrix.t())


class Bags(nn.Module):
    """Two bags and the transposed table of one, after a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.sum, self.mean = nn.EmbeddingBag(5, 4, mode="sum"), nn.EmbeddingBag(5, 4)
        self.gate, self.act = nn.Parameter(torch.zeros(4)), nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.act(self.sum(x) * torch.sigmoid(self.gate) + self.mean(x))
        return (hidden @ self.sum.weight.t())[:, :CLASSES]


def _flat(width: int, *modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules, nn.Flatten(), nn.Linear(width, CLASSES))


# A module, the shape of its inputs, and how many words it knows if inputs are words.
NETS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(5, CLASSES), (5,), 0),
    "two linear": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, CLASSES)), (5,), 0),
    "linear over positions": (lambda: _flat(8, nn.Linear(3, 2), nn.Tanh()), (4, 3), 0),
    "conv1d": (lambda: _flat(12, nn.Conv1d(2, 3, 3), nn.Sigmoid()), (2, 6), 0),
    "conv2d": (lambda: _flat(12, nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)), (1, 4, 4), 0),
    "group norm": (lambda: _flat(16, nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()), (2, 6), 0),
    "layer norm": (lambda: _flat(12, nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU()), (2, 4), 0),
    "rms norm": (lambda: _flat(12, nn.Linear(4, 6), nn.RMSNorm(6)), (2, 4), 0),
    "instance norm": (lambda: _flat(12, nn.Conv1d(2, 3, 3), nn.InstanceNorm1d(3, affine=True)), (2, 6), 0),
    "embedding": (lambda: _flat(12, nn.Embedding(5, 3)), (4,), 5),
    "lstm": (lambda: Recurrent(nn.LSTM(3, 4, batch_first=True)), (3, 3), 0),
    "gru": (lambda: Recurrent(nn.GRU(3, 4, batch_first=True)), (3, 3), 0),
    "bare": (Bare, (5,), 0),
    "token": (Token, (3, 4), 0),
    "bags": (Bags, (4,), 5),
    "transposed": (lambda: _flat(24, nn.ConvTranspose2d(2, 3, 2, stride=(1, 2)), nn.Tanh()), (2, 1, 2), 0),
}


@dataclass(frozen=True)
class Way:
    """A way of making sums.

    Attributes:
        sums: Makes them.
        slack: What rounding may add to a move, in roundings of the type.
        dtype: The type of its numbers.
    """

    sums: Sums
    slack: float
    dtype: torch.dtype = torch.float32


# Two sums of at most `ROWS` rows, as many additions of numbers of as many clips.
ADDING = 2.0 * ROWS**2
# Processors round a row differently in another company, and a gradient in which large numbers cancel shows it: up to
# 0.0012 clips in 18,000 pairs (0.0005 with one thread), across the row's own move. The least of the planted errors of
# the clip, a clip for each layer, adds 0.4.
COMPANY = 1e5


def _ragged(precision: Precision) -> Sums:
    def sums(model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
        return clipped_sums(model, vectors, x, y, mask, clips, physical_batch=64, precision=precision)

    return sums


def _even(precision: Precision) -> Sums:
    def sums(model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
        by_example = (t.transpose(0, 1).flatten(0, 1) for t in (x, y, mask))
        return padded_sums(Recorder(model), vectors, *by_example, clips, 10_000, precision)  # type: ignore[arg-type,call-arg]

    return sums


def _slow(model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    return vmap_sums(model, vectors, x, y, mask, clips, 4096)


def _whole(model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    """In units of the clip's grid, given back as numbers of the size of a gradient."""
    grids = clips / 4096
    return integer_sums(model, vectors, x, y, mask, clips, grids, 4096).double() * grids[:, None]


def _closed(model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    flat, targets = x.flatten(0, 1), y.flatten(0, 1)
    layer = linear_layer_of(model, flat)
    assert layer is not None
    rows = [own.nonzero().flatten() + number * mask.shape[1] for number, own in enumerate(mask)]
    return closed_form_sums(layer, vectors, flat, targets, rows, clips, 4096)


def _kernels(model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    """By the kernels of a linear layer, on a GPU if there is one."""
    layer = linear_layer_of(model, x.flatten(0, 1))
    assert layer is not None
    return linear_sums(layer, *(t.to(DEVICE) for t in (vectors, x, y, mask, clips))).cpu()


WAYS: Mapping[str, Way] = {
    "float32": Way(_ragged("float32"), COMPANY),
    "tf32": Way(_ragged("tf32"), COMPANY),
    "bf16": Way(_ragged("bf16"), COMPANY),
    "float64": Way(_ragged("float32"), COMPANY, torch.float64),
    "even float32": Way(_even("float32"), ADDING),
    "even bf16": Way(_even("bf16"), ADDING),
    "slow": Way(_slow, ADDING),
    "integers": Way(_whole, 0.0),
}


CLOSED = Way(_closed, COMPANY)
KERNELS = Way(_kernels, ADDING, torch.float32)


def _steep(output: Tensor, target: Tensor) -> Tensor:
    """A loss of a user's own: of any sign, steeper than exponential, not a number for some outputs."""
    return (output.exp() * (output - target)).sum() - output.abs().sqrt().sum()


def objectives() -> Mapping[str, Objective]:
    """What nets of that many outputs can be trained for."""
    own = user_loss(_steep, "steep", "regression", CLASSES, 0)
    return {
        "cross-entropy": CLASSIFICATION,
        "labels": Objective(task="multilabel", loss=BinaryCrossEntropy(), outputs=CLASSES, classes=CLASSES),
        "mse": Objective(task="regression", loss=MeanSquaredError(), outputs=CLASSES),
        "huber": Objective(task="regression", loss=Huber(), outputs=CLASSES),
        "own": Objective(task="regression", loss=own, outputs=CLASSES),
    }


def made(net: str, dtype: torch.dtype) -> Model:
    build, shape, tokens = NETS[net]
    example = torch.zeros(8, *shape, dtype=torch.long if tokens else dtype)
    module = build()
    model = wrap(net, module, None) if isinstance(module, nn.Sequential) else from_module(module, shape, net, example)
    start = 0.5 * torch.from_numpy(np.random.default_rng(len(net)).normal(size=model.layout.size))
    return Model(name=net, module=model.module.to(dtype), layout=model.layout, start=start.to(dtype))


@dataclass(frozen=True)
class Pairs:
    """Batches without a row, with it, and with another in its place: pairs x rows."""

    vectors: Tensor
    x: Tensor
    other_x: Tensor
    y: Tensor
    other_y: Tensor
    without: Tensor
    present: Tensor
    clips: Tensor


def targets(objective: Objective, rng: np.random.Generator, count: int, dtype: torch.dtype) -> np.ndarray:
    """Targets of the rows of that many batches."""
    shape = (count, ROWS, CLASSES)
    if objective.task == "multiclass":
        return rng.integers(0, CLASSES, shape[:2])
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    if objective.task == "multilabel":
        return rng.integers(0, 2, shape).astype(kind)
    values = rng.normal(size=shape) * rng.choice(SCALES, (count, ROWS, 1))
    _sprinkle(values.reshape(count * ROWS, CLASSES), rng, 0.05)
    with np.errstate(over="ignore"):
        return values.astype(kind)


def drawn(net: str, model: Model, count: int, seed: int) -> Pairs:
    _, shape, words = NETS[net]
    rng = np.random.default_rng(seed)
    start = model.start.numpy()
    vectors = start + rng.choice([0.0, 0.1, 3.0], (count, 1)) * rng.normal(size=(count, len(start)))
    vectors *= rng.choice([0.0, 1e-20, 1.0, 1.0, 1.0, 1.0, 1e3, 1e7], (count, 1))
    # Where inputs are words, only parameters can be extreme.
    _sprinkle(vectors, rng, 0.1 if words else 0.02)

    def inputs() -> np.ndarray:
        if words:
            return rng.integers(0, words, (count, ROWS, *shape))
        values = rng.normal(size=(count, ROWS, *shape))
        # One scale for the rows of a batch, or one for each.
        alike = rng.choice(SCALES, (count, 1, *[1] * len(shape)))
        apart = rng.choice(SCALES, (count, ROWS, *[1] * len(shape)))
        values = values * np.where(rng.random((count, 1, *[1] * len(shape))) < 0.3, alike, apart)
        _sprinkle(values.reshape(count * ROWS, -1), rng, 0.1)
        return values

    at = np.eye(ROWS, dtype=bool)[rng.integers(0, ROWS, count)]
    others = rng.random((count, ROWS)) < rng.choice([0.0, 0.5, 1.0], (count, 1))
    kind = torch.long if words else model.start.dtype
    x, y = inputs(), targets(model.objective, rng, count, model.start.dtype)
    other_x = np.where(at.reshape(count, ROWS, *[1] * len(shape)), inputs(), x)
    other = targets(model.objective, rng, count, model.start.dtype)
    other_y = np.where(at.reshape(count, ROWS, *[1] * (y.ndim - 2)), other, y)
    with np.errstate(over="ignore"):
        return Pairs(
            torch.from_numpy(vectors).to(model.start.dtype),
            torch.from_numpy(x).to(kind),
            torch.from_numpy(other_x).to(kind),
            torch.from_numpy(y),
            torch.from_numpy(other_y),
            torch.from_numpy(others & ~at),
            torch.from_numpy(others | at),
            torch.from_numpy(10 ** rng.uniform(-3, 4, count)),
        )


def _sprinkle(rows: np.ndarray, rng: np.random.Generator, share: float) -> None:
    """Put an odd number into that share of the rows."""
    chosen = (rng.random(len(rows)) < share).nonzero()[0]
    rows[chosen, rng.integers(0, rows.shape[1], len(chosen))] = rng.choice(ODD, len(chosen))


@dataclass(frozen=True)
class Moves:
    """How far sums moved, in clips: by a row added, by a row replaced; and the sum of the row alone."""

    added: Tensor
    replaced: Tensor
    alone: Tensor
    rows: Tensor

    def broken(self, way: Way) -> list[str]:
        """The bounds that do not hold. A row alone must keep its clip to the last digit."""
        # What this check itself rounds, in float64, and what adding up rounds.
        own, slack = 1e-12, 1e-12 + way.slack * torch.finfo(way.dtype).eps
        holds = {
            "finite": bool((self.added.isfinite() & self.replaced.isfinite()).all()),
            "added": bool((self.added <= 1.0 + slack).all()),
            "replaced": bool((self.replaced <= 2.0 + slack).all()),
            "alone": bool((self.alone <= 1.0 + own).all()),
        }
        return [name for name, kept in holds.items() if not kept]


def moves(net: str, way: Way, pairs: int, seed: int, objective: Objective = CLASSIFICATION) -> Iterator[Moves]:
    """The moves of that many pairs, some at a time."""
    for start in range(0, pairs, TOGETHER):
        model = replace(made(net, way.dtype), objective=objective)
        count = min(TOGETHER, pairs - start)
        p = drawn(net, model, count, seed * 100_003 + start)
        alone = p.present & ~p.without

        def sums(x: Tensor, y: Tensor, mask: Tensor, p: Pairs = p, model: Model = model) -> Tensor:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Lazy modules|model .*slow path")
                return way.sums(model, p.vectors, x, y, mask, p.clips).double() / p.clips[:, None]

        present = sums(p.x, p.y, p.present)
        yield Moves(
            added=(present - sums(p.x, p.y, p.without)).norm(dim=1),
            replaced=(present - sums(p.other_x, p.other_y, p.present)).norm(dim=1),
            alone=sums(p.x, p.y, alone).norm(dim=1),
            rows=p.present.sum(1),
        )
