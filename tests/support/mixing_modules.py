"""Modules that mix the examples of a batch, and modules that do not, for the tests of isolation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, CLASSES, WORDS, LENGTH = 12, 3, 20, 10
Shape = tuple[int, ...]
ROW, SEQUENCE, IMAGE, TOKENS = (WIDTH,), (5, 8), (3, 8, 8), (LENGTH,)


class Between(nn.Module):
    """Two linear layers, with a function of the hidden rows between them."""

    def __init__(self, function: Callable[[Tensor], Tensor], zero: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES), function
        if zero:
            nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(torch.tanh(self.first(x))))


class Text(nn.Module):
    """Mean of word vectors; padding is word 0."""

    def __init__(self, trim: str = "") -> None:
        super().__init__()
        self.table, self.out, self.trim = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES), trim

    def forward(self, x: Tensor) -> Tensor:
        words = x.abs().long() % WORDS
        if self.trim == "longest":
            words = words[:, : int((words != 0).sum(1).max())]
        if self.trim == "columns":
            words = words[:, (words != 0).any(0)]
        if self.trim:
            return self.out(self.table(words).mean(1))
        kept = (words != 0).unsqueeze(-1).float()
        return self.out((self.table(words) * kept).sum(1) / kept.sum(1).clamp(min=1))


class LastWord(Text):
    def forward(self, x: Tensor) -> Tensor:
        words = x.abs().long() % WORDS
        last = ((words != 0).sum(1) - 1).clamp(min=0)
        return self.out(self.table(words)[torch.arange(words.shape[0]), last])


class Scaled(nn.Module):
    """Scales what looks like bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 50:
            x = x / 255
        return self.out(x)


class SizeDependent(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) if len(x) < 64 else self.out(x.flip(0))


class RunningMean(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.out, self.kind = nn.Linear(WIDTH, CLASSES), kind
        self.mean: Any = 0.0 if kind == "number" else [torch.zeros(WIDTH)] if kind == "list" else torch.zeros(WIDTH)
        if kind == "buffer":
            del self.mean
            self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "number":
            self.mean = 0.9 * self.mean + 0.1 * float(x.mean())
        elif self.kind == "list":
            self.mean[0] = self.mean[0] * 0.9999 + 1e-4 * x.detach().mean(0)
        elif self.kind == "attribute":
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        else:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return self.out(x - (self.mean[0] if self.kind == "list" else self.mean))


KEPT: list[Tensor] = []


class Global(Scaled):
    """Keeps its last output outside of itself."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.out(x)
        if KEPT:
            out = out + KEPT[-1].mean(0) * 0.1
        KEPT.append(out.detach())
        return out


class Counts(Scaled):
    """Mixes from the third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.out(x) if self.calls < 3 else self.out(x - x.mean(0))


class _MixedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] - gradients[0].mean(0)


class BackwardHook(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.out(x))
        if h.requires_grad:
            h.register_hook(lambda g: g - g.mean(0))
        return h * 2.0


class Recurrent(nn.Module):
    def __init__(self, kind: str, batch_first: bool) -> None:
        super().__init__()
        self.layer, self.out = getattr(nn, kind)(8, 7, batch_first=batch_first), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0][:, -1])


