"""Adapters: what is trained, that nothing changes before training, attention, names, and memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.models import from_user
from hush.models.adapters import AdaptedAttention, AdaptedLinear, Adapters, head_of, lora
from hush.seeds import rng
from hush.training.per_example.vmap import vmap_sums
from hush.training.select import clipped_sums
from hush.types import HushError, InputPart, InputSpec

WORDS, LENGTH, WIDTH = 11, 6, 8
TOKENS = InputSpec("array", (InputPart("", (LENGTH,), "int64"),))


class Block(nn.Module):
    """Attention of one head by linear layers, and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x)[:, None] for layer in (self.query, self.key, self.value))
        return x + self.dropout(functional.scaled_dot_product_attention(q, k, v)[:, 0])


class Classifier(nn.Module):
    """Tokens, a block that is used twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.block = Block()
        self.again = self.block
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.again(self.block(self.words(x))).mean(1))
        return out


def classifier() -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Classifier()


def tokens(count: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(rng(seed, "tokens").integers(0, WORDS, (count, LENGTH)))


def random_updates(module: nn.Module) -> None:
    """Give every B numbers, as training would."""
    for name, value in module.named_parameters():
        if "lora_B" in name:
            value.data.copy_(torch.from_numpy(rng(1, name).normal(size=tuple(value.shape))) * 0.3)


def test_adapters_and_head_are_all_that_is_trained_and_sent() -> None:
    module = classifier()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = from_user(module, (LENGTH,), 3, "own", TOKENS, adapters=Adapters(rank=2))
    # Three layers with A and B of rank 2, one adapter though the block is used twice, and the head.
    assert model.layout.size == 3 * (2 * WIDTH + WIDTH * 2) + 3 * WIDTH + 3 == model.start.numel()
    assert all("lora_" in name or name.startswith("head.") for name in model.layout.names)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(value.requires_grad for value in module.parameters())
    half = from_user(module, (LENGTH,), 3, "own", TOKENS, adapters=Adapters(kind="ffa-lora", rank=2))
    assert half.layout.size == 3 * WIDTH * 2 + 3 * WIDTH + 3
    assert not any("lora_A" in name for name in half.layout.names)
    x = tokens(5)
    for each in (model, half):
        assert torch.allclose(each.logits(each.start, x.float()), module.eval()(x), atol=1e-6)


def test_frozen_weights_are_in_memory_once() -> None:
    model = from_user(classifier(), (LENGTH,), 3, "own", TOKENS, adapters=Adapters(rank=2))
    assert model.training is not None and model.source is not None
    frozen = [name for name, _ in model.source.named_parameters() if name not in model.layout.names]
    assert frozen and len(frozen) < len(list(model.source.parameters()))
    for name in frozen:
        # The very same object, so that moving it to a GPU moves it once.
        (one,) = {id(part.get_parameter(name)) for part in (model.module, model.training, model.source)}
        assert one == id(model.source.get_parameter(name))


def test_a_is_drawn_from_the_seed_and_b_is_zero() -> None:
    first, again, other = (lora(classifier(), rank=2, seed=seed) for seed in (0, 0, 1))
    parameters: list[Mapping[str, Tensor]] = [dict(each.named_parameters()) for each in (first, again, other)]
    for name, value in parameters[0].items():
        assert torch.equal(value, parameters[1][name])
        if "lora_A" in name:
            assert not torch.equal(value, parameters[2][name])
            assert 0 < float(value.detach().abs().max()) <= WIDTH**-0.5
        if "lora_B" in name:
            assert not value.any()


def test_an_update_has_its_factor() -> None:
    plain = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    module = lora(plain, rank=2, alpha=6.0)
    first = module[0]  # type: ignore[index]
    assert isinstance(first, AdaptedLinear) and type(module[2]) is nn.Linear  # type: ignore[index]
    random_updates(module)
    weight = plain[0].weight + 3.0 * first.adapter.lora_B.weight @ first.adapter.lora_A.weight
    x = torch.from_numpy(rng(0, "x").normal(size=(3, 4))).float()
    assert torch.allclose(first(x), functional.linear(x, weight, first.bias), atol=1e-5)
    assert torch.allclose(first.weight, weight, atol=1e-6)


ATTENTION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "batch second": ({"batch_first": False}, {}),
    "no bias": ({"bias": False}, {}),
    "other widths": ({"kdim": 6, "vdim": 10}, {}),
    "no weights": ({}, {"need_weights": False}),
    "weights of each head": ({}, {"average_attn_weights": False}),
    "padding": ({}, {"key_padding_mask": "padding"}),
    "mask of booleans": ({}, {"attn_mask": "causal"}),
    "mask of numbers": ({}, {"attn_mask": "numbers", "need_weights": False}),
    "mask for each head": ({}, {"attn_mask": "each", "key_padding_mask": "padding"}),
}


@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize("trained", [False, True], ids=["before", "after"])
def test_adapted_attention_is_attention_with_other_weights(case: str, trained: bool) -> None:
    settings, given = ATTENTION[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = nn.MultiheadAttention(8, 2, **{"batch_first": True, **settings}).eval()
    adapted = AdaptedAttention(base, 2, 0.5).eval()
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            value.data.copy_(torch.from_numpy(rng(0, name).normal(size=tuple(value.shape))) * (trained or "_A" in name))
    draw = rng(0, "inputs")
    rows, long, keys = 3, 4, 5
    q, k, v = (
        torch.from_numpy(draw.normal(size=(rows, steps, width))).float()
        for steps, width in ((long, 8), (keys, base.kdim), (keys, base.vdim))
    )
    padding = torch.zeros(rows, keys, dtype=torch.bool)
    padding[1, 3:] = True
    masks = {
        "padding": padding,
        "causal": torch.ones(long, keys, dtype=torch.bool).triu(1),
        "numbers": torch.from_numpy(draw.normal(size=(long, keys))).float(),
        "each": torch.from_numpy(draw.normal(size=(2 * rows, long, keys)) > 1),
    }
    asked = {key: masks.get(value, value) if isinstance(value, str) else value for key, value in given.items()}
    if not base.batch_first:
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    with torch.no_grad():
        found, weights = adapted(q, k, v, **asked)
        # The same attention with the updates added to its weights.
        if base.in_proj_weight is not None:
            base.in_proj_weight.add_(torch.cat([each.weight for each in (adapted.query, adapted.key, adapted.value)]))
        else:
            for name in ("query", "key", "value"):
                getattr(base, f"{name[0]}_proj_weight").add_(getattr(adapted, name).weight)
        base.out_proj.weight.add_(adapted.output.weight)
        expected, wanted = base(q, k, v, **asked)
    assert torch.allclose(found, expected, atol=1e-5)
    assert (weights is None) == (wanted is None)
    assert weights is None or torch.allclose(weights, wanted, atol=1e-5)


def test_a_transformer_of_pytorch_computes_with_its_updates_in_evaluation_too() -> None:
    """PyTorch's fused kernel for inference takes weights, not layers, and would leave the updates out."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
        encoder = nn.TransformerEncoder(layer, 1)
        head = nn.Linear(8, 2)
    x = torch.from_numpy(rng(0, "x").normal(size=(3, 5, 8))).float()
    padding = torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2])
    for targets in (None, ["linear1"], ["self_attn"]):
        module = lora(nn.ModuleDict({"encoder": encoder, "head": head}), rank=2, targets=targets)
        random_updates(module)
        inner: Any = module["encoder"]  # type: ignore[index]
        with torch.no_grad():
            trained, evaluated = (inner.train(mode)(x, src_key_padding_mask=padding) for mode in (True, False))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of PyTorch's nested tensors, which the frozen one uses
                frozen = encoder.eval()(x, src_key_padding_mask=padding)
        real = ~padding
        assert torch.allclose(trained[real], evaluated[real], atol=1e-5)
        assert not torch.allclose(evaluated[real], frozen[real], atol=1e-2)


