"""Modules as people have them: lazy, of other types, with buffers, tied or frozen parts; and none is changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence

from hush.models import Model, from_module, from_user
from hush.models.isolation.dropout import with_keys
from hush.training.select import clipped_sums
from hush.types import HushError
from tests.support.random_modules import keys


def test_lazy_layers_get_their_sizes_on_a_copy() -> None:
    module = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    drawn = torch.random.get_rng_state()
    first, second = (from_user(module, (2, 5), 3, "own") for _ in range(2))
    assert first.layout.shapes == ((8, 10), (8,), (3, 8), (3,))
    assert torch.equal(first.start, second.start)
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert type(module[1]) is nn.LazyLinear and nn.parameter.is_lazy(module[1].weight)
    with pytest.raises(
        HushError, match=r"lazy layers get no sizes, since it fails on inputs of shape \(2, 3\)"
    ) as caught:
        from_user(nn.Sequential(nn.LazyConv2d(2, 3), nn.Flatten(), nn.LazyLinear(3)), (3,), 3, "own")
    assert "\n" not in str(caught.value)
    with pytest.raises(HushError, match="cannot be copied"):  # PyTorch's buffers without a size cannot be
        from_user(nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(3)), (3,), 3, "own")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_train_in_float32(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)).to(dtype)
    module.register_buffer("scale", torch.ones(3, dtype=dtype))
    with caplog.at_level(logging.WARNING, "hush"):
        model = from_user(module, (4,), 2, "own")
    kind = str(dtype).removeprefix("torch.")
    assert f"model own: its {kind} weights are converted; it is trained in float32" in caplog.text
    assert model.start.dtype == torch.float32
    expected = torch.cat([value.detach().float().flatten() for value in module.parameters()])
    assert torch.equal(model.start, expected)
    assert model.types == dict.fromkeys(["0.weight", "0.bias", "3.weight", "3.bias", "scale"], dtype)
    assert model.logits(model.start, torch.randn(3, 4)).dtype == torch.float32
    assert all(value.dtype == dtype for value in module.parameters())


class Positions(nn.Module):
    """Constants in buffers, used and unused, persistent or not; a mask, and positions."""

    causal: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table, self.where, self.out = nn.Embedding(9, 4), nn.Embedding(6, 4), nn.Linear(4, 2)
        self.register_buffer("position_ids", torch.arange(6)[None])
        self.register_buffer("causal", torch.ones(6, 6).tril().bool(), persistent=False)
        self.register_buffer("unused", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        words = self.table(x.abs().long() % 9) + self.where(self.position_ids)
        scores = (words @ words.transpose(1, 2)).masked_fill(~self.causal, -1e4)
        return self.out((scores.softmax(-1) @ words).mean(1))


def test_constant_buffers_are_fine() -> None:
    module, x = Positions(), torch.randn(5, 6)
    model = from_user(module, (6,), 2, "own")
    torch.testing.assert_close(model.logits(model.start, x), module(x))


class Averaging(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.layer(x - self.mean)


CHANGING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "running mean": (Averaging, r"keeps state between calls, in .*mean"),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), "BatchNorm1d.*mixes the examples"),
    "spectral norm": (
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 2)),
        "keeps state between calls, in 0.parametrizations.weight.0._buffers",
    ),
    "running statistics": (
        lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(),
                              nn.Linear(4, 2)),
        "running_|keeps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGING)
def test_buffers_that_change_are_refused(case: str) -> None:
    make, words = CHANGING[case]
    with pytest.raises(HushError, match=words) as caught:
        from_user(make(), (4,), 2, "own")
    assert "\n" not in str(caught.value)


def test_fixed_statistics_and_spectral_norm_at_rest_run() -> None:
    for make in (CHANGING["batch norm"][0], CHANGING["spectral norm"][0]):
        module, x = make().eval(), torch.randn(5, 4)
        model = from_user(module, (4,), 2, "own")
        torch.testing.assert_close(model.logits(model.start, x), module(x))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x[..., 0] != 0).sum(1).clamp(min=1)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.layer(packed)[1][0][-1])


def test_packed_sequences_are_refused_with_the_reason() -> None:
    with pytest.raises(HushError, match="packs sequences by the lengths of a batch; accepted: padded") as caught:
        from_user(Packed(), (5, 3), 2, "own")
    assert "\n" not in str(caught.value)


def test_nothing_of_the_module_changes() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 8)).double()
    module[2].eval()
    module[0].weight.requires_grad_(False)
    module.register_buffer("constant", torch.ones(2))
    module[0].register_forward_hook(lambda _, given, out: out * 1.0)
    before = state(module)
    with pytest.raises(HushError, match="logits per row"):
        from_user(module, (4,), 9, "own")
    from_user(module, (4,), 8, "own")
    assert state(module) == before


def state(module: nn.Module) -> list[Any]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [
        *((n, id(v), v.dtype, v.requires_grad, v._version, v.tolist(), v.grad) for n, v in tensors),
        *((n, p.training, type(p), len(p._forward_hooks), list(p._forward_hooks)) for n, p in module.named_modules()),
    ]


class Tied(nn.Module):
    """Words are scored with the table that they are looked up in, and one layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.score = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.score.weight = self.table.weight
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.table(x.abs().long() % 9).mean(1)
        return self.score(self.drop(self.middle(torch.tanh(self.middle(hidden)))))