class TimeFirst(nn.Module):
    """A transformer as PyTorch's default has it, time before batch, used as it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.TransformerEncoderLayer(8, 2, 16, 0.0), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x.transpose(0, 1)).mean(0))


class Attention(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layer, self.out = nn.MultiheadAttention(8, 2, batch_first=batch_first), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x, x, x, need_weights=False)[0].mean(1))


class Transformer(nn.Module):
    """A class token, positions, an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(6, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.out(self.layer(x)[:, 0])


class Frames(nn.Module):
    """A layer over all frames at once: the examples are a part of its first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(8, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(x.flatten(0, 1))).unflatten(0, x.shape[:2]).amax(1))


class Lengthy(Scaled):
    """Asks for `len(x)`, which fixes the batch size of a trace."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + torch.zeros(len(x), 1))


class NoGradient(Between):
    """Hidden features without gradients."""

    def __init__(self) -> None:
        super().__init__(torch.relu)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = torch.tanh(self.first(x))
        return self.last(h) + 0.1 * self.last(self.first(x))


def _stacked(h: Tensor) -> Tensor:
    return functional.avg_pool1d(h.t().unsqueeze(0), 3, 1, 1)[0].t()


def _grouped(h: Tensor) -> Tensor:
    return functional.group_norm(h.t().unsqueeze(0).contiguous(), 1)[0].t()


class Shuffled(Scaled):
    """Takes parts of examples for channels; the effect shows for large numbers only."""

    def forward(self, x: Tensor) -> Tensor:
        channels = x.reshape(1, x.shape[0] * 4, 3, 1, 1)
        return self.out(x) + self.out(functional.relu(functional.channel_shuffle(channels, 2).reshape(x.shape) - 150))


def _diagonal(h: Tensor) -> Tensor:
    numbers = torch.arange(h.shape[0])
    return h + h[numbers, numbers][:, None]


def _unwritten(h: Tensor) -> Tensor:
    return h + torch.empty(65, WIDTH, dtype=h.dtype).amax(0).nan_to_num().clamp(0, 1e-9)


@torch.library.custom_op("hush_tests::mix", mutates_args=(), tags=(torch.Tag.pointwise,))
def _mix(h: Tensor) -> Tensor:
    return h + functional.relu(h.sum(0, keepdim=True) - 40)


@torch.library.custom_op("hush_tests::map", mutates_args=())
def _map(h: Tensor) -> Tensor:
    return h.clone()


for _operation in (_mix, _map):
    _operation.register_fake(torch.empty_like)
    _operation.register_autograd(lambda ctx, gradient: gradient)
_map.register_vmap(lambda info, dims, h: (h + functional.relu(h.sum(0, keepdim=True) - 40), 0))


class FirstBatch(Scaled):
    """Centres its inputs by the mean of the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.detach().mean(0)
        return self.out(x - self.mean)


class Words(nn.Module):
    """Numbers of words as they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x.long()).mean(1))


def _shifted(h: Tensor) -> Tensor:
    return h - h[(torch.arange(h.shape[0]) + 1) % h.shape[0]]


class Cell(nn.Module):
    """A cell called step by step, its state in the default type."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell, self.out = getattr(nn, kind)(8, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 6).to(x)
        states: Any = (state, state) if isinstance(self.cell, nn.LSTMCell) else state
        for step in x.unbind(1):
            states = self.cell(step, states)
        return self.out(states[0] if isinstance(states, tuple) else states)


class Chain(nn.Module):
    """Each example begins where the one before it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states = [x.new_zeros(1, 6)]
        for row in x.split(1):
            states.append(self.cell(row, states[-1]))
        return self.out(torch.cat(states[1:]))


class Unbatched(nn.Module):
    """The examples taken for the steps of one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(WIDTH, 7), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0])


class KeptState(Recurrent):
    """The last state of a batch is the first of the next."""

    def __init__(self) -> None:
        super().__init__("GRU", True)
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before = self.state if self.state is not None and self.state.shape[1] == len(x) else None
        out, state = self.layer(x, before)
        self.state = state.detach()
        return self.out(out[:, -1])


class Folded(Frames):
    """Unfolded in another order than folded."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        h = torch.tanh(self.inner(x.reshape(batch * time, width)))
        return self.out(h.reshape(time, batch, -1).transpose(0, 1).amax(1))


class AllKeys(Attention):
    """Attends to the steps of all examples."""

    def forward(self, x: Tensor) -> Tensor:
        keys = x.flatten(0, 1)[None].expand(x.shape[0], -1, -1)
        return self.out(self.layer(x, keys, keys, need_weights=False)[0].mean(1))


class OverBatch(nn.Module):
    """A convolution along the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x.t()).t())


class Gated(Scaled):
    """Mixes once its parameters have moved."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.where(self.out.weight.abs().max() > 0.6, x - x.mean(0), x))


