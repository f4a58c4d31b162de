"""Rows counted from a centre: what one row can change, and that nothing else changes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import hush
from hush.callbacks import RunStart
from hush.config import ModelConfig, parse
from hush.engines.setup import prepare
from hush.models import build_model, from_user
from hush.privacy.noise import Seeded
from hush.privacy.plan import PrivacyPlan
from hush.training import closed_form, input_mean
from hush.training.closed_form import closed_form_sums
from hush.training.gpu.graph_replay import PaddedGraphStep
from hush.training.job import Job
from hush.training.train import train as trained

PLAN = PrivacyPlan(
    samples=12, batch=4, epochs=1, rounds=1, clip=0.7, noise_multiplier=1.3, relation="add-remove", accountant="pld"
)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e30])
def test_one_row_moves_the_sum_by_at_most_the_bound(scale: float) -> None:
    x = drawn(2000, 5) * scale
    limit = input_mean.bound(5)
    whole = input_mean.bounded_sum(x, limit)
    for row in range(0, 2000, 97):
        without = torch.cat([x[:row], x[row + 1 :]])
        assert float((whole - input_mean.bounded_sum(without, limit)).norm()) <= limit * (1 + 1e-9)


def test_short_rows_are_summed_as_they_are_and_broken_ones_not_at_all() -> None:
    x = drawn(9, 4) * 0.1
    broken = x.clone()
    broken[3, 1], broken[5, 0] = math.nan, math.inf
    kept = torch.cat([x[:3], x[4:5], x[6:]])
    torch.testing.assert_close(input_mean.bounded_sum(broken, 2.0), kept.double().sum(0))


def model(classes: int = 3, width: int = 5) -> Any:
    return build_model(ModelConfig(name="logreg"), (width,), classes, seed=1)


def test_the_plain_model_acts_as_the_centred_one() -> None:
    net, x, shift = model(), drawn(7, 5), drawn(5, seed=2)
    vectors = torch.stack([net.start, net.start * 2])
    plain = input_mean.uncentred(input_mean.linear_layer(net), vectors, shift)
    for vector, moved in zip(vectors, plain, strict=True):
        torch.testing.assert_close(net.logits(moved, x), net.logits(vector, x - shift))


def jobs(net: Any, centres: list[torch.Tensor | None], first: int = 12) -> list[Job]:
    return [
        Job(vector=net.start, first_row=first * i, plan=PLAN, lr=0.5, source=Seeded(3, i, 1), input_mean=shift)
        for i, shift in enumerate(centres)
    ]


@pytest.mark.parametrize("known", [False, True])
def test_training_from_a_centre_is_training_on_rows_moved_before(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = model(), drawn(36, 5), torch.arange(36) % 3
    shifts: list[torch.Tensor | None] = [drawn(5, seed=4), None, drawn(5, seed=5)]
    if not known:
        monkeypatch.setattr(closed_form.ClosedFormSum, "_row_norms", lambda *_: None)
    found = trained(net, x, y, jobs(net, shifts))
    moved = torch.cat([x[:12] - shifts[0], x[12:24], x[24:] - shifts[2]])
    for ours, theirs in zip(found, trained(net, moved, y, jobs(net, [None] * 3)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    # The twin: a centre that is left out shows.
    assert not torch.allclose(found[0], trained(net, x, y, jobs(net, [None] * 3))[0], rtol=1e-3)


def test_paths_without_a_closed_form_train_on_moved_copies() -> None:
    net, x, y = model(), drawn(24, 5), torch.arange(24) % 3
    shift = drawn(5, seed=4)
    exact = [replace(job, plan=replace(PLAN, discrete=True)) for job in jobs(net, [shift, shift])]
    moved = [replace(job, plan=replace(PLAN, discrete=True)) for job in jobs(net, [None, None])]
    for ours, theirs in zip(trained(net, x, y, exact), trained(net, x - shift, y, moved), strict=True):
        torch.testing.assert_close(ours, theirs)


def config(**more: Any) -> dict[str, Any]:
    return {"rounds": 3, "data": {"clients": 4}, "recipe": {"name": "hush"}, "local": {"lr": "auto"}, **more}


def test_a_model_that_cannot_be_centred_is_trained_without_and_pays_for_nothing() -> None:
    warned: list[str] = []

    class Listener(hush.Callback):
        def on_run_start(self, start: RunStart) -> None:
            warned.extend(start.warnings)

    raw = config(rounds=1, model={"name": "cnn"})
    result = hush.simulate(raw, callbacks=[Listener()])
    (said,) = [text for text in result.warnings if "recipe.protect.centre" in text]
    assert said in warned and "cnn does not begin with a linear layer with a bias" in said
    assert not any("mean of the inputs" in str(card.stages) for card in result.guarantees)
    assert not any("weight of the mean" in text for text in result.not_covered)
    # What is not released costs nothing: the noise is that of a recipe that never had a centre.
    without = prepare(
        parse({**raw, "recipe": {"name": "hush", "protect": {"rule": "dp-sgd", "steps": 10, "batches": "large"}}})
    )
    expected = [schedule.plan.noise_multiplier for schedule in without.schedules]
    assert [card.noise_multiplier for card in result.guarantees] == expected
    # The twin: with a linear model it is released and charged.
    linear = prepare(parse(config()))
    assert linear.left_out == () and any(cost.what == "mean of the inputs" for cost in linear.costs(0))


class Reused(nn.Module):
    """A network whose inputs enter a linear layer and something else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x.sum(1, keepdim=True)


