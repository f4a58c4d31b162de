"""The closed form: the sensitivity of its statistics, its solution against a plain reference, runs, and refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hush
from hush.config import parse
from hush.engines.setup import prepare
from hush.engines.side_releases import SUMS, Evidence, exact_sum, noised
from hush.models import build_model
from hush.privacy.noise import Seeded
from hush.privacy.persons import Persons
from hush.privacy.side_release import ReleaseShape, RowModel
from hush.recipes import parse as parse_recipe
from hush.recipes.check import incompatible
from hush.recipes.slots.closed_form import STATISTICS, ClosedForm, SufficientStatistics, packed, solved, unpacked
from hush.seeds import rng
from hush.types import HushError, Layout

WIDTH, CLASSES = 6, 3
SHAPE = ReleaseShape(inputs=(WIDTH,), classes=CLASSES, parameters=CLASSES * (WIDTH + 1))
WHOLE = SufficientStatistics(STATISTICS, 1.0)
NARROW = SufficientStatistics(STATISTICS, 1.0, features=3)


def rows(number: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    draw = rng(0, "closed form")
    x = scale * torch.from_numpy(draw.normal(size=(number, WIDTH))).float()
    return x, torch.from_numpy(draw.integers(0, CLASSES, number))


def evidence(x: Tensor, y: Tensor, persons: Persons | None = None) -> Evidence:
    model = build_model(parse({}).model, (WIDTH,), CLASSES, 0)
    config = parse(
        {"data": {"clients": 1}, "privacy": {"budgets": 1.0}, "recipe": {"name": "closed-form"}, "rounds": 1}
    )
    plan = prepare(config).schedules[0].plan
    return Evidence(model=model, vectors=model.start[None], x=x, y=y, plan=plan, shape=SHAPE, persons=persons)


@pytest.mark.parametrize("release", [WHOLE, NARROW])
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_one_row_moves_the_sums_by_at_most_the_bound(release: SufficientStatistics, scale: float) -> None:
    x, y = rows(40, scale)
    bound = release.bound(SHAPE)
    total = exact_sum(release, evidence(x, y))
    longest = 0.0
    for at in range(len(x)):
        others = torch.arange(len(x)) != at
        moved = total - exact_sum(release, evidence(x[others], y[others]))
        longest = max(longest, float(moved.norm()))
        # Replaced by any other row, it moves them by at most twice the bound.
        x2, y2 = x.clone(), y.clone()
        x2[at], y2[at] = -50 * x[at - 1], (y[at] + 1) % CLASSES
        assert float((total - exact_sum(release, evidence(x2, y2))).norm()) <= 2 * bound
    assert longest <= bound
    if scale == 100.0 and release is WHOLE:
        # The bound is attained by rows that are long: nothing of the noise is wasted.
        assert longest == pytest.approx(bound, rel=1e-5)


def test_a_wrong_bound_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: rows that are not shortened."""

    def unbounded(self: SufficientStatistics, x: Tensor, shape: ReleaseShape) -> Tensor:
        flat = x.reshape(len(x), -1).double() / math.sqrt(WIDTH)
        return torch.cat([flat, torch.full_like(flat[:, :1], self.bias)], 1)

    monkeypatch.setattr(SufficientStatistics, "features_of", unbounded)
    x, y = rows(1, 100.0)
    assert float(exact_sum(WHOLE, evidence(x, y)).norm()) > 10 * WHOLE.bound(SHAPE)


