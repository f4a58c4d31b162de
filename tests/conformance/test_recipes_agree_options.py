"""Choices that no named recipe makes, against their references, and control variates among clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hush.recipes import RECIPES, Recipe
from hush.recipes.slots.assign import SingleModel
from hush.recipes.slots.clusters import ByLoss, KMeansEachRound
from hush.recipes.slots.local import ControlVariates
from hush.recipes.slots.protect import DpSgd
from hush.recipes.slots.step import Adam, Noisy
from hush.recipes.slots.weight import Impact
from tests.conformance.references import adaptive_clip, fedadam, padpfl, robust_hdp, toy
from tests.conformance.references.given import P, drawn, rng, three
from tests.support.recipe_toys import Script, Toy, play

TIGHT = 1e-10
THETA = rng(5).normal(size=P)
CLIENTS = three()


@pytest.mark.parametrize("noise", [False, True])
def test_adaptive_clip(noise: bool) -> None:
    """Each round's clip follows from the noisy counts of the round before, on a batch of their own."""
    rounds, share = 4, 0.05
    recipe = Recipe(protect=DpSgd(clip="adaptive", quantile=0.4, pace=0.7, share=share))
    settings = Toy(CLIENTS, rounds=rounds, steps=2)
    batches, noises = drawn(rounds, 3, list(CLIENTS), noise=True)
    scale = 1.0 if noise else 0.0
    played = play(
        recipe,
        settings,
        THETA,
        lambda t, i: Script(
            batches[t - 1][i], [scale * n[: 1 if k == 0 else P] for k, n in enumerate(noises[t - 1][i])]
        ),
    )
    theta, clip = THETA, settings.clip
    sizes = robust_hdp.by_share([c.size for c in CLIENTS])
    for t in range(rounds):
        known = [replace(c, clip=clip) for c in settings.known(recipe)]
        fractions = []
        for i, c in enumerate(known):
            rows = batches[t][i][0]
            norms = [float(np.linalg.norm(g)) for g in toy.gradients(theta, c.x[rows], c.y[rows])]
            # The count's multiplier over training's, by costs that add as (rate / noise)^2; one row moves it by 1/2.
            deviation = 0.5 * c.z / np.sqrt(settings.steps * share)
            fractions.append(adaptive_clip.noisy_fraction(norms, clip, 2.0, deviation, scale * noises[t][i][0][0]))
        rest = [[step[1:] for step in each[t]] for each in (batches, noises)]
        rest[1] = [[scale * n for n in steps] for steps in rest[1]]
        theta = robust_hdp.run(theta, known, [range(3)], [rest[0]], [rest[1]], settings.lr, sizes)[0]
        clip = adaptive_clip.step(clip, min(1.0, max(0.0, float(np.mean(fractions)))), 0.4, 0.7)
        np.testing.assert_allclose(played.models()[t], theta, rtol=0, atol=TIGHT)
        assert float(played.states[t].slots["protect"]["clip"]) == pytest.approx(clip, abs=TIGHT)
    assert abs(clip - settings.clip) > 0.01


def test_noise_of_the_server() -> None:
    recipe = replace(RECIPES["padpfl"], weight=Impact([0.2, 0.5, 0.3]), step=Noisy(deviation=0.07))
    settings = Toy(CLIENTS, rounds=3, steps=2)
    batches, noises = drawn(3, 2, list(CLIENTS), noise=True)
    extra = rng(71).normal(size=(3, P))
    played = play(
        recipe, settings, THETA, lambda t, i: Script(batches[t - 1][i], noises[t - 1][i]),
        {"server noise": lambda number: extra[number - 1]},
    )  # fmt: skip
    factors = [np.array([0.2, 0.5, 0.3])] * 3
    models = padpfl.run(
        THETA, settings.known(recipe), factors, [range(3)] * 3, batches, noises, settings.lr, recipe.local.pull(),
        extra, [0.07] * 3,  # type: ignore[arg-type]
    )  # fmt: skip
    np.testing.assert_allclose(played.models(), models, rtol=0, atol=TIGHT)


def test_adam_at_the_server() -> None:
    recipe = replace(RECIPES["dp-fedsgd"], step=Adam(lr=0.1))
    settings = Toy(CLIENTS, rounds=4, steps=2)
    batches, noises = drawn(4, 2, list(CLIENTS), noise=True)
    played = play(recipe, settings, THETA, lambda t, i: Script(batches[t - 1][i], noises[t - 1][i]))
    moves = [np.mean([u.vector.numpy() for u in sent.values()], axis=0) for sent in played.sent]
    adam = recipe.step
    assert isinstance(adam, Adam)
    models = fedadam.run(THETA, moves, 0.1, adam.beta1, adam.beta2, adam.tau)
    np.testing.assert_allclose(played.models(), models, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("assign", [SingleModel(), KMeansEachRound(), ByLoss(every=1, share=0.0)], ids=lambda a: a.rule)
def test_a_control_variate_is_the_mean_of_the_gradients_it_stands_for(assign: Any) -> None:
    """Whoever changes cluster: c_i is what client i measured, on the model that it worked on."""
    recipe = Recipe(local=ControlVariates(), assign=assign)
    settings = Toy(CLIENTS, rounds=6, steps=1)
    batches, noises = drawn(6, 1, list(CLIENTS), noise=True)
    starts = np.array([THETA, rng(72).normal(size=P)])[: assign.models]
    choosing = assign.rule == "by-loss"

    def script(t: int, i: int) -> Script:
        return Script(batches[t - 1][i], [*([np.zeros(2)] if choosing else []), *noises[t - 1][i]])

    played = play(recipe, settings, starts, script, {"kmeans": lambda _: np.array([0.5])})
    known = settings.known(recipe)
    before, assignments, moved = starts, [0, 0, 0], 0
    for t, (state, record) in enumerate(zip(played.states, played.records, strict=True)):
        now = [record.placed.get(i, 0) for i in range(3)]
        worked = now if choosing else assignments
        moved += now != assignments
        own = state.slots["local"]["own"].numpy()
        for i in range(3):
            H = toy.noised(before[worked[i]], known[i], batches[t][i][0], noises[t][i][0], toy.gradients)
            np.testing.assert_allclose(own[i], H, rtol=0, atol=TIGHT)
        before, assignments = state.models.numpy(), now
    assert moved or assign.models == 1
