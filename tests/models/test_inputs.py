"""Modules get tokens as integers, masks as booleans, and several inputs as they take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from hush.data import clients
from hush.data.inputs import pack_inputs
from hush.models import build_model, from_user
from hush.models.inputs import unpack
from hush.seeds import rng
from hush.types import HushError

DRAW = rng(0, "inputs")
TOKENS = DRAW.integers(0, 30, (120, 6))
MASK = DRAW.random((120, 6)) < 0.7
MASK[:, 0] = True
LABELS = (TOKENS[:, 0] > 14).astype(int)
RUN = {"rounds": 1, "local": {"batch_size": 8}, "recipe": {"name": "dp-fedavg"}}


class Masked(nn.Module):
    """Takes its inputs by position or keyword, as a dict, or as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(30, 4), nn.Linear(4, 2)
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            self.embed.reset_parameters()
            self.head.reset_parameters()

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        if tokens.dtype != torch.int64 or mask.dtype != torch.bool:
            raise TypeError("other types")
        weights = mask.unsqueeze(-1).to(torch.float32)
        out: Tensor = self.head((self.embed(tokens) * weights).sum(1) / weights.sum(1))
        return out


class MaskedDict(Masked):
    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(batch["tokens"], batch["mask"])


class MaskedTuple(Masked):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(*pair)


class Tokens(Masked):
    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(tokens, tokens > 3)


WAYS: dict[str, tuple[type[Masked], Any]] = {
    "keywords": (Masked, {"tokens": TOKENS, "mask": MASK}),
    "dict": (MaskedDict, {"tokens": TOKENS, "mask": MASK}),
    "positions": (Masked, (TOKENS, MASK)),
    "tuple": (MaskedTuple, (TOKENS, MASK)),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_module_gets_what_was_given(way: str) -> None:
    make, given = WAYS[way]
    x, spec = pack_inputs(given, "data")
    assert spec is not None
    tokens, mask = unpack(torch.from_numpy(x), spec)
    assert np.array_equal(tokens.numpy(), TOKENS) and np.array_equal(mask.numpy(), MASK)
    module = make()
    model = from_user(module, tuple(x.shape[1:]), 2, "own", spec)
    assert model.layout.names == tuple(name for name, _ in Masked().named_parameters())
    assert model.module.order == "first"  # proved for whole batches, unpacking included
    expected = Masked()(torch.from_numpy(TOKENS), torch.from_numpy(MASK))
    assert torch.equal(model.logits(model.start, torch.from_numpy(x)), expected)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), Masked().parameters(), strict=True))


def test_all_ways_train_the_same_model() -> None:
    losses = {
        hush.simulate(RUN, dataset=clients(given, LABELS, clients=3, classes=2), model=make()).loss
        for make, given in WAYS.values()
    }
    assert len(losses) == 1


def test_one_array_of_tokens() -> None:
    data = clients(TOKENS, LABELS, clients=3, classes=2)
    assert data.dataset.x.shape == (120, 6) and data.dataset.inputs is not None
    assert hush.simulate(RUN, dataset=data, model=Tokens()).trained
    # A model by name takes the same numbers as real ones.
    named, real = (hush.simulate(RUN, dataset=clients(x, LABELS, clients=3, classes=2)) for x in (TOKENS, TOKENS * 1.0))
    assert named.accuracy_per_client == real.accuracy_per_client and named.loss == real.loss


def test_several_ranks_and_types_come_back() -> None:
    given: dict[str, Any] = {
        "image": DRAW.normal(size=(5, 2, 3, 4)).astype(np.float32),
        "age": np.arange(5),
        "flag": np.eye(5) > 0,
    }
    x, spec = pack_inputs(given, "data")
    assert spec is not None and x.shape == (5, 24 + 1 + 5)
    for found, value in zip(unpack(torch.from_numpy(x), spec), given.values(), strict=True):
        assert np.array_equal(found.numpy(), value) and found.numpy().dtype == value.dtype


def test_mixing_modules_are_refused_behind_the_unpacking() -> None:
    class Mixes(Masked):
        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            out = super().forward(tokens, mask)
            return out - out.mean(0)

    x, spec = pack_inputs((TOKENS, MASK), "data")
    with pytest.raises(HushError, match="example"):
        from_user(Mixes(), tuple(x.shape[1:]), 2, "own", spec)


def test_a_model_by_name_takes_one_array() -> None:
    from hush.config import ModelConfig

    _, spec = pack_inputs((TOKENS, MASK), "data")
    with pytest.raises(HushError, match="takes one array, and the data has 2 inputs"):
        build_model(ModelConfig(name="logreg"), (12,), 2, 0, spec)


def test_unit_norm_is_for_real_numbers() -> None:
    with pytest.raises(HushError, match=r"data.rows: unit-norm is for one array of real numbers"):
        hush.simulate(
            {**RUN, "data": {"rows": "unit-norm"}},
            dataset=clients(TOKENS, LABELS, clients=3, classes=2),
            model=Tokens(),
        )