@pytest.mark.parametrize("release", [WHOLE, NARROW])
def test_sums_by_products_are_the_sums_of_rows(release: SufficientStatistics) -> None:
    x, y = rows(700, 2.0)
    x[3, 0], x[600, 2] = math.inf, math.nan
    given = evidence(x, y)
    model = RowModel(given.vectors[0], lambda vector, row: row, SHAPE)
    single = torch.stack([release.row(a, b, model) for a, b in zip(x, y, strict=True)])
    assert torch.equal(single[3], torch.zeros(release.width(SHAPE)))
    torch.testing.assert_close(exact_sum(release, given), single.sum(0))
    assert set(SUMS) >= {SufficientStatistics}
    # Of persons, each row counts with one over their number: a mean of bounded vectors.
    persons = Persons(torch.tensor([100, 600]), 1)
    expected = single[:100].mean(0) + single[100:].mean(0)
    torch.testing.assert_close(exact_sum(release, evidence(x, y, persons)), expected)


def test_packing_keeps_norms() -> None:
    draw = rng(0, "packed")
    half = torch.from_numpy(draw.normal(size=(5, 5)))
    moments, products = half + half.T, torch.from_numpy(draw.normal(size=(5, 3)))
    vector = packed(moments, products)
    assert float(vector.norm()) == pytest.approx(math.hypot(float(moments.norm()), float(products.norm())))
    again = unpacked(vector, 5)
    torch.testing.assert_close(again[0], moments)
    torch.testing.assert_close(again[1], products)


def test_the_noise_is_the_planned_multiple_of_the_bound() -> None:
    config = parse(
        {"data": {"clients": 2}, "privacy": {"budgets": 2.0}, "recipe": {"name": "closed-form"}, "rounds": 1}
    )
    federation = prepare(config)
    stage = federation.stage(0, 1)
    (release,) = stage.spec.sent
    (cost,) = stage.round_costs
    assert (cost.what, cost.kind, cost.steps) == (STATISTICS, "gaussian", 1)
    assert stage.noise_of(STATISTICS) == cost.noise
    shape = federation.terms.shape
    drawn = noised(torch.zeros(release.width(shape), dtype=torch.float64), release, stage, shape, Seeded(0, 0, 1))
    expected = cost.noise * release.bound(shape)
    assert float(drawn.std()) == pytest.approx(expected, rel=0.05)
    # The server plans with the same noise, in the means over rows.
    planned = float(federation.terms.planned_noise[0, 0])
    assert planned == pytest.approx(len(drawn) * (expected / federation.members[0].samples) ** 2)


def test_without_noise_it_is_ridge_regression() -> None:
    """Against numpy, on rows that are all used at once."""
    x, y = rows(500)
    release, step = SufficientStatistics(STATISTICS, 1.0), ClosedForm()
    total = release.sums(x, y, None, SHAPE) / len(x)
    found = solved(*unpacked(total, WIDTH + 1), 0.0, 0.5).numpy()
    phi = x.numpy().astype(float) / math.sqrt(WIDTH)
    phi /= np.maximum(np.linalg.norm(phi, axis=1), 1.0)[:, None]
    phi = np.column_stack([phi, np.full(len(x), 0.3)])
    target = np.eye(CLASSES)[y.numpy()] - 1 / CLASSES
    expected = np.linalg.solve(phi.T @ phi / len(x) + 1e-6 * np.eye(WIDTH + 1), phi.T @ target / len(x))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    layout = Layout(("1.weight", "1.bias"), ((CLASSES, WIDTH), (CLASSES,)))
    head = step.head(torch.from_numpy(expected), layout)
    weight, bias = head[: CLASSES * WIDTH].view(CLASSES, WIDTH), head[CLASSES * WIDTH :]
    short = 0.01 * x.double()
    logits = short @ weight.T + bias
    by_hand = np.column_stack([short.numpy() / math.sqrt(WIDTH), np.full(len(x), 0.3)]) @ expected
    np.testing.assert_allclose(logits.numpy(), 10 * by_hand, rtol=1e-9)


def test_noise_is_shrunk_and_negative_eigenvalues_are_removed() -> None:
    moments, products = torch.diag(torch.tensor([1.0, 0.1, -0.2], dtype=torch.float64)), torch.eye(3).double()
    found = solved(moments, products, 0.1, 0.5)
    ridge = 0.5 * 0.1 * math.sqrt(6.0)
    torch.testing.assert_close(found.diagonal(), 1 / (torch.tensor([1.0, 0.1, 0.0]).double() + ridge + 1e-6))


