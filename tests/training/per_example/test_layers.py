"""Every kind of layer, in any shape, against PyTorch's vectorised gradients in float64; and what has no rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hush.models import Model, from_module
from hush.models.model import wrap
from hush.models.resnet import _Block
from hush.training import select
from hush.training.per_example import layers
from hush.training.per_example.recorder import Recorder
from hush.training.per_example.sums import padded_sums
from hush.training.select import clipped_sums
from hush.types import HushError
from tests.support.nets import applied, batch, double, random, reference

CLASSES = 4
Shape = tuple[int, ...]


class Residual(nn.Module):
    """Two blocks as in the ResNet, one with a shortcut that is a layer, and code between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = _Block(2, 4, 2), _Block(4, 4, 1), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.second(self.first(x) * 0.5).mean((2, 3)))


class Twice(nn.Module):
    """One layer called twice, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out, self.tied = nn.Linear(6, 6), nn.Linear(6, CLASSES), nn.Linear(6, 6)
        self.tied.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.tied(torch.tanh(self.inner(torch.tanh(self.inner(x))))))


class Tied(nn.Module):
    """A table whose rows are also the weights of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, 5)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.table(x).tanh().mean(1), self.table.weight)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.RNNBase, width: int) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, last = self.layer(x if self.layer.batch_first else x.transpose(0, 1))
        state = last[0] if isinstance(last, tuple) else last
        return self.out(outputs.mean(1 if self.layer.batch_first else 0)) + state.sum((0, 2))[:, None]


class Functions(nn.Module):
    """Parameters held bare, used through functions and keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 2, 3))
        self.shift = nn.Parameter(torch.randn(3))
        self.matrix = nn.Parameter(torch.randn(CLASSES, 3))

    def forward(self, x: Tensor) -> Tensor:
        assert self.kernel.shape == (3, 2, 3)
        assert self.kernel.device == x.device
        seen = functional.conv1d(input=x, weight=self.kernel, bias=self.shift, padding="same")
        return functional.linear(seen.amax(2), weight=self.matrix)


class Hidden(nn.Module):
    """A layer that forward reaches past the tree of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, CLASSES)
        self.also = [self.inner]

    def forward(self, x: Tensor) -> Tensor:
        return self.also[0](x)


def tail(*modules: nn.Module) -> nn.Sequential:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(*modules, nn.Flatten(), nn.LazyLinear(CLASSES))


NETS: dict[str, tuple[Callable[[], nn.Module], Shape, int]] = {
    "linear": (lambda: nn.Linear(5, CLASSES), (5,), 0),
    "no bias": (lambda: nn.Linear(5, CLASSES, bias=False), (5,), 0),
    "linear over many positions": (lambda: tail(nn.Linear(3, 2), nn.Tanh()), (7, 3), 0),
    "linear over few positions": (lambda: tail(nn.Linear(30, 20), nn.Tanh()), (2, 3, 30), 0),
    "conv1d": (lambda: tail(nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2), nn.Sigmoid()), (2, 9), 0),
    "conv1d groups": (lambda: tail(nn.Conv1d(4, 6, 2, groups=2)), (4, 6), 0),
    "conv2d": (lambda: tail(nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 0), bias=False)), (2, 5, 6), 0),
    "conv2d depthwise": (lambda: tail(nn.Conv2d(4, 8, 3, groups=4, padding=1)), (4, 5, 5), 0),
    "conv2d same": (lambda: tail(nn.Conv2d(1, 2, (2, 3), padding="same", dilation=(1, 2))), (1, 5, 6), 0),
    "conv2d circular": (lambda: tail(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")), (1, 5, 6), 0),
    "conv2d as a product": (lambda: tail(nn.Conv2d(40, 30, 3, stride=2)), (40, 5, 5), 0),
    "pooling": (
        lambda: tail(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(3, 20, 2), nn.ReLU()),
        (1, 9, 8),
        0,
    ),
    "embedding": (lambda: tail(nn.Embedding(5, 3)), (8,), 5),
    "embedding, padded": (lambda: tail(nn.Embedding(5, 3, padding_idx=-1)), (2, 4), 5),
    "group norm": (lambda: tail(nn.Conv1d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU()), (2, 8), 0),
    "layer norm": (lambda: tail(nn.Linear(4, 5), nn.LayerNorm((3, 5)), nn.GELU()), (3, 4), 0),
    "layer norm without bias": (lambda: tail(nn.Linear(4, 5), nn.LayerNorm(5, bias=False)), (3, 4), 0),
    "rms norm": (lambda: tail(nn.Linear(4, 5), nn.RMSNorm(5)), (3, 4), 0),
    "instance norm": (
        lambda: tail(nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3, affine=True), nn.LeakyReLU()),
        (2, 6, 6),
        0,
    ),
    "residual": (Residual, (2, 8, 8), 0),
    "shared": (Twice, (6,), 0),
    "tied": (Tied, (5,), CLASSES),
    "functions": (Functions, (2, 6), 0),
    "hidden": (Hidden, (5,), 0),
    "lstm": (lambda: Recurrent(nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), 8), (5, 3), 0),
    "gru": (lambda: Recurrent(nn.GRU(3, 4), 4), (5, 3), 0),
    "rnn": (lambda: Recurrent(nn.RNN(3, 4, nonlinearity="relu", bias=False, batch_first=True), 4), (5, 3), 0),
}


