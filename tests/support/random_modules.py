"""Modules with dropout and random numbers of many kinds, and modules whose random numbers tie examples together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, CLASSES = 8, 3


class Dropping(nn.Module):
    """Two linear layers, in training with a function of the hidden rows between them."""

    def __init__(self, function: Callable[[Tensor], Tensor], always: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.function, self.always = function, always

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if self.training or self.always:
            hidden = self.function(hidden)
        return self.last(hidden.flatten(1))


class Sequence(nn.Module):
    """A network over sequences of four steps of two numbers, batch first or second."""

    def __init__(self, layer: nn.Module, width: int, batch_first: bool = True) -> None:
        super().__init__()
        self.layer, self.out, self.batch_first = layer, nn.Linear(width, CLASSES), batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 4, 2)
        x = torch.cat([x, x.flip(1)], 2)
        found = self.layer(x if self.batch_first else x.transpose(0, 1))
        found = found[0] if isinstance(found, tuple) else found
        return self.out(found.mean(1 if self.batch_first else 0))


class Attention(nn.Module):
    """Attention with weights or without, with a mask in which a query may attend to nothing, or a causal one."""

    def __init__(self, weights: bool = False, masked: bool = False) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.weights, self.masked = weights, masked

    def forward(self, x: Tensor) -> Tensor:
        mask = (x[..., 0] > 0.5) if self.masked else None
        out: Tensor = self.layer(x, x, x, key_padding_mask=mask, need_weights=self.weights)[0]
        return out.nan_to_num()


class Fused(nn.Module):
    """PyTorch's attention function."""

    def forward(self, x: Tensor) -> Tensor:
        p = 0.3 if self.training else 0.0
        return functional.scaled_dot_product_attention(x, x, x, dropout_p=p, is_causal=True)


def _encoder(batch_first: bool = True, norm_first: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.3, batch_first=batch_first, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def _heads(h: Tensor) -> Tensor:
    """The rows of an example beside each other on the batch axis."""
    return functional.dropout(h.reshape(-1, 2), 0.5).reshape(-1, WIDTH)


def _time_first(h: Tensor) -> Tensor:
    return functional.dropout(h.view(-1, 4, 2).transpose(0, 1), 0.5).transpose(0, 1)


def _path(h: Tensor) -> Tensor:
    """Stochastic depth: the whole of an example is dropped."""
    return h * h.new_empty(len(h), 1).bernoulli_(0.8) / 0.8


# Each example has its own random numbers.
RANDOM: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: Dropping(lambda h: functional.dropout(h, 0.4)),
    "dropout in place": lambda: Dropping(lambda h: functional.dropout(2 * h, 0.4, inplace=True)),
    "dropout, and of all": lambda: Dropping(lambda h: functional.dropout(h, 0.4) + functional.dropout(h, 1.0)),
    "dropout of heads": lambda: Dropping(_heads),
    "dropout, time first": lambda: Dropping(_time_first),
    "channels": lambda: Dropping(lambda h: functional.dropout2d(h.view(-1, 2, 2, 2), 0.4)),
    "channels of sequences": lambda: Dropping(lambda h: functional.dropout1d(h.view(-1, 4, 2), 0.4)),
    "alpha": lambda: Dropping(lambda h: functional.alpha_dropout(h, 0.4, training=True)),
    "alpha of channels": lambda: Dropping(
        lambda h: functional.feature_alpha_dropout(h.view(-1, 4, 2), 0.4, training=True)
    ),
    "RReLU": lambda: Dropping(lambda h: functional.rrelu(h, training=True)),
    "stochastic depth": lambda: Dropping(_path),
    "rand like": lambda: Dropping(lambda h: h * (torch.rand_like(h) < 0.5)),
    "bernoulli": lambda: Dropping(lambda h: h * torch.bernoulli(torch.sigmoid(h))),
    "layers": lambda: nn.Sequential(
        nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH), nn.RReLU(), nn.Dropout(0.5), nn.Linear(WIDTH, CLASSES)
    ),
    "LSTM": lambda: Sequence(nn.LSTM(4, 3, 2, batch_first=True, dropout=0.3), 3),
    "GRU, both ways": lambda: Sequence(nn.GRU(4, 3, 3, batch_first=True, dropout=0.3, bidirectional=True), 6),
    "RNN, time first": lambda: Sequence(nn.RNN(4, 3, 2, dropout=0.3, bias=False), 3, False),
    "encoder": lambda: Sequence(_encoder(), 4),
    "encoder, time first": lambda: Sequence(_encoder(False, True), 4, False),
    "attention, weights": lambda: Sequence(Attention(weights=True), 4),
    "attention, masked": lambda: Sequence(Attention(masked=True), 4),
    "causal attention": lambda: Sequence(Fused(), 4),
}