def test_clipped_sums_of_adapters_are_those_of_gradients_that_are_formed() -> None:
    model = from_user(classifier().eval(), (LENGTH,), 3, "own", TOKENS, adapters=Adapters(rank=2))
    vectors = model.start + 0.1 * torch.from_numpy(rng(0, "moved").normal(size=(2, model.layout.size))).float()
    x = tokens(8).float().view(2, 4, LENGTH)
    y = torch.tensor([[0, 1, 2, 0], [1, 1, 2, 2]])
    mask, clips = torch.ones(2, 4, dtype=torch.bool), torch.tensor([0.5, 1.0])
    fast = clipped_sums(model, vectors, x, y, mask, clips, strict=True)  # strict: no slow path
    assert torch.allclose(fast, vmap_sums(model, vectors, x, y, mask, clips, 64), atol=1e-5)
    assert fast.shape == (2, model.layout.size) and bool((fast != 0).any(0).all())


def test_layers_are_named_by_the_ends_of_their_paths() -> None:
    module = lora(classifier(), targets=["query", "block.value"], head=["key"])
    trained = [name for name, value in module.named_parameters() if value.requires_grad]
    layers = {name.split(".adapter")[0].removesuffix(".weight").removesuffix(".bias") for name in trained}
    assert layers == {"block.query", "block.value", "block.key"}
    assert head_of(classifier()) == ["head"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": ["wolf"]}, r"model.targets: no layer is named 'wolf'; accepted: names of layers, .* of words"),
        ({"head": ["wolf"]}, "model.head: no layer is named 'wolf'"),
        ({"targets": ["words"]}, "model.targets: words is a Embedding; accepted: linear layers and nn.Multihead"),
        ({"targets": "query"}, "model.targets: found 'query'; accepted: a list of names"),
        ({"targets": ["head"]}, "has no linear layer or attention outside its head"),
        ({"rank": 0}, "model.rank: found 0; accepted: an integer of at least 1"),
        ({"alpha": float("nan")}, "model.alpha: found nan; accepted: a number above 0"),
        ({"kind": "prefix"}, "model.adapters: found 'prefix'; accepted: lora, ffa-lora"),
    ],
)
def test_what_cannot_be_adapted_is_said_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HushError, match=message) as caught:
        lora(classifier(), **given)
    assert "\n" not in str(caught.value)


