"""Models of Hugging Face, small and random, take the fast path, where their sums are those of vmap."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hush.models import from_module
from hush.training.per_example.vmap import vmap_sums
from hush.training.select import clipped_sums
from tests.support.nets import batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "num_labels": 3}
WORDS = {"vocab_size": 20, "num_labels": 3}
NETS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "bert": ("BertForSequenceClassification", {**SIZES, "vocab_size": 20, "max_position_embeddings": 12}, (6,)),
    "distilbert": (
        "DistilBertForSequenceClassification",
        {**WORDS, "max_position_embeddings": 12, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
        (6,),
    ),
    "gpt2": (
        "GPT2ForSequenceClassification",
        {**WORDS, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "pad_token_id": 0},
        (6,),
    ),
    "vit": ("ViTForImageClassification", {**SIZES, "image_size": 8, "patch_size": 4, "num_channels": 1}, (1, 8, 8)),
}


@pytest.mark.parametrize("name", NETS)
def test_sums_are_those_of_vmap_without_it(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    kind, settings, shape = NETS[name]
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    module = cls(cls.config_class(**settings)).eval()
    assert module.config._attn_implementation == "sdpa"
    words = 0 if name == "vit" else 20
    examples = torch.arange(8 * 6).view(8, 6) % 19 + 1 if words else torch.linspace(-1, 1, 8 * 64).view(8, 1, 8, 8)
    model = from_module(module, shape, name, examples)
    vectors, x, y, mask = batch(model, shape, 3, tokens=words)
    x = x if words else x.float()
    clips = torch.tensor([0.1, 1.0, 1e6], dtype=torch.float64)
    ours = clipped_sums(model, vectors, x, y, mask, clips, strict=True)
    expected = vmap_sums(model, vectors, x, y, mask, clips, 4096)
    assert float((ours - expected).norm() / expected.norm()) < 1e-4
