"""Steps of the server: models in training and models to release."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hush.engines.server_rng import server_rng
from hush.recipes.slots.step import Add, Ema, Momentum, Tail


def walk(step: Add | Momentum | Ema | Tail, rounds: int) -> tuple[Tensor, Tensor]:
    models = torch.zeros(1, 1)
    state = step.start(models)
    for _ in range(rounds):
        models, state = step.step(models, torch.ones(1, 1), state, server_rng(0, False)(1))
    return models, step.released(models, state)


def test_steps() -> None:
    assert walk(Add(lr=0.5), 4)[1].item() == 2.0
    assert walk(Momentum(lr=1.0, beta=0.5), 3)[1].item() == pytest.approx(1 + 1.5 + 1.75)
    trained, released = walk(Ema(decay=0.5), 3)
    assert trained.item() == 3.0
    assert released.item() == pytest.approx((0.125 * 1 + 0.25 * 2 + 0.5 * 3) / 0.875)
    trained, released = walk(Tail(start_round=3), 5)
    assert (trained.item(), released.item()) == (5.0, 4.0)
    assert walk(Tail(start_round=9), 5)[1].item() == 5.0
    assert walk(Ema(decay=0.5, inner=Momentum(beta=0.5)), 1)[1].item() == 1.0
