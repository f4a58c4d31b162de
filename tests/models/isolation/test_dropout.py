"""Dropout: each example has its own random numbers, from its key alone, in training and never in evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hush.models import Model, from_module
from hush.models.isolation.dropout import keys_of, rows_of, uniform, with_keys
from hush.models.model import unflatten
from hush.training.select import clipped_sums
from hush.types import HushError
from tests.support.random_modules import CLASSES, RANDOM, TRICKS, WIDTH, keys, rows

ROWS = 32
SLACK = 1e-7


def adopted(module: nn.Module) -> Model:
    """The module in float64, so that rounding does not hide what mixes."""
    model = from_module(module, (WIDTH,), examples=rows(8))
    return replace(model, start=model.start.double())


def sums(model: Model, x: Tensor, drawn: Tensor, clips: float = 1.0) -> Tensor:
    """The clipped sum of one client's batch, in training."""
    given = model.in_training
    labels, mask = torch.zeros(1, len(x), dtype=torch.long), torch.ones(1, len(x), dtype=torch.bool)
    bound = torch.full((1,), clips, dtype=torch.float64)
    return clipped_sums(given, model.start[None], given.with_keys(x, drawn)[None], labels, mask, bound)[0]


def test_rows_and_keys_come_back() -> None:
    x, drawn = torch.randn(5, 2, 3), keys(5)
    packed = with_keys(x, drawn)
    assert packed.dtype == torch.float32 and packed.shape == (5, 9)
    assert torch.equal(rows_of(packed, (2, 3)), x)
    low, high = keys_of(packed).unbind(1)
    assert torch.equal((high << 32) | low, drawn)
    assert torch.equal(keys_of(packed.double()), keys_of(packed))
    assert torch.equal(with_keys(x.view(1, 5, 2, 3), drawn[None])[0], packed)


def test_numbers_are_uniform_and_independent() -> None:
    """Of examples, sites and places; a hash that forgets one of them fails."""
    drawn = torch.stack([uniform(keys_of(with_keys(torch.zeros(256, 0), torch.arange(256))), site, (0, 1, 1),
                                 torch.zeros(256, 256, dtype=torch.float64)) for site in (3, 4)])  # fmt: skip
    shares = drawn.flatten().histc(64, 0.0, 1.0) / drawn.numel() * 64
    assert float(drawn.min()) >= 0.0 and float(drawn.max()) < 1.0
    assert float((shares - 1.0).square().sum() * drawn.numel() / 64) < 64 + 5 * (2 * 64) ** 0.5
    centred = (drawn - 0.5) * 12**0.5
    for axis, lag in itertools.product(range(3), (1, 2, 7, 16)):
        if lag < drawn.shape[axis]:
            size = drawn.shape[axis] - lag
            product = centred.narrow(axis, 0, size) * centred.narrow(axis, lag, size)
            assert abs(float(product.mean())) * product.numel() ** 0.5 < 5, (axis, lag)
    # Bits of neighbouring keys.
    assert 0.45 < float(((drawn[0, ::2] < 0.5) ^ (drawn[0, 1::2] < 0.5)).double().mean()) < 0.55
    assert len(drawn.flatten().unique()) > 0.99 * drawn.numel()


@pytest.mark.parametrize("axis", [(0, 1, 1), (1, 1, 1), (0, 2, 1), (0, 1, 3), (1, 2, 3)])
def test_numbers_follow_the_batch_axis(axis: tuple[int, int, int]) -> None:
    """An example's numbers are the same whoever else is in the batch, wherever its axis lies."""
    dim, outer, inner = axis

    def numbers(drawn: Tensor) -> Tensor:
        shape = [4, 4, 5]
        shape[dim] = outer * len(drawn) * inner
        found = uniform(keys_of(with_keys(torch.zeros(len(drawn), 0), drawn)), 1, axis, torch.zeros(shape))
        return found.unflatten(dim, (outer, len(drawn), inner)).movedim(dim + 1, 0)

    together = numbers(keys(6))
    assert len(together.unique()) == together.numel()
    for i in range(6):
        assert torch.equal(together[i], numbers(keys(6)[i : i + 1])[0])


def test_float32_and_float64_drop_the_same() -> None:
    words = keys_of(with_keys(torch.zeros(9, 0), keys(9)))
    a, b = (uniform(words, 0, (0, 1, 1), torch.zeros(9, 50, dtype=dtype)) for dtype in (torch.float32, torch.float64))
    assert torch.equal(a.double(), b)


def test_masks_are_pytorchs_dropout() -> None:
    """Against the layers themselves: zeros at the rate, the rest scaled, and the gradient through the same mask."""
    module = nn.Sequential(nn.Linear(WIDTH, 400), nn.Dropout(0.3), nn.Linear(400, CLASSES))
    model = adopted(module).in_training
    x, drawn = rows(20, 1), keys(20)
    named = unflatten(model.start, model.layout)
    hidden = x @ named["0.weight"].T + named["0.bias"]
    (node,) = [n for n in model.module.graph_module.graph.nodes if n.args and n.args[-2:] == (0.3, True)]  # type: ignore[union-attr]
    mask = uniform(keys_of(with_keys(x, drawn)), node.args[1], (0, 1, 1), hidden) < 0.7
    expected = torch.where(mask, hidden / 0.7, 0.0) @ named["2.weight"].T + named["2.bias"]
    torch.testing.assert_close(model.logits(model.start, with_keys(x, drawn)), expected)
    assert abs(float(mask.double().mean()) - 0.7) < 5 * (0.21 / mask.numel()) ** 0.5
    assert not torch.equal(mask[0], mask[1])