def frozen() -> nn.Module:
    """A frozen recurrent part, a trained normalisation, and a layer of which only the bias is trained."""
    module = nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(0.3),
        nn.Linear(8, 5), nn.Linear(5, 9),
    )  # fmt: skip
    module[2].requires_grad_(False)
    module[6].weight.requires_grad_(False)
    return module


class FrozenEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.LSTM(3, 4, 2, batch_first=True, dropout=0.2), nn.Linear(4, 9)
        self.encoder.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x.view(-1, 2, 3))[0][:, -1])


@pytest.mark.filterwarnings("ignore:model custom.*slow path")
@pytest.mark.parametrize("make", [Tied, frozen, FrozenEncoder])
def test_gradients_of_tied_shared_and_frozen_parts(make: Callable[[], nn.Module]) -> None:
    """Against a loop over the examples with PyTorch's own autograd, the masks being those of each example's key."""
    torch.manual_seed(0)
    module = make()
    x, y, drawn = torch.randn(7, 6).double() * 4, torch.arange(7) % 9, keys(7)
    model = from_module(module, (6,), examples=x)
    model = replace(model, start=model.start.double())
    trained = [name for name, value in module.named_parameters() if value.requires_grad]
    assert list(model.layout.names) == trained
    packed, clip = with_keys(x, drawn), torch.full((1,), 0.5, dtype=torch.float64)
    mask = torch.ones(1, 7, dtype=torch.bool)
    found = clipped_sums(model.in_training, model.start[None], packed[None], y[None], mask, clip)[0]
    torch.testing.assert_close(found, loop(model, packed, y), rtol=5e-3, atol=5e-3)
    plain = clipped_sums(model, model.start[None], x[None], y[None], mask, clip)[0]
    assert float((plain - found).norm()) > 1e-3
    torch.testing.assert_close(plain, eager_loop(module, x, y), rtol=5e-3, atol=5e-3)


def loop(model: Model, packed: Tensor, y: Tensor) -> Tensor:
    vector, total = model.start.clone().requires_grad_(), torch.zeros_like(model.start)
    for row, truth in zip(packed, y, strict=True):
        loss = nn.functional.cross_entropy(model.in_training.logits(vector, row[None]), truth[None])
        (slope,) = torch.autograd.grad(loss, vector)
        total += slope * min(1.0, 0.5 / float(slope.norm()))
    return total


def eager_loop(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    module = module.double().eval()
    values = [value for value in module.parameters() if value.requires_grad]
    total = torch.zeros(sum(value.numel() for value in values), dtype=torch.float64)
    for row, truth in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(module(row[None]), truth[None])
        flat = torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, values)])
        total += flat * min(1.0, 0.5 / float(flat.norm()))
    return total
