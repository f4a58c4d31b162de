"""RC-DPFL's reference against planted clusters, closed forms and Algorithm 1's own identities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.conformance.references import rc_dpfl, rc_mixture, robust_hdp, toy
from tests.conformance.references.given import D, P, drawn, rng, three
from tests.conformance.references.toy import Array, Client


def clouds() -> tuple[Array, list[int]]:
    truth = [0, 1, 2] * 5
    centres = rng(19).normal(size=(3, 40))
    return np.array([centres[m] for m in truth]) + 0.3 * rng(14).normal(size=(15, 40)), truth


def test_mixture_and_kmeans_recover_separated_clusters() -> None:
    points, truth = clouds()
    flat = rc_mixture.features(points)
    assert flat.min() == 0
    assert flat.max() == 1
    mixture = rc_mixture.gmm(flat, 3)
    for labels in (mixture.responsibilities.argmax(axis=1), rc_mixture.kmeans(points, 3)):
        assert len({(a, int(b)) for a, b in zip(truth, labels, strict=True)}) == 3
    assert rc_mixture.max_overlap(mixture) < 0.01
    assert rc_mixture.best_count(flat, [2, 3]) == 3
    # Where the clusters differ in few coordinates, standardising drowns them.
    few = np.array([5 * np.eye(3, 40)[m] for m in truth]) + 0.3 * rng(14).normal(size=(15, 40))
    found = [rc_mixture.gmm(rc_mixture.features(few, standardise=s), 3).responsibilities for s in (True, False)]
    assert [len(set(zip(truth, pi.argmax(axis=1).tolist(), strict=True))) == 3 for pi in found] == [False, True]


def test_overlap_is_the_shared_mass_of_two_densities() -> None:
    mixture = rc_mixture.Mixture(np.array([[0.0, 0.0], [0.3, 0.4]]), np.array([0.04, 0.04]), np.ones(2) / 2, np.eye(2))
    t = np.linspace(-3, 3, 200_001)
    shared = np.minimum(np.exp(-(t**2) / 0.08), np.exp(-((t - 0.5) ** 2) / 0.08)) / math.sqrt(2 * math.pi * 0.04)
    assert rc_mixture.max_overlap(mixture) == pytest.approx(shared.sum() * (t[1] - t[0]), abs=1e-6)
    assert rc_mixture.sampled_rounds(0.25, 21) == 7


def test_one_cluster_is_dp_fedavg_from_the_second_round_on() -> None:
    clients = three(clip=0.5, z=0.8)
    batches, noises = drawn(4, 2, clients, noise=True)
    theta, u = rng(15).normal(size=P), rng(16).random((4, 3))
    ours = rc_dpfl.run(theta, clients, np.ones((3, 1)), u, 2, batches, noises, 0.3)  # type: ignore[arg-type]
    sizes = robust_hdp.by_share([c.size for c in clients])
    theirs = robust_hdp.run(theta, clients, [[0, 1, 2]] * 3, batches[1:], noises[1:], 0.3, sizes)
    np.testing.assert_allclose([m[0] for m in ours.models[1:]], theirs, atol=1e-12)
    oracle = rc_dpfl.oracle(theta, clients, [0, 0, 0], batches[1:], noises[1:], 0.3)
    np.testing.assert_allclose([m[0] for m in oracle.models], theirs, atol=1e-12)


def flipped() -> tuple[list[Client], list[int]]:
    """Two groups with opposite labels."""
    truth = [0, 1, 1, 0, 1]
    x = [rng(20 + i).normal(size=(40, D)) for i in range(5)]
    return [Client(a, (a[:, 0] > 0).astype(int) ^ m, 40.0) for a, m in zip(x, truth, strict=True)], truth


def test_clusters_are_found_from_updates_and_kept_by_losses() -> None:
    clients, truth = flipped()
    rounds = 6
    batches = [[[range(40)] for _ in clients]] * rounds
    noises = [[[None] for _ in clients]] * rounds
    small = [Client(c.x, c.y, 7.0) for c in clients]  # the first round divides by all, not by the batch
    first = rc_dpfl.full_batch_updates(np.zeros(P), small, noises[0], 1.0)
    np.testing.assert_allclose(first[0], -toy.mean_gradient(np.zeros(P), clients[0]), atol=1e-14)
    pi = rc_mixture.gmm(rc_mixture.features(first), 2).responsibilities
    u = rng(17).random((rounds, 5))
    trace = rc_dpfl.run(np.zeros(P), clients, pi, u, 2, batches, noises, 1.0)  # type: ignore[arg-type]
    right = [[t ^ flip for t in truth] for flip in (0, 1)]
    assert trace.clusters[1] in right
    assert trace.clusters[1:] == [trace.clusters[1]] * 5
    # Clusters that are sampled at the end of round E_c are those of round E_c + 1.
    mixed = [0, 0, 1, 1, 1]
    kept = rc_dpfl.run(np.zeros(P), clients, np.eye(2)[mixed], u, 2, batches, noises, 1.0)  # type: ignore[arg-type]
    assert kept.clusters[1] == kept.clusters[2] == mixed
    assert kept.clusters[3] == truth
    by_loss = rc_dpfl.f_cdpfl(trace.models[-1], clients, batches, noises, 1.0)
    assert by_loss.clusters == [trace.clusters[-1]] * rounds
    both = [rc_dpfl.km_cdpfl(np.zeros(P), clients, 2, batches, noises, 1.0, per_client=p) for p in (False, True)]
    assert both[0].clusters[0] in right
    np.testing.assert_allclose(both[0].models[0][both[0].clusters[0]], both[1].models[0], atol=1e-12)


def test_a_cluster_is_drawn_by_its_probability() -> None:
    assert [rc_dpfl.draw(np.array([0.2, 0.5, 0.3]), u) for u in (0.0, 0.2, 0.21, 0.7, 0.71, 1.0)] == [0, 0, 1, 1, 2, 2]


def test_the_noisy_choice_clips_and_adds() -> None:
    each = np.array([[9.0, 0.1, 0.1], [1.0, 1.0, 1.0]])  # one outlier hides the better model
    assert rc_dpfl.lowest_loss(1, 0, each) == 1
    silent = [[np.zeros(2)]]
    assert rc_dpfl.noisy_lowest_loss(1.0, 1.0, silent)(1, 0, each) == 0
    assert rc_dpfl.noisy_lowest_loss(1.0, 1.0, [[np.array([1.9, 0.0])]])(1, 0, each) == 1


def test_fairness_of_four_clients() -> None:
    accuracies, truth = [80.0, 90.0, 95.0, 91.0], [1, 0, 0, 0]
    assert rc_dpfl.f_acc(accuracies, [95.0, 97.0, 98.0, 97.0]) == 12
    assert rc_dpfl.f_loss([1.0, 0.5], [0.25, 0.25]) == 0.5
    assert (rc_dpfl.worst(accuracies), rc_dpfl.disparity(accuracies)) == (80, 15)
    assert rc_dpfl.minority_majority(accuracies, truth) == (80, 92)
