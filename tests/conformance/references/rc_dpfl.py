"""RC-DPFL (Malekmohammadi et al. 2024): Algorithm 1, the baselines of section 5 and its metrics.

Rounds are numbered from 1 as in the paper; `batches[0]` and `noises[0]` are those of round 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tests.conformance.references import toy
from tests.conformance.references.rc_mixture import kmeans
from tests.conformance.references.toy import Array, Client, Gradients, Losses, Rows

Batches = Sequence[Sequence[Sequence[Rows]]]
Noises = Sequence[Sequence[Sequence[Array | None]]]
Choose = Callable[[int, int, Array], int]


@dataclass
class Trace:
    """Models after each round (clusters x p) and the cluster of every client in it; round 1 of RC-DPFL has none."""

    models: list[Array] = field(default_factory=list)
    clusters: list[list[int]] = field(default_factory=list)


def full_batch_updates(
    theta: Array,
    clients: Sequence[Client],
    noises: Sequence[Sequence[Array | None]],
    lr: float,
    gradients: Gradients = toy.gradients,
) -> Array:
    """Lines 4 to 6: every client's update from full-batch steps at the common model, a row each; `noises[i][k]`."""
    rows = []
    for client, draws in zip(clients, noises, strict=True):
        everything = [range(client.size)] * len(draws)
        rows.append(toy.dp_sgd(theta, client, everything, draws, lr, gradients, divisor=client.size))
    return np.array(rows)


def shifted(image: Array, down: int, right: int, margin: int = 2) -> Array:
    """A perturbed copy of an image (channels x height x width): moved by whole pixels, the edge repeated."""
    wide = np.pad(image, ((0, 0), (margin, margin), (margin, margin)), mode="edge")
    height, width = image.shape[1:]
    return wide[:, margin - down : margin - down + height, margin - right : margin - right + width]


def augmented_update(
    theta: Array,
    client: Client,
    images: Array,
    moves: Sequence[Sequence[tuple[int, int]]],
    noise: Array,
    lr: float,
    *,
    per: str,
) -> Array:
    """Section 4.3: one step on tau N rows, each image and tau - 1 perturbed copies of it, b = tau N.

    A row moves the sum of clipped gradients by tau c. `per` "row" adds noise tau c z to it, "copy" c z as before the
    augmentation, from which the paper's smaller noise in the update follows.

    Args:
        theta: The model that was sent.
        client: Labels, clip, noise multiplier and slack; `images` take the place of its inputs.
        images: One an example, n x channels x height x width.
        moves: Of each further copy, how far each image is moved down and right.
        noise: Standard normal numbers.
        lr: Step size.
        per: What the noise is for.
    """
    tau = 1 + len(moves)
    rows = [image.ravel() for image in images]
    for each in moves:
        rows += [shifted(image, *far).ravel() for image, far in zip(images, each, strict=True)]
    many = replace(
        client,
        x=np.array(rows),
        y=np.tile(client.y, tau),
        divisor=float(tau * client.size),
        z=client.z * (tau if per == "row" else 1),
    )
    return toy.dp_sgd(theta, many, [range(many.size)], [noise], lr)


def draw(pi: Array, u: float) -> int:
    """Line 9: cluster m with probability pi[m], by a uniform u: the first m with u <= pi[0] + ... + pi[m]."""
    total = 0.0
    for m, share in enumerate(pi):
        total += share
        if u <= total:
            return m
    return len(pi) - 1


def lowest_loss(e: int, i: int, each: Array) -> int:
    """Line 22: the cluster with the lowest mean loss; `each` has a row a cluster and a column an example."""
    return int(np.argmin(each.mean(axis=1)))


def noisy_lowest_loss(bound: float, deviation: float, draws: Sequence[Sequence[Array]]) -> Choose:
    """The sound choice: sums of losses clipped at `bound`, plus deviation * draws[e - 1][i][m]; the argmin is free.

    One example moves the vector of sums by at most bound * sqrt(M); by half of that if bound/2 is taken from every
    clipped loss, which moves all sums alike and so never the argmin.
    """

    def choose(e: int, i: int, each: Array) -> int:
        sums = [sum(min(float(loss), bound) for loss in row) for row in each]
        return int(np.argmin(np.array(sums) + deviation * draws[e - 1][i]))

    return choose


def by_loss(
    e: int, models: Array, clients: Sequence[Client], choose: Choose = lowest_loss, losses: Losses = toy.losses
) -> list[int]:
    return [
        choose(e, i, np.array([losses(theta, client.x, client.y) for theta in models]))
        for i, client in enumerate(clients)
    ]


def train(
    models: Array,
    clusters: Sequence[int],
    clients: Sequence[Client],
    batches: Sequence[Sequence[Rows]],
    noises: Sequence[Sequence[Array | None]],
    lr: float,
    gradients: Gradients,
) -> Array:
    """Lines 13 to 16: local training, and every cluster moved by its members' updates with weights N_i / sum N_j."""
    out = models.copy()
    for m in range(len(models)):
        members = [i for i, cluster in enumerate(clusters) if cluster == m]
        total = sum(clients[i].size for i in members)
        for i in members:
            out[m] = out[m] + clients[i].size / total * toy.dp_sgd(
                models[m], clients[i], batches[i], noises[i], lr, gradients
            )
    return out


