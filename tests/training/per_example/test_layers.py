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


class Raw(nn.Module):
    """Parameters in arithmetic: positions, a class token, scales, gates, a learned query."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 3))
        self.positions = nn.Parameter(torch.randn(6, 3))
        self.scale, self.gate = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(()))
        self.query, self.power = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.rand(3))
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions[: x.shape[1] + 1]
        x = torch.where(x > self.gate, torch.tanh(x * self.scale), torch.sigmoid(self.gate) * x)
        x = x.abs() ** (1 + self.power) + self.positions.mean(0) * torch.softmax(self.scale, 0)
        weights = torch.softmax(torch.matmul(self.query, x.transpose(1, 2)), -1)
        return self.out((weights @ x).flatten(1))


class Products(nn.Module):
    """Matrices by einsum, matmul, bmm and addmm, on both sides and over heads; low rank; one beside its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.right, self.left = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(4, 4))
        self.heads, self.shift = nn.Parameter(torch.randn(2, 5, 3)), nn.Parameter(torch.randn(3))
        self.a, self.b = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.left @ (x @ self.right))
        x = torch.einsum("btd,hdk->bthk", x, self.heads).sum(2) + x @ self.right.t()
        x = torch.addmm(self.shift, x.reshape(-1, 3), self.right @ self.heads[0]).view(-1, 4, 3)
        x = torch.bmm(x, self.right[:, :3].expand(x.shape[0], 3, 3))
        return torch.einsum("bd,dr->br", x.mean(1), self.a) @ self.b


class Attention(nn.Module):
    """Attention of every kind: packed, to other inputs, of other sizes, and by the function."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(4, 2, batch_first=batch_first, add_bias_kv=True)
        self.cross = nn.MultiheadAttention(4, 2, batch_first=batch_first, bias=False)
        self.other = nn.MultiheadAttention(4, 1, kdim=3, vdim=3, batch_first=batch_first)
        self.project, self.out = nn.Linear(4, 3), nn.Linear(3, CLASSES)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
        y = x + self.first(x, x, x, attn_mask=mask, need_weights=False)[0]
        y = y + self.cross(y, x, x)[0]
        z = self.project(y)
        y = y + self.other(y, z, z)[0]
        y = y if self.batch_first else y.transpose(0, 1)
        return self.out(functional.scaled_dot_product_attention(y, y, self.project(y)).mean(1))


class Encoder(nn.Module):
    def __init__(self, batch_first: bool, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=batch_first, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4), enable_nested_tensor=False)
        self.positions, self.out = nn.Parameter(torch.randn(5, 1, 4)), nn.Linear(4, CLASSES)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions[:, 0]
        x = self.encoder(x if self.batch_first else x.transpose(0, 1))
        return self.out(x.amax(1 if self.batch_first else 0))


class Decoder(nn.Module):
    """Learned queries that attend to the examples."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True)
        self.decoder, self.queries = nn.TransformerDecoder(layer, 1), nn.Parameter(torch.randn(3, 4))
        self.out = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.decoder(self.queries.repeat(x.shape[0], 1, 1), x).flatten(1))


class Language(nn.Module):
    """Tokens and positions by table, weights tied to the output, a table of tokens that repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(6, 4, padding_idx=0), nn.Embedding(8, 4)
        self.bag = nn.EmbeddingBag(6, 4, mode="sum")
        self.mean = nn.EmbeddingBag(6, 4, mode="mean", padding_idx=1)
        self.register_buffer("numbers", torch.arange(8)[None])

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.words(x) + self.places(self.get_buffer("numbers")[:, : x.shape[1]]))
        hidden = hidden.mean(1) + self.bag(x) * self.mean(x)
        return (hidden @ self.words.weight.t())[:, :CLASSES]


class Several(nn.Module):
    """PReLU, Bilinear, weight normalisation, layers of which a part is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(5, 4), nn.PReLU(4)
        self.pair = nn.Bilinear(4, 5, 3)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, CLASSES))
        self.norm, self.conv = nn.LayerNorm(3), nn.Conv1d(1, 2, 3)
        self.first.bias.requires_grad_(False)
        self.norm.weight.requires_grad_(False)
        self.conv.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.conv(x[:, None]).mean(1)
        return self.normed(self.norm(self.pair(self.act(self.first(x)), x) + seen))


class Volumes(nn.Module):
    """Convolutions by function whose kernels are computed, and time before batch."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.wide = nn.Parameter(torch.randn(2, 3, 3)), nn.Conv1d(3, 4, 2)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv1d(x, self.kernel.transpose(0, 1) * 0.5, padding=1)
        return self.out(self.wide(torch.tanh(x)).mean(2))


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
    "conv3d": (lambda: tail(nn.Conv3d(2, 3, (2, 1, 2), stride=(1, 2, 1), padding=(1, 0, 0))), (2, 3, 4, 3), 0),
    "conv3d groups": (lambda: tail(nn.Conv3d(4, 4, 2, groups=2, bias=False), nn.Tanh()), (4, 3, 3, 3), 0),
    "transposed 1d": (
        lambda: tail(nn.ConvTranspose1d(4, 6, 3, 2, 1, output_padding=1, groups=2, dilation=2), nn.Tanh()),
        (4, 5),
        0,
    ),
    "transposed 2d": (lambda: tail(nn.ConvTranspose2d(2, 3, (2, 3), 2, (0, 1)), nn.Tanh()), (2, 4, 3), 0),
    "transposed 2d as a product": (lambda: tail(nn.ConvTranspose2d(40, 30, 3, bias=False), nn.Tanh()), (40, 2, 2), 0),
    "transposed 3d": (lambda: tail(nn.ConvTranspose3d(2, 2, 2, bias=False), nn.Tanh()), (2, 2, 2, 3), 0),
    "raw parameters": (Raw, (5, 3), 0),
    "products": (Products, (4, 3), 0),
    "attention": (lambda: Attention(False), (5, 4), 0),
    "attention, batch first": (lambda: Attention(True), (5, 4), 0),
    "encoder": (lambda: Encoder(False, False), (5, 4), 0),
    "encoder, batch first": (lambda: Encoder(True, True), (5, 4), 0),
    "decoder": (Decoder, (5, 4), 0),
    "language": (Language, (7,), 6),
    "several": (Several, (5,), 0),
    "volumes": (Volumes, (2, 7), 0),
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


class Waves(nn.Module):
    """An operation of which it is not known that it keeps examples apart."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(self.inner(x)).real


class Gate(nn.Module):
    """A parameter in arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


UNKNOWN = {
    "only single examples: aten.fft_rfft": Waves,
    "1.scale goes through mul": lambda: tail(nn.Linear(5, 4), Gate()),
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


def test_the_slow_path_is_warned_of_once_for_a_model() -> None:
    model = made(UNKNOWN["1.scale goes through mul"](), (5,))  # type: ignore[no-untyped-call]
    args = batch(model, (5,), CLASSES)
    with pytest.warns(UserWarning, match="slow path") as seen:
        for _ in range(3):
            clipped_sums(model, *args, torch.ones(3).double())
    assert len(seen) == 1


def test_a_layer_of_which_a_part_is_frozen_needs_no_slow_path() -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    module[2].bias.requires_grad_(False)
    assert agree(made(module, (5,)), (5,), 0)


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