def _kept(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function that draws once and keeps what it drew."""
    drawn: list[Tensor] = []

    def function(h: Tensor) -> Tensor:
        drawn[:] = drawn or [make(h).detach()]
        return h * drawn[0][: len(h)]

    return function


class _Counting(nn.Module):
    """Drops more with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(WIDTH, CLASSES), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(functional.dropout(x, min(0.9, 0.1 * self.calls), self.training))


def _numpy(h: Tensor) -> Tensor:
    import numpy as np

    return h * torch.from_numpy(np.random.rand(WIDTH)).to(h)  # noqa: NPY002


def _generator(h: Tensor) -> Tensor:
    return h * torch.rand(h.shape, generator=torch.Generator().manual_seed(0))


# Random numbers with which examples could depend on each other: refused, or each example on its own.
TRICKS: dict[str, Callable[[], nn.Module]] = {
    "always on": lambda: Dropping(lambda h: functional.dropout(h, 0.4), always=True),
    "one mask for the batch": lambda: Dropping(lambda h: h * functional.dropout(torch.ones(WIDTH), 0.4)),
    "one number for the batch": lambda: Dropping(lambda h: h * torch.rand(())),
    "one draw decides": lambda: Dropping(lambda h: h if torch.rand(()) < 0.5 else -h),
    "dropout of the mean": lambda: Dropping(lambda h: h + functional.dropout(h.mean(0), 0.4)),
    "dropout of the sum": lambda: Dropping(lambda h: h + functional.dropout(h.sum(0, keepdim=True), 0.4)),
    "alpha of the centred": lambda: Dropping(lambda h: functional.alpha_dropout(h - h.mean(0), 0.4, training=True)),
    "features across the batch": lambda: Dropping(
        lambda h: functional.dropout2d(h.t().reshape(1, WIDTH, -1), 0.4).view(WIDTH, -1).t()
    ),
    "the batch as channels": lambda: Dropping(
        lambda h: functional.dropout1d(h.t().reshape(2, 4, -1), 0.4).reshape(WIDTH, -1).t()
    ),
    "first example's mask": lambda: Dropping(lambda h: h * functional.dropout(torch.ones_like(h), 0.4)[:1]),
    "transposed mask": lambda: Dropping(lambda h: functional.dropout(h.t(), 0.5)[:, :1].t() * h),
    "bernoulli of the batch mean": lambda: Dropping(lambda h: h * torch.bernoulli(torch.sigmoid(h.mean(0)))),
    "bernoulli of the largest": lambda: Dropping(lambda h: h * torch.bernoulli(torch.sigmoid(h - h.max()))),
    "shuffled": lambda: Dropping(lambda h: h[torch.randperm(len(h))]),
    "mixup": lambda: Dropping(lambda h: 0.5 * h + 0.5 * h.flip(0) * torch.rand(len(h), 1)),
    "multinomial": lambda: Dropping(lambda h: h[torch.multinomial(torch.ones(len(h)), len(h))]),
    "noise of the batch's size": lambda: Dropping(lambda h: h + torch.randn(h.shape[1]) * h.std(0)),
    "gaussian": lambda: Dropping(lambda h: h + torch.randn_like(h)),
    "sorted by a draw": lambda: Dropping(lambda h: h[torch.rand(len(h)).argsort()]),
    "kept mask": lambda: Dropping(_kept(lambda h: functional.dropout(torch.ones_like(h), 0.4))),
    "numpy": lambda: Dropping(_numpy),
    "own generator": lambda: Dropping(_generator),
    "counting": _Counting,
    "attention over the batch": lambda: Dropping(
        lambda h: functional.scaled_dot_product_attention(h[None], h[None], h[None], dropout_p=0.2)[0]
    ),
    "LSTM over the batch": lambda: Sequence(nn.LSTM(4, 3, 2, dropout=0.3), 3),
    "RReLU of the batch mean": lambda: Dropping(lambda h: h + functional.rrelu(h.mean(0), training=True)),
}


def rows(number: int, seed: int = 0) -> Tensor:
    """Examples for these modules, in float64."""
    return torch.randn(number, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def keys(*shape: int, seed: int = 0) -> Tensor:
    """Keys for dropout."""
    return torch.randint(-(2**62), 2**62, shape, generator=torch.Generator().manual_seed(seed))
