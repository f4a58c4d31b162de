"""The clustered recipes against their numpy references, on three clients of two kinds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from hush.recipes import RECIPES, Recipe
from hush.recipes.presets import FAITHFUL
from hush.recipes.slots.clusters import ByLoss, GmmThenLoss, KMeansEachRound, Oracle
from tests.conformance.references import rc_dpfl, rc_mixture
from tests.conformance.references.given import D, P, rng
from tests.conformance.references.toy import Array, Client, losses
from tests.support.recipe_toys import Played, Script, Toy, play

TIGHT = 1e-10
THETA = 0.3 * rng(6).normal(size=P)
KINDS = [0, 1, 0]
STEPS = 2


def of_two_kinds() -> list[Client]:
    """The second client has the labels of the others turned round."""
    x = [rng(50 + i).normal(size=(n, D)) for i, n in enumerate((8, 10, 12))]
    return [Client(a, (a[:, 0] > 0).astype(int) ^ kind, 2.0) for a, kind in zip(x, KINDS, strict=True)]


CLIENTS = of_two_kinds()


def numbers(rounds: int, noise: bool) -> tuple[Any, Any, Array, Array]:
    """Batches, noises, uniforms and the choices' own draws, by round and client."""
    r = rng(60)
    batches = [[[np.flatnonzero(r.random(c.size) < 2 / c.size).tolist() for _ in range(STEPS)] for c in CLIENTS]
               for _ in range(rounds)]  # fmt: skip
    scale = 1.0 if noise else 0.0
    noises = [[[scale * r.normal(size=P) for _ in range(STEPS)] for _ in CLIENTS] for _ in range(rounds)]
    return batches, noises, r.random((rounds, 3)), scale * r.normal(size=(rounds, 3, 2))


def deviations(toy: Toy, recipe: Recipe, share: float) -> list[float]:
    """Of the noise on a client's two sums of losses: a choice costs `share` of a round with K steps at rate q."""
    if not share:
        return [0.0] * 3
    half = toy.loss_clip / 2 * math.sqrt(2)
    return [c.z / (2 / c.size * math.sqrt(STEPS * share)) * half for c in toy.known(recipe)]


def chooser(bound: float, deviation: list[float], draws: Array, asked: Callable[[int], bool]) -> rc_dpfl.Choose:
    """The noisy choice in the rounds that ask for one; in the others a client stays where it was."""
    each = [rc_dpfl.noisy_lowest_loss(bound, d, draws) for d in deviation]  # type: ignore[arg-type]
    last: dict[int, int] = {}

    def choose(e: int, i: int, losses: Array) -> int:
        if asked(e):
            last[i] = each[i](e, i, losses)
        return last[i]

    return choose


def placed(played: Played) -> list[list[int]]:
    return [[record.placed[i] for i in range(3)] for record in played.records]


def modes(name: str) -> list[Any]:
    return [
        pytest.param(table[name], noise, id=f"{mode}-{'noised' if noise else 'silent'}")
        for mode, table in (("sound", RECIPES), ("faithful", FAITHFUL))
        for noise in (False, True)
    ]