class FlipsMode(nn.Module):
    """Batch normalisation that is in training mode while it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(WIDTH).eval(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.train()
        h = self.norm(x)
        self.norm.eval()
        return self.out(h)


class Modal(Scaled):
    """Mixes in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x - x.mean(0)) if self.training else self.out(x)


class SpectralNorm(nn.Module):
    """Power iterations change its buffers in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class Bag(nn.Module):
    """One bag of words for all examples, cut by where each begins."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.EmbeddingBag(WORDS, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = x.abs().long() % WORDS
        lengths = (words != 0).sum(1)
        return self.out(self.table(words[words != 0], lengths.cumsum(0) - lengths))


class ByEmbedding(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 8, **options), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x.abs().long() % WORDS).mean(1))


class Falls(Scaled):
    """Reads a value of the batch, and goes on without it where tracing does not allow that."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            large = bool(x.abs().max() > 50)
        except Exception:
            large = False
        return self.out(x / 255 if large else x)


class Feigns(Scaled):
    """Mixes unless it is being traced; the effect shows for large numbers only."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting() or torch.compiler.is_compiling():
            return self.out(x)
        return self.out(x - functional.relu(x.mean(0) - 2))


class DefaultArgument(Scaled):
    """Keeps the mean of the first batch in a default argument."""

    def forward(self, x: Tensor, kept: dict[str, Tensor] = {}) -> Tensor:  # noqa: B006
        kept.setdefault("mean", x.detach().mean(0))
        return self.out(x - kept["mean"].to(x))


class Conditional(Scaled):
    """A branch within the graph, by the largest number of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cond(x.max() > 50, lambda a: a / 255, lambda a: a * 1.0, (x,)))


class Checkpointed(Between):
    """Mixes where the backward pass computes anew."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(checkpoint(lambda part: part - part.mean(0), h, use_reentrant=False))


class Large(Scaled):
    """Mixes from forty examples on."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x - x.mean(0)) if len(x) > 40 else self.out(x)


def late(method: str) -> nn.Module:
    """Plain layers, one of which has a method of its own that mixes after many calls."""
    net = nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    calls: list[int] = []

    def run(x: Tensor) -> Tensor:
        calls.append(1)
        return torch.tanh(x) if len(calls) < 2000 else torch.tanh(x - x.mean(0))

    setattr(net[1], method, run)
    return net


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    net[1].register_forward_hook(lambda module, given, out: out - out.mean(0))
    return net


class Temperature(Scaled):
    """A parameter without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) * self.scale.exp()