def test_modules_without_layers_to_adapt_are_refused() -> None:
    with pytest.raises(HushError, match=r"Linear has no linear layer or attention outside its head"):
        lora(nn.Linear(3, 2))
    with pytest.raises(HushError, match=r"model.head: Sequential has no linear layer that could be its head"):
        lora(nn.Sequential(nn.Conv2d(1, 2, 3)))
    with pytest.raises(HushError, match="1 uses add_bias_kv or add_zero_attn"):
        lora(nn.Sequential(nn.Identity(), nn.MultiheadAttention(4, 2, add_zero_attn=True), nn.Linear(4, 2)))


@pytest.mark.slow
def test_models_of_hugging_face_are_adapted_by_peft() -> None:
    tf = pytest.importorskip("transformers", reason="needs the extra hf")
    pytest.importorskip("peft", reason="needs the extra hf")
    bert = tf.DistilBertForSequenceClassification(
        tf.DistilBertConfig(vocab_size=WORDS, dim=8, n_layers=1, n_heads=2, hidden_dim=12, max_position_embeddings=8)
    )
    gpt = tf.GPT2ForSequenceClassification(
        tf.GPT2Config(vocab_size=WORDS, n_embd=8, n_layer=1, n_head=2, n_positions=8, pad_token_id=0, num_labels=3)
    )
    for module, head in ((bert, ["pre_classifier", "classifier"]), (gpt, ["score"])):
        assert head_of(module) == head
        adapted = lora(module.eval(), rank=2)
        trained = [name for name, value in adapted.named_parameters() if value.requires_grad]
        assert all("lora_" in name or name.split(".")[0] in head for name in trained)
        assert all(any(name.startswith(f"{part}.") for name in trained) for part in head)
        x = tokens(3)
        assert torch.allclose(adapted(x).logits, module(x).logits, atol=1e-6)
        random_updates(adapted)
        assert not torch.allclose(adapted(x).logits, module(x).logits, atol=1e-4)
        same = dict(lora(module, rank=2).named_parameters())
        assert all(torch.equal(v, same[k]) for k, v in adapted.named_parameters() if "lora_A" in k)