def made(module: nn.Module, shape: Shape, tokens: int = 0) -> Model:
    """Plain layers as they are; other code as a traced graph."""
    example = torch.zeros(8, *shape, dtype=torch.long) if tokens else random(8, *shape)
    if isinstance(module, nn.Sequential):
        module(example if tokens else example.float())
        return double(wrap("net", module, None))
    return double(from_module(module, shape, "net", example))


def agree(model: Model, shape: Shape, tokens: int, examples: int = 6) -> bool:
    """Whether both arrangements, with some examples clipped and some not, give what the definition gives."""
    vectors, x, y, mask = batch(model, shape, CLASSES, examples=examples, tokens=tokens)
    clips = torch.tensor([0.1, 1.0, 1e6], dtype=torch.float64)
    expected = reference(model, vectors, x, y, mask, clips)
    ragged = clipped_sums(model, vectors, x, y, mask, clips, physical_batch=7, strict=True)
    by_example = (t.transpose(0, 1).flatten(0, 1) for t in (x, y, mask))
    even = padded_sums(Recorder(model), vectors, *by_example, clips, 10)  # type: ignore[arg-type,call-arg]
    return all(torch.allclose(found, expected, rtol=1e-9, atol=1e-9) for found in (ragged, even))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", [name for name in NETS if name not in ("lstm", "gru", "rnn")])
def test_sums_equal_the_definition(name: str) -> None:
    build, shape, tokens = NETS[name]
    assert agree(made(build(), shape, tokens), shape, tokens)


@pytest.mark.parametrize("name", ["gru", "rnn", "lstm"])
def test_recurrent_layers_equal_a_gradient_at_a_time(name: str) -> None:
    """PyTorch cannot vectorise these over clients, so the definition is one backward pass an example."""
    build, shape, _ = NETS[name]
    model = made(build(), shape)
    vectors, x, y, mask = batch(model, shape, CLASSES)
    clips = torch.tensor([0.1, 1.0, 1e6], dtype=torch.float64)
    ours = clipped_sums(model, vectors, x, y, mask, clips, strict=True)
    for i, vector in enumerate(vectors):
        total = torch.zeros_like(vector)
        for one_x, one_y in zip(x[i][mask[i]], y[i][mask[i]], strict=True):
            at = vector.clone().requires_grad_()
            (g,) = torch.autograd.grad(functional.cross_entropy(model.logits(at, one_x[None]), one_y[None]), at)
            total += g * min(1.0, float(applied(clips[i]) / g.norm()))
        torch.testing.assert_close(ours[i], total, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_convolutions_of_any_geometry(data: st.DataObject) -> None:
    axes = data.draw(st.sampled_from([1, 2]))

    def sizes(low: int, high: int) -> Shape:
        return tuple(data.draw(st.integers(low, high)) for _ in range(axes))

    groups = data.draw(st.sampled_from([1, 1, 2, 3]))
    kernel, dilation = sizes(1, 3), sizes(1, 2)
    shape = (groups * data.draw(st.integers(1, 3)), *sizes(5, 8))
    kind: Any = nn.Conv1d if axes == 1 else nn.Conv2d
    layer = kind(shape[0], groups * data.draw(st.integers(1, 3)), kernel, sizes(1, 3), sizes(0, 2), dilation, groups)
    assert agree(made(tail(layer, nn.ReLU()), shape), shape, 0, examples=4)


def test_the_module_of_the_user_is_not_touched() -> None:
    module = tail(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2))
    model = made(module, (1, 6, 6))
    before = {name: (id(value), value.clone()) for name, value in module.named_parameters()}
    parts = [id(part) for part in module.modules()]
    vectors, x, y, mask = batch(model, (1, 6, 6), CLASSES)
    clipped_sums(model, vectors, x, y, mask, torch.ones(3).double())
    assert parts == [id(part) for part in module.modules()]
    for name, value in module.named_parameters():
        assert id(value) == before[name][0]
        assert torch.equal(value, before[name][1])