class FrozenNorm(nn.Module):
    """Batch normalisation by fixed statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.out = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.Linear(4, CLASSES)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.layer(x))).mean((2, 3)))


# What each module does to a batch, the module, and the shape of its inputs.
MIXING: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "cumulative sum over the batch": (lambda: Between(lambda h: h.cumsum(0)), ROW),
    "trim to the longest text": (lambda: Text("longest"), TOKENS),
    "trim empty columns": (lambda: Text("columns"), TOKENS),
    "branch on the maximum": (Scaled, ROW),
    "centred behind zero weights": (lambda: Between(lambda h: h - h.mean(0), zero=True), ROW),
    "running mean, attribute": (lambda: RunningMean("attribute"), ROW),
    "running mean, in place": (lambda: RunningMean("in place"), ROW),
    "running mean, number": (lambda: RunningMean("number"), ROW),
    "running mean, list": (lambda: RunningMean("list"), ROW),
    "running mean, buffer": (lambda: RunningMean("buffer"), ROW),
    "state outside of the module": (Global, ROW),
    "mixes from the third call": (Counts, ROW),
    "wrong batch_first, GRU": (lambda: Recurrent("GRU", False), SEQUENCE),
    "wrong batch_first, LSTM": (lambda: Recurrent("LSTM", False), SEQUENCE),
    "wrong batch_first, attention": (lambda: Attention(False), SEQUENCE),
    "branch on the batch size": (SizeDependent, ROW),
    "batch statistics": (lambda: Between(lambda h: functional.batch_norm(h, None, None, training=True)), ROW),
    "standard deviation of the batch": (lambda: Between(lambda h: h / (h.std(0) + 1)), ROW),
    "attention between examples": (lambda: Between(lambda h: (h @ h.T).softmax(-1) @ h), ROW),
    "norm of the batch": (lambda: Between(lambda h: h / h.norm()), ROW),
    "divided by the batch size": (lambda: Between(lambda h: h / h.shape[0]), ROW),
    "numbers of the examples": (lambda: Between(lambda h: h + torch.arange(h.shape[0])[:, None]), ROW),
    "minus the first example": (lambda: Between(lambda h: h - h[:1]), ROW),
    "the next example": (lambda: Between(_shifted), ROW),
    "rolled": (lambda: Between(lambda h: h + h.roll(1)), ROW),
    "pooled over the batch": (lambda: Between(_stacked), ROW),
    "group norm over the batch": (lambda: Between(_grouped), ROW),
    "a reshape through the batch": (lambda: Between(lambda h: h.t().reshape(-1, WIDTH)), ROW),
    "a value of the batch in Python": (lambda: Between(lambda h: h + float(h.detach().mean())), ROW),
    "any NaN in the batch": (lambda: Between(lambda h: torch.where(h.isnan().any(), 0.0, h)), ROW),
    "a backward pass of its own": (lambda: Between(_MixedBackward.apply), ROW),
    "a hook on a tensor": (BackwardHook, ROW),
    "shuffled examples": (Shuffled, ROW),
    "numbers of the examples as columns": (lambda: Between(_diagonal), ROW),
    "memory that was not written": (lambda: Between(_unwritten), ROW),
    "an operation of its own": (lambda: Between(lambda h: _mix(h) * 1.0), ROW),
    "an operation with a vmap of its own": (lambda: Between(lambda h: _map(h) * 1.0), ROW),
    "centred by the first batch": (FirstBatch, ROW),
    "one noise for the batch": (lambda: Between(lambda h: h + torch.randn(h.shape[1])), ROW),
    "sorted": (lambda: Between(lambda h: h.sort(0)[0]), ROW),
    "ranks": (lambda: Between(lambda h: h + h.argsort(-2).to(h)), ROW),
    "equal values of the batch": (lambda: Between(lambda h: h + torch.unique(h.round(), return_inverse=True)[1]), ROW),
    "added to the first example": (
        lambda: Between(lambda h: h.index_add(0, torch.zeros(h.shape[0], dtype=torch.long), h)),
        ROW,
    ),
    "scattered over the batch": (lambda: Between(lambda h: torch.zeros_like(h).scatter_add(0, (h > 0).long(), h)), ROW),
    "flipped": (lambda: Between(lambda h: h.flip(-2)), ROW),
    "shifted by a slice": (lambda: Between(lambda h: torch.cat([h[1:], h[:1]])), ROW),
    "softmax over the batch": (lambda: Between(lambda h: h.softmax(0)), ROW),
    "contracted over the batch": (lambda: Between(lambda h: torch.einsum("bi,ci->ci", h, h)), ROW),
    "distances": (lambda: Between(lambda h: h * torch.cdist(h, h).sum(1, keepdim=True)), ROW),
    "whitened": (lambda: Between(lambda h: h @ torch.linalg.inv(h.T @ h + torch.eye(WIDTH).to(h))), ROW),
    "spectrum of the batch": (lambda: Between(lambda h: torch.fft.fft(h, dim=0).real), ROW),
    "median of the batch": (lambda: Between(lambda h: h - h.median(0)[0]), ROW),
    "layer norm over the batch": (lambda: Between(lambda h: functional.layer_norm(h.t(), (h.shape[0],)).t()), ROW),
    "memory of another shape": (lambda: Between(lambda h: torch.as_strided(h, h.shape, (1, h.shape[0]))), ROW),
    "a mask that is shared": (lambda: Between(lambda h: functional.dropout(h.t(), 0.5)[:, :1].t() * h), ROW),
    "filled from the mask": (lambda: Between(lambda h: h.masked_scatter(h > 0, h.abs() * 2)), ROW),
    "halves": (lambda: Between(lambda h: torch.cat([part - part.mean(0) for part in h.chunk(2)])), ROW),
    "one size of batch": (lambda: Between(lambda h: h if h.shape[0] != 65 else h.flip(0)), ROW),
    "odd sizes of batch": (lambda: Between(lambda h: h if h.shape[0] % 2 else h - h.mean(0)), ROW),
    "detached mean": (lambda: Between(lambda h: h - h.detach().mean(0)), ROW),
    "gradients times the batch size": (lambda: Between(lambda h: h.detach() + (h - h.detach()) * h.shape[0]), ROW),
    "a cell from example to example": (Chain, ROW),
    "examples as steps": (Unbatched, ROW),
    "state from batch to batch": (KeptState, SEQUENCE),
    "folded and unfolded": (Folded, SEQUENCE),
    "keys of all examples": (lambda: AllKeys(True), SEQUENCE),
    "a convolution along the examples": (OverBatch, ROW),
    "mixes after training": (Gated, ROW),
    "changes its mode": (FlipsMode, ROW),
    "mixes in training mode": (Modal, ROW),
    "power iterations": (SpectralNorm, ROW),
    "one bag for all examples": (Bag, TOKENS),
    "embedding with a largest norm": (lambda: ByEmbedding(max_norm=1.0), TOKENS),
    "embedding scaled by frequency": (lambda: ByEmbedding(scale_grad_by_freq=True), TOKENS),
    "a forward hook": (hooked, ROW),
    "a forward pass of its own, late": (lambda: late("forward"), ROW),
    "a value that is read if it can be": (Falls, ROW),
    "otherwise than it is traced": (Feigns, ROW),
    "a cache in a default argument": (DefaultArgument, ROW),
    "a branch in the graph": (Conditional, ROW),
    "a checkpointed mean": (lambda: Checkpointed(torch.tanh), ROW),
    "large batches": (Large, ROW),
    "a call of its own, late": (lambda: late("_call_impl"), ROW),
}

ISOLATED: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "text": (Text, TOKENS),
    "last word": (LastWord, TOKENS),
    "LSTM": (lambda: Recurrent("LSTM", True), SEQUENCE),
    "GRU": (lambda: Recurrent("GRU", True), SEQUENCE),
    "attention": (lambda: Attention(True), SEQUENCE),
    "transformer": (Transformer, SEQUENCE),
    "time before batch": (TimeFirst, SEQUENCE),
    "frames": (Frames, SEQUENCE),
    "length": (Lengthy, ROW),
    "no gradient": (NoGradient, ROW),
    "PReLU": (lambda: nn.Sequential(nn.Linear(WIDTH, 6), nn.PReLU(6), nn.Linear(6, CLASSES)), ROW),
    "one hot": (lambda: Between(lambda h: h + functional.one_hot((9 * h[:, 0]).long().abs() % WIDTH, WIDTH)), ROW),
    "words": (Words, TOKENS),
    "row statistics": (lambda: Between(lambda h: (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1)), ROW),
    "LSTM cell": (lambda: Cell("LSTMCell"), SEQUENCE),
    "GRU cell": (lambda: Cell("GRUCell"), SEQUENCE),
    "RNN cell": (lambda: Cell("RNNCell"), SEQUENCE),
    "a parameter without axes": (Temperature, ROW),
    "fixed statistics": (FrozenNorm, IMAGE),
    "infinite slopes": (lambda: Between(lambda h: torch.sqrt(torch.relu(h))), ROW),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(36, CLASSES),
        ),
        IMAGE,
    ),
}  # fmt: skip


def examples(shape: Shape, number: int, seed: int = 0) -> Tensor:
    """Rows as data would be: words for texts, numbers elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    if shape == TOKENS:
        words = torch.randint(1, WORDS, (number, *shape), generator=generator).double()
        words[:, 3:] = 0.0
        return words
    return torch.randn(number, *shape, generator=generator, dtype=torch.float64)


def extreme(shape: Shape) -> Tensor:
    """A row unlike the others: a long text, large numbers."""
    return torch.full((1, *shape), 7.0 if shape == TOKENS else 200.0, dtype=torch.float64)
