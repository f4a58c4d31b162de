"""Cost of isolating a user's module: tracing once, its graph compared with its own code, and row-by-row evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hush.bench.findings import Findings
from hush.bench.timing import best
from hush.models import Model, from_module
from hush.training.per_example.vmap import vmap_sums
from hush.training.select import clipped_sums

_BATCH, _CLASSES = 64, 10


class _Cnn(nn.Module):
    """Robust-HDP's network as a user would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 32, 5, padding=2)
        self.out = nn.Linear(32 * 49, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        for layer in (self.first, self.second):
            x = nn.functional.max_pool2d(torch.relu(layer(x)), 2)
        out: Tensor = self.out(x.flatten(1))
        return out


class _Transformer(nn.Module):
    """Two encoder layers with time before batch, PyTorch's default."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        out: Tensor = self.out(self.encoder(x.transpose(0, 1)).mean(0))
        return out


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        out: Tensor = self.out(self.layer(x)[0][:, -1])
        return out


_KINDS: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...]], ...] = (
    ("cnn", _Cnn, (1, 28, 28)),
    ("transformer", _Transformer, (32, 64)),
    ("lstm", _Lstm, (20, 16)),
)


def measure() -> Findings:
    """Measure for each kind of module the seconds to trace, and ratios in one run."""
    figures: dict[str, float] = {}
    for name, build, shape in _KINDS:
        module = build()
        began = time.perf_counter()
        model = from_module(module, shape)
        figures[f"isolation.{name}.trace_seconds"] = time.perf_counter() - began
        seconds = best(_contestants(module, model, shape), turns=7)
        figures[f"isolation.{name}.graph_over_module"] = seconds["graph"] / seconds["module"]
        figures[f"isolation.{name}.rows_over_batched"] = seconds["rows"] / seconds["batched"]
    notes = {
        "isolation.cnn.trace_seconds": "Once for each run; the first in a process also loads PyTorch's exporter.",
        "isolation.cnn.graph_over_module": f"Forward and backward pass of a batch of {_BATCH}: graph against module.",
        "isolation.cnn.rows_over_batched": "Clipped sums row by row, against the batched path of the same module.",
    }
    return Findings(figures, notes)


def _contestants(module: nn.Module, model: Model, shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    x, y = (
        torch.arange(_BATCH * torch.Size(shape).numel()).float().sin().view(_BATCH, *shape),
        torch.zeros(_BATCH).long(),
    )
    vectors, mask, clips = (
        model.start[None],
        torch.ones(1, _BATCH, dtype=torch.bool),
        torch.ones(1, dtype=torch.float64),
    )
    named = {key: value.detach().clone().requires_grad_() for key, value in module.named_parameters()}

    def step(of: nn.Module) -> object:
        loss = nn.functional.cross_entropy(torch.func.functional_call(of, named, (x,)), y)
        return torch.autograd.grad(loss, list(named.values()))

    return {
        "module": lambda: step(module),
        "graph": lambda: step(model.module),
        "batched": lambda: clipped_sums(model, vectors, x[None], y[None], mask, clips, strict=True),
        "rows": lambda: vmap_sums(model, vectors, x[None], y[None], mask, clips, _BATCH),
    }