@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize(("recipe", "noise"), modes("rc-dpfl"))
def test_rc_dpfl(recipe: Recipe, noise: bool, every: int) -> None:
    """A full batch, clusters from the updates, drawn clusters until E_c, then choices: all of it."""
    assert type(recipe.assign) is GmmThenLoss
    assert recipe.assign.clusters == 2
    if every:
        recipe = replace(recipe, assign=replace(recipe.assign, every=every))
    assign, rounds = recipe.assign, 8
    toy = Toy(CLIENTS, rounds=rounds, steps=STEPS)
    known = toy.known(recipe)
    batches, noises, uniforms, draws = numbers(rounds, noise)

    first = rc_dpfl.full_batch_updates(THETA, known, [n[:1] for n in noises[0]], toy.lr)
    mixture = rc_mixture.gmm(rc_mixture.features(first, standardise=assign.features == "standardised"), 2, floor=1e-4)  # type: ignore[attr-defined]
    E_c = max(2, rc_mixture.sampled_rounds(rc_mixture.max_overlap(mixture), rounds))
    assert 2 < E_c < rounds - 1

    def asked(e: int) -> bool:
        return e >= 4 and (e - 4) % assign.every == 0  # type: ignore[attr-defined]

    def script(number: int, client: int) -> Script:
        if number == 1:
            return Script([range(CLIENTS[client].size)], noises[0][client][:1])
        choice = [draws[number - 1][client][: 2 if number > E_c + 1 else 1]] if asked(number) else []
        return Script(batches[number - 1][client], [*choice, *noises[number - 1][client]])

    server = {"mixture": lambda _: np.array([0.5]), "cluster": lambda number: uniforms[number - 1]}
    played = play(recipe, toy, np.array([THETA, THETA]), script, server)
    sent = np.array([played.sent[0][i].vector.numpy() for i in range(3)])
    np.testing.assert_allclose(sent, first, rtol=0, atol=TIGHT)
    soft = played.states[0].slots["assign"]["soft"].numpy()
    order = min(permutations(range(2)), key=lambda o: float(np.abs(mixture.responsibilities[:, o] - soft).max()))
    pi = mixture.responsibilities[:, order]
    # The product's EM stops when it hardly gains any more; a draw between the two would tell them apart.
    np.testing.assert_allclose(soft, pi, atol=1e-3)

    drawn = [rc_dpfl.draw(pi[i], uniforms[E_c][i]) for i in range(3)]
    noisy = chooser(toy.loss_clip, deviations(toy, recipe, assign.share), draws, asked)  # type: ignore[attr-defined]

    def choose(e: int, i: int, losses: Array) -> int:
        heard.setdefault(i, drawn[i])
        heard[i] = noisy(e, i, losses) if asked(e) else heard[i]
        return heard[i]

    heard: dict[int, int] = {}
    trace = rc_dpfl.run(THETA, known, pi, uniforms, E_c, batches, noises, toy.lr, choose)  # type: ignore[arg-type]
    assert placed(played)[1:] == trace.clusters[1:]
    np.testing.assert_allclose(played.all_models(), trace.models, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize(("recipe", "noise"), modes("f-cdpfl"))
def test_f_cdpfl(recipe: Recipe, noise: bool, every: int) -> None:
    assert type(recipe.assign) is ByLoss
    if every:
        recipe = replace(recipe, assign=replace(recipe.assign, every=every))
    toy = Toy(CLIENTS, rounds=4, steps=STEPS)
    batches, noises, _, draws = numbers(4, noise)
    starts = rng(61).normal(size=(2, P))

    def asked(e: int) -> bool:
        return (e - 1) % recipe.assign.every == 0  # type: ignore[attr-defined]

    def script(number: int, client: int) -> Script:
        choice = [draws[number - 1][client]] if asked(number) else []
        return Script(batches[number - 1][client], [*choice, *noises[number - 1][client]])

    played = play(recipe, toy, starts, script)
    choose = chooser(toy.loss_clip, deviations(toy, recipe, recipe.assign.share), draws, asked)  # type: ignore[attr-defined]
    trace = rc_dpfl.f_cdpfl(starts, toy.known(recipe), batches, noises, toy.lr, choose=choose)
    assert placed(played) == trace.clusters
    np.testing.assert_allclose(played.all_models(), trace.models, rtol=0, atol=TIGHT)


def test_the_noise_of_a_choice_has_the_size_it_is_charged_for() -> None:
    """Draws a little short of what turns a choice, and a little beyond: any other deviation would tell."""
    recipe = RECIPES["f-cdpfl"]
    toy = Toy(CLIENTS, rounds=1, steps=STEPS)
    batches, noises, _, _ = numbers(1, noise=True)
    starts = rng(61).normal(size=(2, P))
    sums = [[np.minimum(losses(theta, c.x, c.y), toy.loss_clip).sum() for theta in starts] for c in CLIENTS]
    spread = deviations(toy, recipe, recipe.assign.share)  # type: ignore[attr-defined]
    chosen = []
    for part in (0.98, 1.02):
        turns = [np.array([part * (s[1] - s[0]) / d, 0.0]) for s, d in zip(sums, spread, strict=True)]
        script = [Script(batches[0][i], [turns[i], *noises[0][i]]) for i in range(3)]
        chosen.append(placed(play(recipe, toy, starts, lambda _, i, given=script: given[i]))[0])  # type: ignore[misc]
    best = np.argmin(sums, axis=1)
    assert chosen == [best.tolist(), (1 - best).tolist()]


@pytest.mark.parametrize(("recipe", "noise"), modes("o-cdpfl"))
def test_o_cdpfl(recipe: Recipe, noise: bool) -> None:
    assert recipe.assign == Oracle()
    toy = Toy(CLIENTS, rounds=4, steps=STEPS, groups=KINDS)
    batches, noises, _, _ = numbers(4, noise)
    played = play(recipe, toy, np.array([THETA, THETA]), lambda t, i: Script(batches[t - 1][i], noises[t - 1][i]))
    trace = rc_dpfl.oracle(THETA, toy.known(recipe), KINDS, batches, noises, toy.lr)
    assert placed(played) == trace.clusters
    np.testing.assert_allclose(played.all_models(), trace.models, rtol=0, atol=TIGHT)


@pytest.mark.parametrize(("recipe", "noise"), modes("km-cdpfl"))
def test_km_cdpfl(recipe: Recipe, noise: bool) -> None:
    """Groups have no names of their own, so the clients' models are compared, not the list of models."""
    assert recipe.assign == KMeansEachRound()
    toy = Toy(CLIENTS, rounds=4, steps=STEPS)
    batches, noises, _, _ = numbers(4, noise)
    server = {"kmeans": lambda _: np.array([0.5])}
    script = [[Script(batches[t][i], noises[t][i]) for i in range(3)] for t in range(4)]
    played = play(recipe, toy, np.array([THETA, THETA]), lambda t, i: script[t - 1][i], server)
    trace = rc_dpfl.km_cdpfl(THETA, toy.known(recipe), 2, batches, noises, toy.lr)
    ours = [models[where] for models, where in zip(played.all_models(), placed(played), strict=True)]
    theirs = [models[where] for models, where in zip(trace.models, trace.clusters, strict=True)]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TIGHT)


def test_every_recipe_has_its_agreement() -> None:
    """A recipe that is added must be given its reference: here, or beside this file."""
    here = {"rc-dpfl", "f-cdpfl", "o-cdpfl", "km-cdpfl"}
    beside = {
        "fedavg", "dp-fedavg", "minimum", "maximum", "weiavg", "robust-hdp", "fedsgd", "dp-fedsgd", "scaffold",
        "dp-scaffold", "scaffold-warm", "dp-scaffold-warm", "pfa", "pfa-plus", "fedprox", "padpfl", "hush",
    }  # fmt: skip
    solved = {"closed-form"}  # tests/recipes/slots/test_closed_form.py: ridge regression in numpy
    assert here | beside | solved == set(RECIPES)
    assert set(FAITHFUL) <= set(RECIPES)