@pytest.mark.filterwarnings("ignore:model custom.*slow path")
@pytest.mark.parametrize("name", RANDOM)
def test_random_layers_are_on_in_training_and_off_in_evaluation(name: str) -> None:
    torch.manual_seed(0)
    module = RANDOM[name]()
    model = adopted(module)
    x, drawn = rows(6, 2), keys(6)
    assert model.in_training.keyed and not model.keyed
    torch.testing.assert_close(model.logits(model.start, x), module.double().eval()(x), rtol=1e-9, atol=1e-9)
    random = [model.in_training.logits(model.start, with_keys(x, d)) for d in (drawn, drawn, drawn + 1)]
    assert torch.equal(random[0], random[1])
    assert not torch.equal(random[0], random[2])
    for i in range(6):
        alone = model.in_training.logits(model.start, with_keys(x[i : i + 1], drawn[i : i + 1]))[0]
        torch.testing.assert_close(alone, random[0][i], rtol=1e-9, atol=1e-9)
    # Equal rows have different masks.
    equal = model.in_training.logits(model.start, with_keys(x[:1].expand(20, -1), keys(20)))
    assert len(equal.unique(dim=0)) > (1 if name == "stochastic depth" else 3)
    # The sum of per-example gradients, each clipped.
    alone = torch.stack([sums(model, x[i : i + 1], drawn[i : i + 1], 0.5) for i in range(6)]).sum(0)
    torch.testing.assert_close(sums(model, x, drawn, 0.5), alone, rtol=1e-9, atol=1e-9)


def test_means_over_masks_are_what_the_module_draws() -> None:
    """Our masks have the distribution of PyTorch's own: mean and spread of the outputs over many draws."""
    for name in ("layers", "alpha", "channels", "GRU, both ways", "attention, masked"):
        torch.manual_seed(0)
        module = RANDOM[name]()
        model = adopted(module).in_training
        x = rows(1, 3).expand(3000, -1)
        ours = model.logits(model.start, with_keys(x, keys(3000)))
        theirs = module.double().train()(x).detach()
        error = (ours.var(0) + theirs.var(0)).div(3000).sqrt()
        assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 5 * error).all()), name
        assert bool(((ours.std(0) / theirs.std(0)).log().abs() < 0.15).all()), name


@pytest.mark.filterwarnings("ignore:model custom.*slow path")
@pytest.mark.parametrize("name", TRICKS)
def test_random_numbers_that_tie_examples_together_are_refused_or_isolated(name: str) -> None:
    torch.manual_seed(0)
    try:
        model = adopted(TRICKS[name]())
    except HushError as error:
        assert "\n" not in str(error)
        return
    x, drawn = torch.cat([1e3 * rows(1, 5), rows(ROWS, 3)]), keys(ROWS + 1)
    moved = sums(model, x, drawn) - sums(model, x[1:], drawn[1:])
    assert float(moved.norm()) <= 1.0 + SLACK
    assert len(set(model.in_training.module.paths)) > 1  # type: ignore[arg-type]


REASONS: dict[str, str] = {
    "always on": "random numbers in evaluation mode",
    "gaussian": "randn_like.*uses random numbers; accepted: dropout",
    "numpy": "Python's or NumPy's generator",
    "counting": "keeps state between calls, in calls",
    "one draw decides": "control flow",
    "shuffled": "randperm",
}


@pytest.mark.parametrize("name", REASONS)
def test_refusals_say_why(name: str) -> None:
    with pytest.raises(HushError, match=REASONS[name]):
        adopted(TRICKS[name]())


def test_a_module_in_evaluation_mode_trains_as_it_is() -> None:
    model = adopted(RANDOM["layers"]().eval())
    assert model.in_training is model


def test_code_for_training_alone_trains_without_keys() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2.0 if self.training else 1.0)

    model = adopted(Scaled(WIDTH, CLASSES))
    assert not model.in_training.keyed
    x = rows(4)
    torch.testing.assert_close(model.in_training.logits(model.start, x), 2.0 * model.logits(model.start, x))


def test_a_planted_shared_mask_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If keys were the same for all, equal rows would have equal outputs: the check above looks at what it must."""
    from hush.models.isolation import dropout

    real: Callable[[Tensor], Tensor] = dropout.keys_of
    monkeypatch.setattr(dropout, "keys_of", lambda packed: real(packed)[:1].expand(len(packed), 2))
    model = adopted(RANDOM["dropout"]())
    equal = model.in_training.logits(model.start, with_keys(rows(1).expand(20, -1), keys(20)))
    torch.testing.assert_close(equal, equal[:1].expand(20, -1))
