"""DP-SCAFFOLD (Noble et al. 2022): Algorithms 1 and 2, the warm start of section 3.3 and the metrics of appendix D.3.

With control variates off this is DP-FedAvg (Algorithm 2). FedSGD and DP-FedSGD are FedAvg and DP-FedAvg with K s = 1
(section 5): K = 1/s batches a round. An infinite clip and no noise make SCAFFOLD of DP-SCAFFOLD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.conformance.references import toy
from tests.conformance.references.toy import Array, Client, Gradients, Losses, Rows


@dataclass
class Variates:
    """The control variates: the server's c and every client's c_i."""

    server: Array
    users: list[Array]


@dataclass
class Trace:
    """What happened: models and variates after each round, and the messages (dy, dc) of each round by client."""

    models: list[Array] = field(default_factory=list)
    variates: list[Variates] = field(default_factory=list)
    messages: list[dict[int, tuple[Array, Array]]] = field(default_factory=list)


def sensitivity(C: float, s: float, R: int, user: bool = False) -> float:
    """S of section 3.2 for one replaced row, or of section 3.3 for all rows of a user."""
    return 2 * C / s if user else 2 * C / (s * R)


def zero(p: int, users: int) -> Variates:
    return Variates(np.zeros(p), [np.zeros(p) for _ in range(users)])


def warm_start(
    x: Array,
    clients: Sequence[Client],
    sampled: Sequence[Sequence[int]],
    batches: Sequence[Sequence[Sequence[Rows]]],
    noises: Sequence[Sequence[Sequence[Array | None]]],
    l2: float = 0.0,
    gradients: Gradients = toy.gradients,
) -> Variates:
    """Section 3.3: c_i^0 = (1/K) sum_k H_i^k(x^0) and c^0 = (1/M) sum_i c_i^0. The model does not move.

    A client that is drawn in two of these rounds keeps the later mean; one that is never drawn keeps zero.
    """
    users = [np.zeros_like(x) for _ in clients]
    for t, ids in enumerate(sampled):
        for i in ids:
            total = np.zeros_like(x)
            for rows, noise in zip(batches[t][i], noises[t][i], strict=True):
                total = total + toy.noised(x, clients[i], rows, noise, gradients) + l2 * x
            users[i] = total / len(batches[t][i])
    return Variates(sum(users, np.zeros_like(x)) / len(clients), users)


def run(
    x: Array,
    clients: Sequence[Client],
    sampled: Sequence[Sequence[int]],
    batches: Sequence[Sequence[Sequence[Rows]]],
    noises: Sequence[Sequence[Sequence[Array | None]]],
    lr: float,
    lr_global: float = 1.0,
    variates: Variates | None = None,
    control: bool = True,
    l2: float = 0.0,
    gradients: Gradients = toy.gradients,
) -> Trace:
    """Algorithm 1 (or 2 with `control=False`), `batches[t][i][k]` being S_i^k of round t.

    Args:
        x: x^0.
        clients: All M users.
        sampled: C^t for every round.
        batches: Rows by round, client and step.
        noises: Standard normal draws by round, client and step; None for no noise.
        lr: eta_l.
        lr_global: eta_g.
        variates: From `warm_start`; zero otherwise.
        control: Whether c - c_i is added to every step.
        l2: Weight of the penalty l2/2 ||x||^2, whose gradient is added after the noise.
        gradients: Per-example gradients.
    """
    M = len(clients)
    start = zero(x.size, M) if variates is None else variates
    c, users = start.server, list(start.users)
    trace = Trace()
    for t, ids in enumerate(sampled):
        sent: dict[int, tuple[Array, Array]] = {}
        for i in ids:
            y = x
            K = len(batches[t][i])
            for rows, noise in zip(batches[t][i], noises[t][i], strict=True):
                H = toy.noised(y, clients[i], rows, noise, gradients) + l2 * y
                # Line 14; the correction comes after the noise.
                y = y - lr * (H - users[i] + c) if control else y - lr * H
            if control:
                new = users[i] - c + (x - y) / (K * lr)  # line 15
                sent[i] = (y - x, new - users[i])
                users[i] = new
            else:
                sent[i] = (y - x, np.zeros_like(x))
        # Lines 20 and 21, with l = |C^t| / M.
        dx = sum((dy for dy, _ in sent.values()), np.zeros_like(x)) / len(ids)
        dc = sum((d for _, d in sent.values()), np.zeros_like(x)) / len(ids)
        x = x + lr_global * dx
        c = c + len(ids) / M * dc
        trace.models.append(x)
        trace.variates.append(Variates(c, list(users)))
        trace.messages.append(sent)
    return trace


def objective(x: Array, clients: Sequence[Client], l2: float = 0.0, losses: Losses = toy.losses) -> float:
    """F(x): the plain mean of the users' mean losses (section 3.1)."""
    return float(np.mean([toy.mean_loss(x, client, l2, losses) for client in clients]))


def train_loss_gap(
    x: Array, best: Array, clients: Sequence[Client], l2: float = 0.0, losses: Losses = toy.losses
) -> float:
    """Train Loss(t) = log10(F(x^t) - F(x*))."""
    return float(np.log10(objective(x, clients, l2, losses) - objective(best, clients, l2, losses)))


def _squares(x: Array, clients: Sequence[Client], l2: float, gradients: Gradients) -> tuple[float, float]:
    each = np.array([toy.mean_gradient(x, client, l2, gradients) for client in clients])
    return float(np.mean([g @ g for g in each])), float(each.mean(axis=0) @ each.mean(axis=0))


def gradient_dissimilarity(
    x: Array, clients: Sequence[Client], l2: float = 0.0, gradients: Gradients = toy.gradients
) -> float:
    """(1/M) sum ||grad F_i(x)||^2 - ||grad F(x)||^2."""
    mean_square, square_mean = _squares(x, clients, l2, gradients)
    return mean_square - square_mean


def gradient_log_dissimilarity(
    x: Array, clients: Sequence[Client], l2: float = 0.0, gradients: Gradients = toy.gradients
) -> float:
    """log((1/M) sum ||grad F_i(x)||^2) - log(||grad F(x)||^2)."""
    mean_square, square_mean = _squares(x, clients, l2, gradients)
    return float(np.log(mean_square) - np.log(square_mean))
