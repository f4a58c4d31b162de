"""Kinds of modules, inputs and tasks, one for each line of the tables in docs/models.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence

from hush.seeds import rng
from hush.types import TargetKind

ROWS, WORDS, LENGTH = 240, 20, 6
Inputs = Callable[[np.ndarray], Any]  # from the labels


@dataclass(frozen=True)
class Kind:
    """How to make the module, and its inputs for these labels; `refused` is what the error says, if it is one."""

    module: Callable[[], nn.Module]
    inputs: Inputs
    refused: str = ""


def labels() -> np.ndarray:
    return rng(0, "labels").integers(0, 2, ROWS)


def hidden() -> np.ndarray:
    """What the targets of every task follow from, and inputs show with noise: 0, a half or 1."""
    return rng(0, "hidden").integers(0, 3, ROWS) / 2


@dataclass(frozen=True)
class Task:
    """The targets of a task from `hidden`, and how many numbers the module returns."""

    targets: Callable[[np.ndarray], np.ndarray]
    outputs: int
    kind: TargetKind


TASKS: dict[str, Task] = {
    "binary, two logits": Task(lambda u: (u > 0.25).astype(int), 2, "classes"),
    "binary, one logit": Task(lambda u: (u > 0.25).astype(int), 1, "classes"),
    "multiclass": Task(lambda u: (2 * u).astype(int), 3, "classes"),
    "multilabel": Task(lambda u: np.stack([u > 0.25, u > 0.75], 1).astype(int), 2, "multilabel"),
    "regression": Task(lambda u: 2 * u - 1, 1, "continuous"),
}


def table_rows(u: np.ndarray) -> dict[str, list[Any]]:
    """Columns with texts and blanks."""
    draw = rng(0, "table")
    return {
        "amount": [
            None if blank else float(200 * value) for value, blank in zip(u, draw.random(ROWS) < 0.1, strict=True)
        ],
        "home": [
            None if blank else ("own" if value > 0.5 else "rent")
            for value, blank in zip(u, draw.random(ROWS) < 0.1, strict=True)
        ],
        "year": draw.integers(1990, 2020, ROWS).tolist(),
    }


SCHEMA: dict[str, Any] = {
    "scale": "signed",
    "encoding": "one-hot",
    "columns": {
        "amount": {"low": 0, "high": 200, "missing": "indicator"},
        "home": {"categories": ["own", "rent"], "missing": "indicator"},
        "year": {"low": 1990, "high": 2020},
    },
}


def numbers(y: np.ndarray, shape: tuple[int, ...] = (8,)) -> np.ndarray:
    drawn = rng(0, "numbers").normal(size=(ROWS, *shape))
    drawn.reshape(ROWS, -1)[:, :4] += 1.5 * (2 * y[:, None] - 1)
    return drawn


def images(y: np.ndarray) -> np.ndarray:
    drawn = rng(0, "images").normal(size=(ROWS, 1, 8, 8))
    drawn[:, :, :, :4] += 0.8 * (2 * y - 1)[:, None, None, None]
    return drawn.astype(np.float32)


def steps(y: np.ndarray) -> np.ndarray:
    return rng(0, "steps").normal(size=(ROWS, LENGTH, 3)) + 0.8 * (2 * y - 1)[:, None, None]


def tokens(y: np.ndarray) -> np.ndarray:
    """Words of which more come from the upper half of the vocabulary the larger y is; 0 pads."""
    half = rng(0, "half").random((ROWS, LENGTH)) < 0.1 + 0.8 * y[:, None]
    words = 2 + half * ((WORDS - 2) // 2) + rng(0, "words").integers(0, (WORDS - 2) // 2, (ROWS, LENGTH))
    return np.where(mask_values(), words, 0)


def mask_values() -> np.ndarray:
    return np.arange(LENGTH) < rng(0, "lengths").integers(3, LENGTH + 1, ROWS)[:, None]


def masked(y: np.ndarray) -> dict[str, np.ndarray]:
    return {"tokens": tokens(y), "mask": mask_values()}


def attended(y: np.ndarray) -> dict[str, np.ndarray]:
    return {"input_ids": tokens(y), "attention_mask": mask_values().astype(np.int64)}


class Returning(nn.Module):
    """An MLP with outputs of another form."""

    def __init__(self, way: Callable[[Tensor], Any], *inside: nn.Module) -> None:
        super().__init__()
        self.first, self.inside, self.last, self.way = nn.Linear(8, 16), nn.Sequential(*inside), nn.Linear(16, 2), way

    def forward(self, x: Tensor) -> Any:
        return self.way(self.last(self.inside(torch.tanh(self.first(x)))))


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, width: int, words: bool = False, packed: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 3) if words else nn.Identity()
        self.layer, self.head, self.packed = layer, nn.Linear(width, 2), packed

    def forward(self, x: Tensor) -> Tensor:
        found = self.table(x)
        if self.packed:
            found = pack_padded_sequence(
                found, (x[..., 0] != 0).sum(1).clamp(min=1), batch_first=True, enforce_sorted=False
            )
            return self.head(self.layer(found)[1][0][-1])
        return self.head(self.layer(found)[0].mean(1))


class Encoder(nn.Module):
    """A transformer over words with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.table, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 2)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        hidden = self.encoder(self.table(tokens), src_key_padding_mask=~mask)
        kept = mask.unsqueeze(-1).to(hidden.dtype)
        return self.head((hidden * kept).sum(1) / kept.sum(1))