def own(*layers: nn.Module, shape: tuple[int, ...] = (5,)) -> Any:
    return from_user(nn.Sequential(*layers), shape, 3, "own")


def test_only_models_whose_inputs_enter_a_biased_linear_layer_are_centred() -> None:
    assert input_mean.applies(own(nn.Linear(5, 3)), (5,))
    assert input_mean.applies(own(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3), shape=(2, 3)), (2, 3))
    assert not input_mean.applies(own(nn.Linear(5, 3, bias=False)), (5,))
    assert not input_mean.applies(own(nn.Linear(3, 4), nn.Flatten(), nn.Linear(8, 3), shape=(2, 3)), (2, 3))
    assert not input_mean.applies(own(nn.ReLU(), nn.Linear(5, 3)), (5,))
    assert not input_mean.applies(own(nn.Flatten(), Reused()), (5,))
    twice = nn.Linear(5, 5)
    assert not input_mean.applies(own(twice, nn.ReLU(), twice, nn.Linear(5, 3)), (5,))


def test_the_mean_is_folded_into_the_first_layer_of_a_network() -> None:
    net, x, shift = own(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), drawn(7, 5), drawn(5, seed=2)
    (plain,) = input_mean.uncentred(input_mean.linear_layer(net), net.start[None], shift)
    torch.testing.assert_close(net.logits(plain, x), net.logits(net.start, x - shift))
    moved = drawn(24, 5, seed=3)
    y = torch.arange(24) % 3
    expected = trained(net, torch.cat([moved[:12] - shift, moved[12:]]), y, jobs(net, [None] * 2))
    for ours, theirs in zip(trained(net, moved, y, jobs(net, [shift, None])), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_saved_model_is_the_one_that_was_evaluated(tmp_path: Any) -> None:
    from safetensors.torch import load_file

    from hush.engines.driver import evaluate

    result = hush.simulate(config(), out=tmp_path)
    federation = prepare(parse(result.config))
    kept = load_file(tmp_path / "model.safetensors")
    vector = torch.cat([kept[name].flatten() for name in federation.model.layout.names])
    x, y = federation.arrays(3)
    test = [range(first, end) for _, first, end in federation.data.bounds()]
    accuracies, _ = evaluate(federation.model, vector[None], [0] * 4, x, y, test)
    assert accuracies == pytest.approx(result.accuracy_per_client)


def test_every_budget_is_kept_and_used() -> None:
    result = hush.simulate(config(privacy={"budgets": [0.3, 1.0, 2.0, 8.0]}))
    for card in result.guarantees:
        assert 0.97 * card.epsilon_budget < card.epsilon_spent <= card.epsilon_budget
        # At least one pass in ten steps, whatever the config says, and the card says so.
        assert card.batch_size >= math.ceil(card.samples / 10)
        assert card.steps == 30


@pytest.mark.parametrize("limit", [3, 4096])
def test_tables_of_an_accelerator_have_the_sums_of_the_processor(limit: int) -> None:
    net, x, y = model(), drawn(40, 5), torch.arange(40) % 3
    x[7, 2] = math.nan
    centres = [None, drawn(5, seed=2), drawn(5, seed=3), None]
    rows = [torch.tensor([0, 7, 3]), torch.tensor([7, 12, 13, 14, 15, 2]), torch.tensor([30]), torch.empty(0).long()]
    step = PaddedGraphStep(net, x, y, 4, 6, limit, "float32", linear=input_mean.linear_layer(net))
    step.vectors.copy_(drawn(4, net.layout.size, seed=4))
    step.clips.copy_(torch.tensor([0.3, 1e9, 0.01, 1.0]))
    step.scales[0].fill_(1.0)
    step.scales[2].fill_(1.0)
    step.load_input_means(centres)
    before = step.vectors.clone()
    table = torch.full((4, 6), -1)
    for place, mine in zip(table, rows, strict=True):
        place[: len(mine)] = mine
    step.load(table, None)
    step.step(step.table, 6)
    shifts = torch.stack([torch.zeros(5) if c is None else c for c in centres])
    sums = closed_form_sums(input_mean.linear_layer(net), before, x, y, rows, step.clips, 4096, None, shifts)
    torch.testing.assert_close((before - step.vectors).double(), sums, rtol=1e-5, atol=1e-6)
    assert not sums[3].any()
    assert sums[1].any()
