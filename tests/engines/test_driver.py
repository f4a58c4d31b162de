"""The driver's evaluation: many rows, a few at a time, give the scores and the loss of all rows at once."""

from __future__ import annotations

import pytest
import torch

from hush.bench.workloads import w1
from hush.engines.driver import evaluate, rows_at_once


@pytest.mark.slow
def test_rows_are_evaluated_a_few_at_a_time() -> None:
    work = w1(clients=4, samples=400)
    sizes: list[int] = []
    vectors = torch.stack([work.model.start, work.model.start.flip(0)])
    # Clients own different rows, and more of them than go through the network at a time.
    test, placed = [range(0, 300), range(300, 1001), range(1001, 1600)], (0, 1, 0)
    handle = work.model.module.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    try:
        scores, loss = evaluate(work.model, vectors, placed, work.x, work.y, test)
    finally:
        handle.remove()
    assert max(sizes) == rows_at_once(work.model, work.x) == 512
    assert sum(sizes) == 1600
    losses, expected = torch.empty(0), []
    for own, home in zip(test, placed, strict=True):
        outputs, truth = work.model.logits(vectors[home], work.x[own.start : own.stop]), work.y[own.start : own.stop]
        losses = torch.cat([losses, torch.nn.functional.cross_entropy(outputs, truth, reduction="none")])
        expected.append(float((outputs.argmax(1) == truth).double().mean()))
    assert scores == pytest.approx(expected)
    assert loss == pytest.approx(float(losses.mean()), rel=1e-5)