def run(
    theta: Array,
    clients: Sequence[Client],
    responsibilities: Array,
    uniforms: Sequence[Sequence[float]],
    E_c: int,
    batches: Batches,
    noises: Noises,
    lr: float,
    choose: Choose = lowest_loss,
    losses: Losses = toy.losses,
    gradients: Gradients = toy.gradients,
) -> Trace:
    """Algorithm 1 after its clustering: round 1 has happened (`full_batch_updates`) and moved no model.

    Args:
        theta: The common start.
        clients: All clients; all take part in every round.
        responsibilities: pi, clients x clusters.
        uniforms: `uniforms[e - 1][i]` places client i in round e, for e = 2..E_c + 1.
        E_c: Last round at whose end clusters are sampled (lines 9 and 18); those of round E_c + 2 and later go by loss
            at the models as they stand (line 22).
        batches: By round, client and step; those of round 1 are not used.
        noises: Likewise.
        lr: Step size.
        choose: How a client picks a cluster from losses.
        losses: Per-example losses.
        gradients: Per-example gradients.
    """
    M = responsibilities.shape[1]
    models = np.array([theta] * M)
    trace = Trace([models], [[]])
    for e in range(2, len(batches) + 1):
        if e <= E_c + 1:
            clusters = [draw(responsibilities[i], uniforms[e - 1][i]) for i in range(len(clients))]
        else:
            clusters = by_loss(e, models, clients, choose, losses)
        models = train(models, clusters, clients, batches[e - 1], noises[e - 1], lr, gradients)
        trace.models.append(models)
        trace.clusters.append(clusters)
    return trace


def oracle(
    theta: Array,
    clients: Sequence[Client],
    truth: Sequence[int],
    batches: Batches,
    noises: Noises,
    lr: float,
    gradients: Gradients = toy.gradients,
) -> Trace:
    """O-CDPFL: the true clusters from round 1 on. With one cluster this is DPFedAvg."""
    models = np.array([theta] * (max(truth) + 1))
    trace = Trace()
    for e in range(len(batches)):
        models = train(models, truth, clients, batches[e], noises[e], lr, gradients)
        trace.models.append(models)
        trace.clusters.append(list(truth))
    return trace


def f_cdpfl(
    starts: Array,
    clients: Sequence[Client],
    batches: Batches,
    noises: Noises,
    lr: float,
    first: Sequence[int] | None = None,
    choose: Choose = lowest_loss,
    losses: Losses = toy.losses,
    gradients: Gradients = toy.gradients,
) -> Trace:
    """f-CDPFL: by loss in every round, from M different models, or from a given `first` assignment."""
    models = starts
    trace = Trace()
    for e in range(1, len(batches) + 1):
        given = e == 1 and first is not None
        clusters = list(first or []) if given else by_loss(e, models, clients, choose, losses)
        models = train(models, clusters, clients, batches[e - 1], noises[e - 1], lr, gradients)
        trace.models.append(models)
        trace.clusters.append(clusters)
    return trace


def km_cdpfl(
    theta: Array,
    clients: Sequence[Client],
    M: int,
    batches: Batches,
    noises: Noises,
    lr: float,
    starts: Sequence[Sequence[int]] | None = None,
    per_client: bool = False,
    gradients: Gradients = toy.gradients,
) -> Trace:
    """KM-CDPFL: at the end of each round k-means on the updates, and one model for each group it finds.

    The model of a group is the mean of its members' local models. With `per_client` every client keeps a model of its
    own and adds the mean update of its group (myopic clustering as first proposed); `models` then has a row a client.
    The clusters of a round are those found at its end. `starts[e]` are the clients k-means begins with.
    """
    mine = np.array([theta] * len(clients))
    models = np.array([theta] * M)
    trace = Trace()
    for e in range(len(batches)):
        updates = np.array(
            [toy.dp_sgd(mine[i], c, batches[e][i], noises[e][i], lr, gradients) for i, c in enumerate(clients)]
        )
        clusters = kmeans(updates, M, None if starts is None else starts[e])
        after = mine.copy()
        for m in range(M):
            members = [i for i, cluster in enumerate(clusters) if cluster == m]
            total = sum(clients[i].size for i in members)
            if per_client:
                move = sum((clients[i].size / total * updates[i] for i in members), np.zeros_like(theta))
                for i in members:
                    after[i] = mine[i] + move
            elif members:
                models = models.copy()
                models[m] = sum(clients[i].size / total * (mine[i] + updates[i]) for i in members)
                for i in members:
                    after[i] = models[m]
        mine = after
        trace.models.append(mine if per_client else models)
        trace.clusters.append(clusters)
    return trace


def f_acc(accuracies: Sequence[float], best: Sequence[float]) -> float:
    """F_acc: the largest difference between two clients' costs of privacy, best_i - acc_i."""
    cost = [b - a for a, b in zip(accuracies, best, strict=True)]
    return max(abs(a - b) for a in cost for b in cost)


def f_loss(final: Sequence[float], best: Sequence[float]) -> float:
    """F_loss: the same with xi_i = f_i(theta_i) - min f_i, on training data."""
    cost = [a - b for a, b in zip(final, best, strict=True)]
    return max(abs(a - b) for a in cost for b in cost)


def worst(accuracies: Sequence[float]) -> float:
    return min(accuracies)


def disparity(accuracies: Sequence[float]) -> float:
    """max over pairs of |acc_i - acc_j|."""
    return max(abs(a - b) for a in accuracies for b in accuracies)


def minority_majority(accuracies: Sequence[float], truth: Sequence[int]) -> tuple[float, float]:
    """Mean accuracy of the smallest true cluster (the first of equals), and of all other clients."""
    counts = [list(truth).count(m) for m in range(max(truth) + 1)]
    small = int(np.argmin(counts))
    pairs = list(zip(accuracies, truth, strict=True))
    inside = [a for a, m in pairs if m == small]
    outside = [a for a, m in pairs if m != small]
    return float(np.mean(inside)), float(np.mean(outside))
