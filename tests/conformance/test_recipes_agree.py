"""Every recipe against its plain numpy reference, on three clients: the same batches and draws, the same models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hush.recipes import RECIPES, Recipe
from hush.recipes.presets import FAITHFUL
from hush.recipes.slots.local import ControlVariates
from hush.recipes.slots.project import DelayedPublicSubspace, PublicSubspace, RandomSubspace
from hush.recipes.slots.protect import DpSgd, OutputPerturbation
from hush.recipes.slots.step import Recent, TwoSided
from hush.recipes.slots.weight import EstimatedNoise, Impact
from hush.server.loop import bytes_of_update
from tests.conformance.references import dp_scaffold, padpfl, pfa, robust_hdp
from tests.conformance.references import hush as own
from tests.conformance.references.given import PLACES, P, drawn, rng, three
from tests.conformance.references.toy import Array, Client
from tests.support.recipe_toys import Played, Script, Toy, play

TIGHT = 1e-10
THETA = rng(5).normal(size=P)
CLIENTS = three()
IN_TURN = [[0, 1], [1, 2], [0, 2], [0, 1, 2]]

Draws = tuple[Any, Any]


def scripted(given: Draws, private: bool, size: int = P) -> Callable[[int, int], Script]:
    """The references' batches and draws (none: zeros), as the product asks for them."""
    batches, noises = given

    def script(number: int, client: int) -> Script:
        rows, draws = batches[number - 1][client], noises[number - 1][client]
        here = [np.zeros(size) if draw is None else draw for draw in draws]
        return Script(rows, here if private else [])

    return script


def variants(*names: str) -> list[Any]:
    """The recipes of these names in both modes, without noise, and with it where they have any."""
    made = []
    for name in names:
        for mode, table in (("sound", RECIPES), ("faithful", FAITHFUL)):
            if name in table:
                kinds = ["silent", "noised"] if is_private(table[name]) or table is FAITHFUL else ["silent"]
                made += [
                    pytest.param(name, table[name], kind == "noised", id=f"{name}-{mode}-{kind}") for kind in kinds
                ]
    return made


def is_private(recipe: Recipe) -> bool:
    return any(release.covered for release in recipe.releases())


def both(
    recipe: Recipe, toy: Toy, noise: bool, reference: Callable[[list[Client], Draws], Sequence[Array]]
) -> tuple[Played, Sequence[Array]]:
    """The product's run and the reference's models."""
    given = drawn(toy.rounds, toy.steps, list(toy.clients), noise=noise)
    played = play(recipe, toy, THETA, scripted(given, is_private(recipe)))
    return played, reference(toy.known(recipe), given)


