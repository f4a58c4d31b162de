"""The numpy references against facts that no code gave: closed forms, optima, planted truths, theorems."""

from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.conformance.references import adaptive_clip, dp_scaffold, fedadam, padpfl, pfa, robust_hdp, toy
from tests.conformance.references.given import PLACES, C, D, P, bowls, drawn, quadratic, rng, three, whole
from tests.conformance.references.toy import Array, Client
from tests.support.paths import ROOT


def test_references_know_nothing_of_the_product() -> None:
    for path in (ROOT / "tests" / "conformance" / "references").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in ("hush", "torch") for name in names), path


# The toy problem


def test_gradients_are_those_of_a_linear_layer_and_of_finite_differences() -> None:
    client, theta = three()[2], rng(3).normal(size=P)
    each = toy.gradients(theta, client.x, client.y)
    layer = torch.nn.Linear(D, C).double()
    torch.nn.utils.vector_to_parameters(torch.tensor(theta), layer.parameters())
    for j in range(client.size):
        layer.zero_grad()
        output = layer(torch.tensor(client.x[j : j + 1]))
        torch.nn.functional.cross_entropy(output, torch.tensor(client.y[j : j + 1])).backward()
        flat = torch.cat([q.grad.ravel() for q in layer.parameters() if q.grad is not None])
        np.testing.assert_allclose(each[j], flat.numpy(), atol=1e-14)
    slopes = np.zeros((client.size, P))
    curve = np.zeros((P, P))
    for q in range(P):
        h = 1e-6 * np.eye(P)[q]
        slopes[:, q] = (toy.losses(theta + h, client.x, client.y) - toy.losses(theta - h, client.x, client.y)) / 2e-6
        curve[q] = (toy.mean_gradient(theta + h, client) - toy.mean_gradient(theta - h, client)) / 2e-6
    np.testing.assert_allclose(each, slopes, atol=1e-8)
    np.testing.assert_allclose(toy.hessian(theta, client.x, client.y), curve, atol=1e-8)


def test_clipping_bounds_and_keeps_directions() -> None:
    g = np.array([3.0, 4.0, 0.3, 0.4])
    np.testing.assert_allclose(toy.clip_flat(g[:2], 1.0), [0.6, 0.8])
    np.testing.assert_allclose(toy.clip_flat(g[2:], 1.0), [0.3, 0.4])
    np.testing.assert_allclose(toy.clip_tensors(g, [(0, 2), (2, 4)], [2.5, 0.25]), [1.5, 2.0, 0.15, 0.2])
    np.testing.assert_allclose(toy.clipped_sum(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0), [0.9, 1.2])


def test_noise_is_scaled_by_clip_and_divided_by_the_nominal_batch() -> None:
    client = Client(np.zeros((1, D)), np.array([0]), 4.0, clip=0.5, z=3.0)
    noise = np.arange(P, dtype=np.float64)
    np.testing.assert_allclose(toy.noised(np.zeros(P), client, [], noise, toy.gradients), 0.5 * 3 * noise / 4)
    tensors = toy.noised_tensors(np.zeros(P), client, [], noise, toy.gradients, PLACES, [2.0, 1.0])
    np.testing.assert_allclose(tensors, np.repeat([2.0, 1.0], [C * D, C]) * 3 * noise / 4)


# DP-SCAFFOLD


def test_scaffold_ends_at_the_optimum_and_fedavg_does_not() -> None:
    a, b, lr, K = (1.0, 4.0), (0.0, 1.0), 0.1, 5
    clients = bowls(a, b)
    batches, noises = whole(400, K, 2)
    arguments = (np.zeros(1), clients, [[0, 1]] * 400, batches, noises, lr)
    optimum = np.dot(a, b) / sum(a)
    scaffold = dp_scaffold.run(*arguments, gradients=quadratic)
    assert scaffold.models[-1][0] == pytest.approx(optimum, abs=1e-12)
    assert scaffold.variates[-1].users[1][0] == pytest.approx(a[1] * (optimum - b[1]), abs=1e-12)
    fedavg = dp_scaffold.run(*arguments, control=False, gradients=quadratic)
    pull = [1 - (1 - lr * c) ** K for c in a]  # K steps go this part of the way to a client's own optimum
    assert fedavg.models[-1][0] == pytest.approx(np.dot(pull, b) / sum(pull), abs=1e-12)
    assert abs(fedavg.models[-1][0] - optimum) > 0.05