class Tied(nn.Module):
    """Scores of the words by the table that they are looked up in; the first two are the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.score = nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Linear(8, WORDS, bias=False)
        self.score.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.score(torch.tanh(self.middle(self.middle(self.table(x).mean(1)))))


class Pair(nn.Module):
    """An image and some numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, stride=2), nn.Linear(4 * 9 + 8, 2)

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        return self.head(torch.cat([self.conv(image).relu().flatten(1), row], 1))


class Constants(nn.Module):
    """Positions and weights in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.where, self.head = nn.Embedding(WORDS, 8), nn.Embedding(LENGTH, 8), nn.Linear(8, 2)
        self.register_buffer("position_ids", torch.arange(LENGTH))
        self.register_buffer("weights", torch.linspace(0.5, 1.5, LENGTH)[:, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(((self.table(x) + self.where(self.position_ids)) * self.weights).mean(1))


def _mlp(*inside: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *inside, nn.Linear(16, 2))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 2)
    )


def _frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 2))
    module[0].requires_grad_(False)
    return module


def _fixed() -> nn.Module:
    return _mlp(nn.BatchNorm1d(16).eval())


class Noisy(nn.Module):
    """Gaussian noise on its inputs in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.randn_like(x) if self.training else x)


class Always(Noisy):
    """Dropout in evaluation, too."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(functional.dropout(x, 0.1))


def _bert() -> nn.Module:
    tf = pytest.importorskip("transformers", reason="needs the extra hf")
    return tf.DistilBertForSequenceClassification(
        tf.DistilBertConfig(
            vocab_size=WORDS, num_labels=2, dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=LENGTH
        )
    )


def _gpt() -> nn.Module:
    tf = pytest.importorskip("transformers", reason="needs the extra hf")
    return tf.GPT2ForSequenceClassification(
        tf.GPT2Config(
            vocab_size=WORDS, num_labels=2, n_embd=16, n_layer=1, n_head=2, n_positions=LENGTH, pad_token_id=0,
            bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


KINDS: dict[str, Kind] = {
    "MLP with `Dropout`": Kind(lambda: _mlp(nn.Dropout(0.2)), numbers),
    "MLP in float64": Kind(lambda: _mlp().double(), numbers),
    "MLP of lazy layers": Kind(lambda: nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(2)), numbers),
    "MLP that returns a tuple": Kind(lambda: Returning(lambda out: (out, out.sum())), numbers),
    "MLP that returns a dict": Kind(lambda: Returning(lambda out: {"logits": out, "twice": 2 * out}), numbers),
    "MLP that returns an object with `.logits`": Kind(lambda: Returning(lambda o: SimpleNamespace(logits=o)), numbers),
    "MLP that returns a dict of two tensors": Kind(
        lambda: Returning(lambda out: {"a": out, "b": out}), numbers, "keys a, b"
    ),
    "CNN with `Dropout2d`": Kind(_cnn, images),
    "LSTM, `batch_first`": Kind(lambda: Recurrent(nn.LSTM(3, 8, batch_first=True), 8), steps),
    "LSTM over the wrong axis": Kind(
        lambda: Recurrent(nn.LSTM(3, 8), 8), steps, "single examples differ from those for a batch"
    ),
    "GRU with dropout between its layers": Kind(
        lambda: Recurrent(nn.GRU(3, 6, 2, batch_first=True, dropout=0.1), 6, words=True), tokens
    ),
    "LSTM with `pack_padded_sequence`": Kind(
        lambda: Recurrent(nn.LSTM(3, 8, batch_first=True), 8, packed=True), steps, "padded sequences, with a mask"
    ),
    "`TransformerEncoder` with dropout": Kind(Encoder, masked),
    "module of several inputs": Kind(Pair, lambda y: (images(y), numbers(y))),
    "tied weights, one layer twice": Kind(Tied, tokens),
    "frozen parts": Kind(_frozen, numbers),
    "constant buffers": Kind(Constants, tokens),
    "`BatchNorm` with fixed statistics": Kind(_fixed, numbers),
    "`BatchNorm` in training": Kind(lambda: _mlp(nn.BatchNorm1d(16)), numbers, "mixes the examples of a batch"),
    "spectral norm in training": Kind(
        lambda: _mlp(parametrizations.spectral_norm(nn.Linear(16, 16))), numbers, "keeps state between calls"
    ),
    "Gaussian noise": Kind(Noisy, numbers, "uses random numbers; accepted: dropout"),
    "dropout in evaluation, too": Kind(Always, numbers, "random numbers in evaluation mode"),
    "Hugging Face DistilBERT classifier": Kind(_bert, attended),
    "Hugging Face GPT-2 classifier": Kind(_gpt, attended),
}


class First(nn.Module):
    """The first outputs of another module."""

    def __init__(self, module: nn.Module, outputs: int) -> None:
        super().__init__()
        self.module, self.outputs = module, outputs

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.module(x)
        return found[:, : self.outputs]


def with_outputs(module: nn.Module, outputs: int) -> nn.Module:
    """The module with so many outputs, in place of two."""
    if isinstance(module, Tied):
        return First(module, outputs)
    name, head = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.Linear) and m.out_features == 2][-1]
    place, _, last = name.rpartition(".")
    setattr(module.get_submodule(place), last, nn.Linear(head.in_features, outputs, bias=head.bias is not None))
    return module


BY_TASK = {
    "MLP": KINDS["MLP with `Dropout`"],
    "CNN": KINDS["CNN with `Dropout2d`"],
    "LSTM": KINDS["LSTM, `batch_first`"],
    "GRU": Kind(lambda: Recurrent(nn.GRU(3, 6, batch_first=True), 6, words=True), tokens),
    "`TransformerEncoder` with dropout": KINDS["`TransformerEncoder` with dropout"],
    "tied weights": KINDS["tied weights, one layer twice"],
    "frozen parts": KINDS["frozen parts"],
    "several inputs": KINDS["module of several inputs"],
    "Hugging Face classifier": KINDS["Hugging Face DistilBERT classifier"],
    "MLP on a table": Kind(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)), table_rows),
}