class Scaled(nn.Module):
    """A parameter of its own, used in arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(5, CLASSES), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.inner(x)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    module[2].bias.requires_grad_(False)
    return module


UNKNOWN = {
    "scale goes through": Scaled,
    "a layer is only partly trainable": frozen,
    "3.weight goes through conv3d": lambda: tail(
        nn.Linear(5, 4), nn.Tanh(), nn.Unflatten(1, (1, 1, 2, 2)), nn.Conv3d(1, 2, (1, 2, 2))
    ),
}


@pytest.mark.parametrize("reason", UNKNOWN)
def test_a_layer_without_a_rule_takes_the_slow_path_with_a_warning(reason: str) -> None:
    model = made(UNKNOWN[reason](), (5,))  # type: ignore[no-untyped-call]
    vectors, x, y, mask = batch(model, (5,), CLASSES)
    clips = torch.tensor([0.1, 1.0, 1e6], dtype=torch.float64)
    with pytest.warns(UserWarning, match=reason):
        sums = clipped_sums(model, vectors, x, y, mask, clips)
    torch.testing.assert_close(sums, reference(model, vectors, x, y, mask, clips), rtol=1e-9, atol=1e-9)
    with pytest.raises(HushError, match=f"model net: .*{reason}"):
        clipped_sums(model, vectors, x, y, mask, clips, strict=True)


def test_a_frozen_layer_needs_no_slow_path() -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    module[0].requires_grad_(False)
    assert agree(made(module, (5,)), (5,), 0)


def test_a_known_model_never_forms_the_gradients_of_a_linear_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(select, "vmap_sums", never)
    monkeypatch.setattr("hush.training.per_example.gradient_terms.OuterProductTerm.full", never)
    model = made(nn.Sequential(nn.Linear(5, 300), nn.ReLU(), nn.Linear(300, CLASSES)), (5,))
    vectors, x, y, mask = batch(model, (5,), CLASSES)
    assert clipped_sums(model, vectors, x, y, mask, torch.ones(3).double()).norm() > 0


def test_equal_rows_of_a_table_come_together_in_shapes_that_do_not_depend_on_them() -> None:
    """What a GPU computes inside a CUDA graph, against the sums of equal rows."""
    index = torch.tensor([[1, 4, 1, 1, 0], [3, 3, 3, 3, 3], [0, 1, 2, 3, 4]])
    d = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    term = layers.equal_rows(index, d, 6, skipped=0)
    exact = torch.zeros(3, 6, 7)
    for example in range(3):
        for place in range(5):
            if index[example, place] != 0:
                exact[example, index[example, place]] += d[example, place]
    torch.testing.assert_close(term.full().each, exact)
    torch.testing.assert_close(term.squares(True), exact.double().square().sum((1, 2)))
    broken = d.clone()
    broken[1, 2, 3] = float("nan")
    found = layers.equal_rows(index, broken, 6, None)
    assert found.squares(True).isfinite().tolist() == [True, False, True]
    assert found.cleared(torch.tensor([False, True, False])).full().each.isfinite().all()