def test_scaffold_ends_at_the_optimum_of_softmax_regression_with_sampled_clients() -> None:
    clients = [Client(c.x, c.y, float(c.size)) for c in three()]
    T, l2 = 600, 0.1
    rows = [[[list(range(c.size))] * 3 for c in clients]] * T
    nothing = [[[None] * 3 for _ in clients]] * T
    turns = [[t % 3, (t + 1) % 3] for t in range(T)]
    trace = dp_scaffold.run(np.zeros(P), clients, turns, rows, nothing, 0.1, l2=l2)
    best = toy.minimum(clients, np.zeros(P), l2)
    np.testing.assert_allclose(np.mean([toy.mean_gradient(best, c, l2) for c in clients], axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(trace.models[-1], best, atol=1e-8)
    drift = dp_scaffold.run(np.zeros(P), clients, turns, rows, nothing, 0.1, l2=l2, control=False)
    assert np.linalg.norm(drift.models[-1] - best) > 1e-3


@pytest.mark.parametrize("warm", [False, True])
def test_a_variate_is_the_mean_noised_gradient_and_the_servers_is_the_mean_of_all(warm: bool) -> None:
    clients = three(clip=0.7, z=1.3)
    batches, noises = drawn(5, 4, clients, noise=True)
    x, lr = rng(5).normal(size=P), 0.2
    start = dp_scaffold.warm_start(x, clients, [[0, 2], [1]], batches[3:], noises[3:]) if warm else None
    trace = dp_scaffold.run(x, clients, [[0, 2], [1, 2], [1]], batches[:3], noises[:3], lr, variates=start)
    for variates in trace.variates:
        np.testing.assert_allclose(variates.server, np.mean(variates.users, axis=0), atol=1e-12)
    before = start.users[0] if start else np.zeros(P)
    c = start.server if start else np.zeros(P)
    seen, y = [], x
    for rows, noise in zip(batches[0][0], noises[0][0], strict=True):
        seen.append(toy.noised(y, clients[0], rows, noise, toy.gradients))
        y = y - lr * (seen[-1] + c - before)
    np.testing.assert_allclose(trace.variates[0].users[0], np.mean(seen, axis=0), atol=1e-12)
    dy, dc = trace.messages[0][0]
    np.testing.assert_allclose(dc, -dy / (4 * lr) - c, atol=1e-12)  # so the server can derive it


def test_fedsgd_with_one_full_step_is_gradient_descent() -> None:
    clients = bowls((1.0, 3.0), (0.0, 1.0))
    batches, noises = whole(7, 1, 2)
    trace = dp_scaffold.run(
        np.zeros(1), clients, [[0, 1]] * 7, batches, noises, 0.1, control=False, gradients=quadratic
    )
    # The mean of the two is 2/2 (theta - 3/4)^2 and a constant.
    assert trace.models[-1][0] == pytest.approx(0.75 * (1 - 0.8**7))


def test_metrics_of_two_bowls() -> None:
    clients = bowls((1.0, 3.0), (0.0, 1.0))
    x = np.array([2.0])  # gradients 2 and 3
    assert dp_scaffold.gradient_dissimilarity(x, clients, gradients=quadratic) == pytest.approx(0.25)
    ratio = dp_scaffold.gradient_log_dissimilarity(x, clients, gradients=quadratic)
    assert ratio == pytest.approx(math.log(6.5 / 6.25))

    def losses(theta: Array, x: Array, y: Array) -> Array:
        return y / 2 * ((theta - x) ** 2).sum(axis=1)

    gap = dp_scaffold.train_loss_gap(x, np.array([0.75]), clients, losses=losses)
    assert gap == pytest.approx(math.log10((2 - 0.75) ** 2))


# Robust-HDP


def planted() -> tuple[Array, Array]:
    r = rng(7)
    low = r.normal(size=(60, 1)) @ r.normal(size=(1, 30))
    sparse = np.where(r.random((60, 30)) < 0.05, 10 * r.normal(size=(60, 30)), 0)
    return low, sparse


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_rpca_recovers_a_planted_low_rank_and_sparse_sum(factor: float) -> None:
    low, sparse = planted()
    M = low + sparse
    L, S = robust_hdp.rpca(M, mu=factor * M.size / (4 * np.abs(M).sum()))
    np.testing.assert_allclose(L, low, atol=1e-6)
    np.testing.assert_allclose(S, sparse, atol=1e-6)


def test_the_printed_sign_of_rpca_does_not_recover_it() -> None:
    low, sparse = planted()
    M = low + sparse
    mu, lam = M.size / (4 * np.abs(M).sum()), 1 / math.sqrt(60)
    S, Y, L = np.zeros_like(M), np.zeros_like(M), np.zeros_like(M)
    for _ in range(300):
        L = robust_hdp.threshold(M - S - Y / mu, 1 / mu)
        S = robust_hdp.shrink(M - L + Y / mu, lam / mu)
        Y = Y + mu * (M - L - S)
    assert np.abs(L - low).max() > 0.1


def test_pairs_find_the_energies_of_independent_noise() -> None:
    signal, energies = rng(8).normal(size=9), np.array([1.0, 4.0, 25.0])
    noise = np.zeros((3, 9))
    noise[[0, 1, 2], [0, 1, 2]] = np.sqrt(energies)  # orthogonal, so D_ij is the sum exactly
    np.testing.assert_allclose(robust_hdp.pairwise_energies(signal + noise), energies)
    np.testing.assert_allclose(robust_hdp.by_pairs(signal + noise, [0, 1, 2]), [100 / 129, 25 / 129, 4 / 129])
    many = signal[:1] + rng(9).normal(size=(6, 200_000)) * np.arange(1, 7)[:, None]
    np.testing.assert_allclose(robust_hdp.pairwise_energies(many) / 200_000, np.arange(1, 7) ** 2, rtol=0.03)


def test_blocks_of_parameters_scale_up() -> None:
    low, sparse = planted()
    updates = (low + sparse).T
    blocks = robust_hdp.rpca_energies(updates, rows=20)
    parts = [robust_hdp.rpca(updates.T[a : a + 20])[1] for a in (0, 20, 40)]
    np.testing.assert_allclose(blocks, sum((S**2).sum(axis=0) for S in parts))


def test_averaging_by_share_is_the_weighted_mean_of_local_models() -> None:
    clients = bowls((1.0, 1.0), (0.0, 1.0))
    batches, noises = whole(1, 1, 2)
    arguments = (np.zeros(1), clients, [[0, 1]], batches, noises, 0.5)
    [model] = robust_hdp.run(*arguments, robust_hdp.by_share([1, 3]), quadratic)
    assert model[0] == pytest.approx(0.75 * 0.5)


# PFA


def test_pfa_with_all_directions_is_weiavg_and_with_fewer_is_not() -> None:
    r = rng(10)
    updates, eps = r.normal(size=(11, P)), r.uniform(0.1, 9, 11)
    public = [i < 8 for i in range(11)]
    every = pfa.aggregate(updates, eps, public, PLACES, k=C * D, centred=True)
    np.testing.assert_allclose(every, eps @ updates / eps.sum(), atol=1e-12)
    fewer = pfa.aggregate(updates, eps, public, PLACES, k=1, centred=True)
    assert np.abs(fewer - every).max() > 1e-2
    # The two means mixed by epsilon are one sum of projected updates.
    space = pfa.subspace(updates[:8], eps[:8], PLACES, 1, True)
    one = [u if public[i] else pfa.project(u, space, PLACES) for i, u in enumerate(updates)]
    np.testing.assert_allclose(fewer, eps @ np.array(one) / eps.sum(), atol=1e-12)


def test_pfa_as_printed_keeps_what_is_along_the_public_mean() -> None:
    public, private = np.array([[3.0, 4.0, 2.0], [3.0, 4.0, -4.0]]), np.array([5.0, 10.0, 7.0])
    move = pfa.aggregate(
        np.vstack([public, private]), np.array([2.0, 2.0, 1.0]), [True, True, False], [(0, 2), (2, 3)], 1, False
    )
    np.testing.assert_allclose(move, (4 * np.array([3, 4, -1]) + 11 * np.array([0.6, 0.8, 0]) + [0, 0, 7]) / 5)
    # Centred, the two differ along the last axis only, and the private update keeps that alone.
    space = pfa.subspace(public, np.ones(2), [(0, 3)], 1, centred=True)
    np.testing.assert_allclose(pfa.project(private, space, [(0, 3)]), [3, 4, 7])
    with pytest.raises(ValueError, match="rank one"):
        pfa.subspace(public, np.ones(2), [(0, 3)], 2, centred=False)
    with pytest.raises(ValueError, match="above the rank"):
        pfa.subspace(public, np.ones(2), [(0, 3)], 2, centred=True)


@pytest.mark.parametrize("centred", [False, True])
def test_pfa_plus_is_pfa_with_the_subspace_of_the_round_before(centred: bool) -> None:
    clients = three(clip=0.5, z=0.4, sizes=(4, 6, 8, 5, 5))
    batches, noises = drawn(3, 3, clients, noise=True)
    eps, public = np.array([0.5, 5.0, 6.0, 7.0, 1.0]), [False, True, True, True, False]
    arguments: Any = (
        rng(11).normal(size=P),
        clients,
        eps,
        public,
        [range(5)] * 3,
        batches,
        noises,
        0.3,
        PLACES,
        1,
        centred,
    )
    plain, plus = pfa.run(*arguments), pfa.run_plus(*arguments)
    np.testing.assert_allclose(plus.models[0], plain.models[0], atol=1e-14)

    def updates(t: int, theta: Array) -> Array:
        return np.array([toy.dp_sgd(theta, c, batches[t][i], noises[t][i], 0.3) for i, c in enumerate(clients)])

    before = updates(0, arguments[0])
    for t in (1, 2):
        space = pfa.subspace(before[1:4], eps[1:4], PLACES, 1, centred)
        before = updates(t, plus.models[t - 1])
        projected = before.copy()
        projected[[0, 4]] = [pfa.project(before[i], space, PLACES) for i in (0, 4)]
        np.testing.assert_allclose(plus.models[t], plus.models[t - 1] + eps @ projected / eps.sum(), atol=1e-12)
    assert plus.sent[0] == dict.fromkeys(range(5), 4 * P) == plain.sent[1]
    assert plus.sent[1] == plus.sent[2] == {0: 8, 1: 4 * P, 2: 4 * P, 3: 4 * P, 4: 8}


def test_random_directions_lose_the_public_ones() -> None:
    space = pfa.random_subspace([rng(12).normal(size=(b - a, 1)) for a, b in PLACES])
    u = rng(13).normal(size=P)
    once = pfa.project(u, space, PLACES)
    np.testing.assert_allclose(pfa.project(once, space, PLACES), once)
    assert np.linalg.norm(once) < np.linalg.norm(u)


def test_epsilons_split_where_they_part() -> None:
    eps = [0.1, 0.11, 10.0, 0.09, 0.1, 10.2, 0.12, 0.1]
    assert pfa.split(eps) == [e > 5 for e in eps]
    assert pfa.top_share(eps, 0.1) == [e == 10.2 for e in eps]


def test_a_client_leaves_before_it_would_exceed_its_budget() -> None:
    always = [[0, 1, 2]] * 5
    same = [[1.0, 1.6, 2.1, 2.5, 2.8]] * 3
    assert pfa.participation(same, [0.9, 1.6, 9.0], always) == [[1, 2], [1, 2], [2], [2], [2]]
    own = [[b * s / 2.8 for s in same[0]] for b in (0.9, 1.6, 9.0)]
    assert pfa.participation(own, [0.9, 1.6, 9.0], always) == always


# PADPFL


def test_padpfl_without_prox_and_with_equal_factors_is_uniform_averaging() -> None:
    clients = three(clip=0.5, z=0.8)
    batches, noises = drawn(3, 2, clients, noise=True)
    theta, all_three = rng(18).normal(size=P), [[0, 1, 2]] * 3
    ours = padpfl.run(theta, clients, [np.ones(3) / 3] * 3, all_three, batches, noises, 0.3, 0.0)
    uniform = robust_hdp.run(theta, clients, all_three, batches, noises, 0.3, robust_hdp.by_share([1, 1, 1]))
    np.testing.assert_allclose(ours, uniform, atol=1e-12)
    proximal = padpfl.run(theta, clients, [np.ones(3) / 3] * 3, all_three, batches, noises, 0.3, 1.0)
    assert np.abs(proximal[-1] - ours[-1]).max() > 1e-3


def test_prox_stops_between_the_start_and_the_clients_optimum() -> None:
    [bowl] = bowls((2.0,), (3.0,))
    y = padpfl.proximal(np.array([1.0]), bowl, [[0]] * 300, [None] * 300, 0.1, 2.0, quadratic)
    assert y[0] == pytest.approx(2.0)  # 2 (y - 3) + 2 (y - 1) = 0


def test_factors_sum_to_one_whoever_is_missing() -> None:
    p = padpfl.schedule([0.0, 1 / 3, 2 / 3], [[0, 0, 0], [2 / 3, 0, -2 / 3]])
    np.testing.assert_allclose(p[2], [2 / 3, 1 / 3, 0])
    np.testing.assert_allclose(padpfl.spread(p[2], [0, 2]), [1, 0, 0])
    np.testing.assert_allclose(padpfl.spread(np.array([0.2, 0.3, 0.5]), [1, 2]), [0, 0.375, 0.625])
    assert padpfl.spread(p[2], [2]).sum() == 0
    with pytest.raises(ValueError, match="sum to one"):
        padpfl.schedule([0.5, 0.5], [[0.1, 0.0]])


def test_server_noise_fills_up_to_what_the_mean_needs() -> None:
    p, B, R, T, m, eps, delta = np.array([0.1, 0.3, 0.6]), 2.0, 3.0, 30.0, 50, 5.0, 0.01
    client, server = (
        padpfl.client_deviation(B, R, m, eps, delta),
        padpfl.server_deviation(p, B, R, T, m, eps, delta),
    )
    needed = 2 * B * T * math.sqrt(2 * math.log(125)) * 0.6 / (m * eps)  # proof of theorem 1
    assert server**2 + client**2 * (p**2).sum() == pytest.approx(needed**2)
    edge = R * math.sqrt((p**2).sum()) / 0.6
    assert padpfl.server_deviation(p, B, R, edge, m, eps, delta) == 0
    assert padpfl.server_deviation(p, B, R, edge + 1e-6, m, eps, delta) > 0


def test_the_faithful_rounds_clip_weights_and_add_both_noises() -> None:
    clients = bowls((1.0, 1.0), (4.0, 0.5))
    batches, _ = whole(1, 100, 2)
    p, draws, last = np.array([0.25, 0.75]), [[np.array([1.0]), np.array([-2.0])]], [np.array([3.0])]
    settings = {"B": 1.0, "R": 1.0, "T": 2.0, "epsilon": 5.0, "delta": 0.01}
    [x] = padpfl.run_faithful(
        np.zeros(1), clients, [p], [[0, 1]], batches, draws, last, 0.5, 0.0, **settings, gradients=quadratic
    )
    c = math.sqrt(2 * math.log(125))
    server = 2 * c / 5 * math.sqrt(4 * 0.75**2 - (p**2).sum())
    assert x[0] == pytest.approx(0.25 * 1 + 0.75 * 0.5 + 2 * c / 5 * (0.25 - 1.5) + 3 * server)


# Adaptive clipping and FedAdam


def test_the_clip_finds_the_quantile() -> None:
    norms = [list(np.linspace(0, 10, 1001))] * 200
    clips = adaptive_clip.run(norms, 0.1, 0.3, 0.2, 1001, 0.0, [0.0] * 200)
    assert clips[-1] == pytest.approx(3.0, rel=0.02)
    assert adaptive_clip.noisy_fraction([1, 2, 3, 4], 3, 4, 2.0, 0.5) == pytest.approx(0.75 + 1 / 4)
    assert adaptive_clip.noisy_fraction([1, 2], 3, 4, 0.0, 0.0) == 0.75  # the two that did not come count half
    z = adaptive_clip.update_multiplier(1.0, 10.0)
    assert 1 / z**2 + (0.5 / 10) ** 2 == pytest.approx(1)  # two Gaussian releases, as one with multiplier 1


def test_fedadam_moves_by_the_rate_once_updates_repeat() -> None:
    move = np.array([0.5, -20.0])
    models = fedadam.run(np.zeros(2), [move] * 3000, 0.1, tau=1e-9)
    np.testing.assert_allclose(models[0], 0.1 * 0.1 * move / (0.1 * np.abs(move)), rtol=1e-6)
    np.testing.assert_allclose(models[-1] - models[-2], [0.1, -0.1], rtol=1e-6)