@pytest.mark.parametrize(("name", "recipe", "noise"), variants("fedavg", "dp-fedavg", "minimum", "maximum", "weiavg"))
def test_weighted_averages(name: str, recipe: Recipe, noise: bool) -> None:
    toy = Toy(CLIENTS, rounds=4, steps=2)
    weight = robust_hdp.by_share(toy.epsilons if name == "weiavg" else [c.size for c in CLIENTS])
    played, models = both(
        recipe, toy, noise, lambda known, given: robust_hdp.run(THETA, known, [range(3)] * 4, *given, toy.lr, weight)
    )
    np.testing.assert_allclose(played.models(), models, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("name", ["minimum", "maximum"])
def test_noise_of_one_budget_for_all(name: str) -> None:
    toy = Toy(CLIENTS, rounds=4, steps=2)
    best = min(toy.epsilons) if name == "minimum" else max(toy.epsilons)
    own = replace(toy, epsilons=[best] * 3).known(RECIPES["dp-fedavg"])
    assert [c.z for c in toy.known(RECIPES[name])] == [c.z for c in own]
    assert [c.z for c in toy.known(RECIPES["dp-fedavg"])] != [c.z for c in own]


def wide(noise: bool) -> tuple[list[Client], Array, Draws]:
    """Clients with 60 features and 5 classes: differences between updates are nearly at right angles, as in life."""
    r = rng(7)
    clients = [Client(r.normal(size=(n, 60)), r.integers(0, 5, n), 2.0) for n in (8, 10, 12)]
    size = 5 * 61
    batches = [[[r.permutation(c.size)[:2].tolist() for _ in range(2)] for c in clients] for _ in range(3)]
    noises = [[[r.normal(size=size) if noise else None for _ in range(2)] for _ in clients] for _ in range(3)]
    return clients, r.normal(size=size), (batches, noises)


@pytest.mark.parametrize(("name", "recipe", "noise"), variants("robust-hdp"))
def test_robust_hdp(name: str, recipe: Recipe, noise: bool) -> None:
    clients, theta, given = wide(noise)
    recipe = replace(recipe, weight=EstimatedNoise(estimator="pairwise"))
    toy = Toy(clients, rounds=3, steps=2)
    played = play(recipe, toy, theta, scripted(given, True, theta.size))
    models = robust_hdp.run(theta, toy.known(recipe), [range(3)] * 3, *given, toy.lr, robust_hdp.by_pairs)
    np.testing.assert_allclose(played.models(), models, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("noise", [False, True])
def test_hush(noise: bool) -> None:
    clients, theta, given = wide(noise)
    recipe = RECIPES["hush"]
    # In three rounds no average of a twentieth would show; with least noise, a batch would be all rows.
    protect = replace(recipe.protect, steps=2, batches="one-pass")  # type: ignore[type-var]
    recipe = replace(recipe, protect=protect, step=Recent(share=0.6))
    toy = Toy(clients, rounds=3, steps=5)
    centre = rng(9).normal(size=clients[0].x.shape[1])
    enrolment = {"input_mean": torch.tensor(centre)}
    played = play(recipe, toy, theta, scripted(given, True, theta.size), enrolment=enrolment)
    known = own.centred(toy.known(recipe), centre, 2)  # type: ignore[arg-type]
    planned = np.array([2 * theta.size * (toy.lr * c.z * c.clip / c.divisor) ** 2 for c in known])
    weigh = own.balanced(3, planned, 2 * toy.lr)
    models = robust_hdp.run(theta, known, [range(3)] * 3, *given, toy.lr, weigh)
    np.testing.assert_allclose(played.models(), models, rtol=0, atol=TIGHT)
    released = [state.released[0].numpy() for state in played.states]
    np.testing.assert_allclose(released, own.averaged(models, 0.6), rtol=0, atol=TIGHT)


FALSE = (50.0, 3.0, 4.0)
BELIEVED = {
    # What the server computes from what it receives: shares of epsilon, and 1 / sigma^2 with sigma as 1 / epsilon.
    "weiavg": (RECIPES["weiavg"], robust_hdp.by_share(FALSE)),
    "declared noise": (
        replace(RECIPES["robust-hdp"], weight=EstimatedNoise("declared")),
        robust_hdp.by_share([epsilon**2 for epsilon in FALSE]),
    ),
    # What it does not ask.
    "dp-fedavg": (RECIPES["dp-fedavg"], robust_hdp.by_share([8, 10, 12])),
    "estimated noise": (replace(RECIPES["robust-hdp"], weight=EstimatedNoise("pairwise")), robust_hdp.by_pairs),
}


@pytest.mark.parametrize("name", BELIEVED)
def test_false_budgets(name: str) -> None:
    """The first client declares a hundred times its budget: noise is by the true one, weights by what is believed."""
    recipe, weight = BELIEVED[name]
    clients, theta, given = wide(noise=True)
    toy = Toy(clients, rounds=3, steps=2, epsilons=(0.5, 3.0, 4.0), declared=FALSE)
    known = toy.known(recipe)
    assert [client.z for client in known] == [3.0, 0.5, 0.375]
    played = play(recipe, toy, theta, scripted(given, True, theta.size))
    models = robust_hdp.run(theta, known, [range(3)] * 3, *given, toy.lr, weight)
    np.testing.assert_allclose(played.models(), models, rtol=0, atol=TIGHT)
    honest = play(recipe, replace(toy, declared=None), theta, scripted(given, True, theta.size))
    moved = np.abs(np.subtract(honest.models(), models)).max() > 1e-3
    assert moved == (name in ("weiavg", "declared noise"))


@pytest.mark.parametrize("mode", ["sound", "faithful"])
def test_robust_hdp_by_pursuit(mode: str) -> None:
    """The product's pursuit grows its penalty and stops early, so it has a tolerance of its own."""
    recipe = (RECIPES if mode == "sound" else FAITHFUL)["robust-hdp"]
    assert recipe.weight == EstimatedNoise(estimator="rpca")
    clients, theta, given = wide(noise=True)
    toy = Toy(clients, rounds=1, steps=2)
    played = play(recipe, toy, theta, scripted(given, True, theta.size))
    updates = np.array([update.vector.numpy() for update in played.sent[0].values()])
    expected = robust_hdp.by_rpca(updates, [0, 1, 2])
    np.testing.assert_allclose(list(played.records[0].weights.values()), expected, rtol=0, atol=1e-3)
    np.testing.assert_allclose(
        played.models()[0], theta + expected @ updates, rtol=0, atol=1e-3 * np.abs(updates).max()
    )


@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize(
    ("name", "recipe", "noise"),
    variants("fedsgd", "dp-fedsgd", "scaffold", "dp-scaffold", "scaffold-warm", "dp-scaffold-warm"),
)
def test_scaffold_and_fedsgd(name: str, recipe: Recipe, noise: bool, l2: float) -> None:
    warm = 2 if name.endswith("warm") else 0
    if isinstance(recipe.protect, DpSgd):
        # Batches are given to both sides here, so which sampler would have drawn them makes no difference.
        recipe = replace(recipe, protect=replace(recipe.protect, sampler="configured"))
    if warm:
        assert recipe.local == ControlVariates(visits=4)
        recipe = replace(recipe, local=ControlVariates(warm=warm))
    schedule = IN_TURN if warm else IN_TURN[:3]
    steps = 2 if name.endswith("fedsgd") else 3
    toy = Toy(CLIENTS, rounds=len(schedule), steps=steps, schedule=schedule, weight_decay=l2)

    def reference(known: list[Client], given: Draws) -> list[Array]:
        batches, noises = given
        control = not name.endswith("fedsgd")
        variates = None
        if warm:
            variates = dp_scaffold.warm_start(THETA, known, schedule[:warm], batches, noises, l2=l2)
        later = (schedule[warm:], batches[warm:], noises[warm:])
        trace = dp_scaffold.run(THETA, known, *later, toy.lr, variates=variates, control=control, l2=l2)
        traces.append(trace)
        return [THETA] * warm + trace.models

    traces: list[dp_scaffold.Trace] = []
    played, models = both(recipe, toy, noise, reference)
    np.testing.assert_allclose(played.models(), models, rtol=0, atol=TIGHT)
    if not name.endswith("fedsgd"):
        own = played.states[-1].slots["local"]["own"].numpy()
        np.testing.assert_allclose(own, traces[0].variates[-1].users, rtol=0, atol=TIGHT)
        np.testing.assert_allclose(own.mean(0), traces[0].variates[-1].server, rtol=0, atol=TIGHT)


PROJECTED = [
    pytest.param(*case.values, projection, id=f"{case.id}-{projection}")
    for case in variants("pfa", "pfa-plus")
    for projection in ("code", "printed", "random")
    if (case.values[0], projection) != ("pfa-plus", "random")
]


@pytest.mark.parametrize("among", ["round", "all"])
@pytest.mark.parametrize(("name", "recipe", "noise", "projection"), PROJECTED)
def test_pfa(name: str, recipe: Recipe, noise: bool, projection: str, among: Any) -> None:
    plus = name == "pfa-plus"
    if plus and among == "round":
        pytest.skip("with directions of the round before, all enrolled clients are divided")
    assert type(recipe.project) is (DelayedPublicSubspace if plus else PublicSubspace)
    centred = projection == "code"
    assert recipe.project == type(recipe.project)(k=1, centred=True)
    recipe = replace(recipe, project=type(recipe.project)(k=1, centred=centred, among=among))
    basis, server = None, {}
    if projection == "random":
        normals = rng(31).normal(size=(2, P))
        recipe = replace(recipe, project=RandomSubspace(k=2, among=among))
        basis = pfa.random_subspace([normals[:, a:b].T for a, b in PLACES])
        server = {"directions": lambda _: normals}
    # Every kind of round: without a public client, with both public ones, with one, and without a private one.
    schedule = [[0], [0, 1, 2], [0, 1], [0], [1, 2], [0, 2]]
    toy = Toy(CLIENTS, rounds=len(schedule), steps=2, schedule=schedule, epsilons=(0.5, 8.0, 9.0))
    public = pfa.split(toy.epsilons)
    assert public == [False, True, True]
    given = drawn(toy.rounds, toy.steps, list(toy.clients), noise=noise)
    played = play(recipe, toy, THETA, scripted(given, True), server)
    more: Any = {} if plus else {"given": basis}
    trace = (pfa.run_plus if plus else pfa.run)(
        THETA, toy.known(recipe), toy.epsilons, public if among == "all" else None, schedule, *given, toy.lr, PLACES,
        k=2 if basis else 1, centred=centred, **more,
    )  # fmt: skip
    np.testing.assert_allclose(played.models(), trace.models, rtol=0, atol=TIGHT)
    assert [{c: bytes_of_update(u) for c, u in sent.items()} for sent in played.sent] == trace.sent
    assert [record.bytes_up for record in played.records] == [sum(sent.values()) for sent in trace.sent]


@pytest.mark.parametrize(("name", "recipe", "noise"), variants("fedprox", "padpfl"))
def test_proximal(name: str, recipe: Recipe, noise: bool) -> None:
    """PADPFL with factors that change, a client that is missing and one whose factor is zero; FedProx by data size."""
    first, later = [0.2, 0.5, 0.3], [0.0, 0.4, 0.6]
    schedule = [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1], [0]]
    factors = padpfl.schedule(first, [[0, 0, 0], list(np.subtract(later, first)), [0, 0, 0], [0, 0, 0]])
    faithful = "output" in str(getattr(recipe.protect, "rule", ""))
    toy = Toy(CLIENTS, rounds=5, steps=2, schedule=schedule, epsilons=(2.0, 2.0, 2.0), whole=faithful)
    if name == "padpfl":
        assert recipe.weight == Impact()
        recipe = replace(recipe, weight=Impact(factors=first, changes={"3": later}))
    else:
        sizes = np.array([c.size for c in CLIENTS], dtype=np.float64)
        factors = [sizes / sizes.sum()] * 5
    mu = recipe.local.pull()
    if not faithful:
        played, models = both(
            recipe, toy, noise,
            lambda known, given: padpfl.run(THETA, known, factors, schedule, *given, toy.lr, mu),
        )  # fmt: skip
        np.testing.assert_allclose(played.models(), models, rtol=0, atol=TIGHT)
        return
    draws, extra = rng(41).normal(size=(5, 3, P)) * noise, rng(42).normal(size=(5, P))
    everything = [[[range(c.size)] * 2 for c in CLIENTS]] * 5
    # With R = T the server adds nothing: sqrt(sum p^2) is at least max p.
    for revelations, added in ((1, True), (2, True), (5, False)):
        assert recipe.step == TwoSided()
        recipe = replace(
            recipe,
            protect=OutputPerturbation(bound=1.2, revelations=revelations),
            step=replace(recipe.step, revelations=revelations),
        )
        played = play(
            recipe, toy, THETA, lambda t, i: Script(everything[t - 1][i], [draws[t - 1][i]]),
            {"server noise": lambda number: extra[number - 1]},
        )  # fmt: skip
        models = padpfl.run_faithful(
            THETA, CLIENTS, factors, schedule, everything,
            draws,  # type: ignore[arg-type]
            extra,  # type: ignore[arg-type]
            toy.lr, mu, 1.2, revelations, 5, 2.0, 1e-3,
        )  # fmt: skip
        np.testing.assert_allclose(played.models(), models, rtol=0, atol=TIGHT)
        p = factors[0]
        assert (padpfl.server_deviation(p, 1.2, revelations, 5, 4, 2.0, 1e-3) > 0) == added
        recipe = replace(recipe, step=TwoSided())