def run(**settings: Any) -> Any:
    base = {
        "seed": 0,
        "rounds": 1,
        "data": {"clients": 4},
        "privacy": {"budgets": 8.0},
        "recipe": {"name": "closed-form"},
    }
    return hush.simulate({**base, **settings})


def test_one_release_trains_a_head() -> None:
    result = run()
    assert result.accuracy["mean"] > 0.75
    assert all(card.epsilon_spent == pytest.approx(8.0, rel=1e-2) and card.steps == 0 for card in result.guarantees)
    # The same budget in several releases gives about as much.
    several = run(rounds=4)
    assert abs(several.accuracy["mean"] - result.accuracy["mean"]) < 0.1
    # Beside an evaluation, which is a part of the budget, the noise that the server plans with is still its own.
    evaluated = run(evaluation={"share": 0.1, "every": 1})
    assert evaluated.accuracy["mean"] > 0.7


def test_clients_with_less_noise_have_larger_weights() -> None:
    sim = hush.Simulation("digits", "logreg", clients=3, epsilon=[0.5, 2.0, 8.0], rounds=1, recipe="closed-form")
    (record,) = sim.fit().records
    assert record.weights[0] < record.weights[1] < record.weights[2]
    assert sum(record.weights.values()) == pytest.approx(1.0)


def test_persons_are_protected_as_a_whole() -> None:
    draw = np.random.default_rng(0)
    person = draw.integers(0, 60, 900)
    y = draw.integers(0, 2, 900)
    x = draw.normal(size=(900, 4)) + y[:, None]
    data = hush.data.clients(x, y, clients=2, classes=2, person=person)
    found = hush.Simulation(data, "logreg", epsilon=8.0, rounds=1, recipe="closed-form", batch_size=8).fit()
    assert found.run.guarantees[0].unit == "person" and found.accuracy["mean"] > 0.6


def test_other_models_and_tasks_are_refused() -> None:
    for settings, words in (
        ({"model": {"name": "mlp"}}, "mlp is another model; accepted: logreg"),
        ({"privacy": {"budgets": 1.0, "unit": "client"}}, STATISTICS),
    ):
        with pytest.raises(HushError, match=words):
            run(**settings)
    x, y = rows(100)
    data = hush.data.clients(x.numpy(), y.numpy().astype(np.float32), clients=2, targets="continuous")
    with pytest.raises(HushError, match="ridge solves for one linear layer"):
        hush.Simulation(data, "logreg", task="regression", epsilon=1.0, rounds=1, recipe="closed-form").fit()


def test_what_it_cannot_be_combined_with() -> None:
    for table, slot in (
        ({"protect": {"rule": "dp-sgd", "centre": 0.1}}, "protect"),
        ({"protect": {"rule": "dp-sgd", "clip": "adaptive"}}, "protect"),
        ({"protect": "none"}, "protect"),
        ({"local": "control-variates"}, "local"),
        ({"assign": {"rule": "by-loss", "clusters": 2}}, "assign"),
        ({"weight": "estimated-noise"}, "weight"),
        ({"weight": "balanced"}, "weight"),
        ({"project": "public-subspace"}, "project"),
    ):
        recipe = parse_recipe({"name": "closed-form", **table})[1]
        assert slot in [key for key, _ in incompatible(recipe)], slot
    assert not list(incompatible(parse_recipe({"name": "closed-form", "weight": "samples"})[1]))
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("features", {"features": 0}), ("bias", {"bias": 0.0}), ("strength", {"strength": -1.0}),
    ]  # fmt: skip
    for field, settings in wrong:
        with pytest.raises(ValueError, match=field):
            ClosedForm(**settings)
