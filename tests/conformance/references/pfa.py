"""PFA and PFA+ (Liu et al. 2022): Algorithms 1 to 5, the two budget strategies of section 4.2 and what is sent.

Updates are local minus global model; the paper has them the other way round, which no projection notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.conformance.references import toy
from tests.conformance.references.toy import Array, Client, Gradients, Rows

Places = Sequence[tuple[int, int]]
FLOAT32 = 4


@dataclass(frozen=True)
class Subspace:
    """For each tensor a centre m and an orthonormal basis V, a column a direction."""

    centres: list[Array]
    bases: list[Array]


def split(
    epsilons: Sequence[float],
    means: tuple[float, float] | None = None,
    variances: tuple[float, float] | None = None,
    shares: tuple[float, float] = (0.5, 0.5),
    floor: float = 1e-6,
    iterations: int = 1000,
) -> list[bool]:
    """Who is public: the upper component of a mixture of two Gaussians on the epsilons (section 4.1, remark 2).

    EM from a given start; by default the smallest and the largest epsilon, with the variance of all. `floor` is added
    to every variance. A client is public if the upper component is the likelier one.
    """
    x = np.array(epsilons, dtype=np.float64)
    mu = np.array(means if means is not None else (x.min(), x.max()), dtype=np.float64)
    var = np.array(variances if variances is not None else (x.var() + floor, x.var() + floor), dtype=np.float64)
    pi = np.array(shares, dtype=np.float64)
    r = np.zeros((len(x), 2))
    for _ in range(iterations):
        for i in range(len(x)):
            log = np.log(pi) - 0.5 * np.log(2 * np.pi * var) - (x[i] - mu) ** 2 / (2 * var)
            r[i] = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
        n = r.sum(axis=0) + 1e-300
        pi = n / n.sum()
        mu = r.T @ x / n
        var = np.array([(r[:, c] * (x - mu[c]) ** 2).sum() / n[c] for c in range(2)]) + floor
    upper = int(np.argmax(mu))
    return [bool(row[upper] > 0.5) for row in r]


def top_share(epsilons: Sequence[float], share: float = 0.1) -> list[bool]:
    """The other choice of remark 2: the clients with the largest budgets, at least one; of equals the earlier."""
    count = max(1, round(share * len(epsilons)))
    best = sorted(range(len(epsilons)), key=lambda i: -epsilons[i])[:count]
    return [i in best for i in range(len(epsilons))]


def group_mean(updates: Array, epsilons: Array) -> Array:
    """The mean with weights W_S(eps_m) = eps_m / sum of eps (eq. 4)."""
    return (epsilons / epsilons.sum()) @ updates


def weiavg(updates: Array, epsilons: Array) -> Array:
    """Algorithm 1, line 7."""
    return group_mean(updates, epsilons)


def subspace(public: Array, epsilons: Array, places: Places, k: int, centred: bool) -> Subspace:
    """The top-k directions of the public updates (n x p), tensor by tensor.

    Not centred is Algorithm 3 as printed: the eigenvector of the outer product of the weighted mean, hence k = 1.
    Centred is what the authors ran: m is the plain mean of the public updates and V holds the top-k principal
    directions around it. A single public client cannot be centred and is treated as not centred. A tensor with fewer
    directions gets fewer.
    """
    if not centred and k > 1:
        raise ValueError("the outer product of one vector has rank one")
    if centred and k > max(1, len(public) - 1):
        raise ValueError("k is above the rank of the public updates")
    centres, bases = [], []
    for a, b in places:
        block = public[:, a:b]
        if centred and len(public) > 1:
            m = block.mean(axis=0)
            rows = block - m
        else:
            m = np.zeros(b - a)
            rows = group_mean(block, epsilons)[None, :]
        _, s, V = np.linalg.svd(rows, full_matrices=False)
        # Directions without any spread are rounding errors.
        kept = [j for j in range(min(k, len(s))) if s[j] > 1e-12 * s[0] and s[0] > 0]
        centres.append(m)
        bases.append(V[kept].T)
    return Subspace(centres, bases)


def random_subspace(bases: Sequence[Array]) -> Subspace:
    """The ablation of section 5.2.2: given matrices (Gaussian, one a tensor), orthonormalised; no centre."""
    return Subspace([np.zeros(len(B)) for B in bases], [np.linalg.qr(B)[0] for B in bases])


def compress(update: Array, space: Subspace, places: Places) -> list[Array]:
    """Algorithm 4, line 11: V' (u - m), k numbers a tensor. This is all that a private client sends."""
    parts = zip(places, space.centres, space.bases, strict=True)
    return [V.T @ (update[a:b] - m) for (a, b), m, V in parts]


def restore(coordinates: Sequence[Array], space: Subspace) -> Array:
    """Algorithm 5, line 3: m + V a."""
    parts = zip(coordinates, space.centres, space.bases, strict=True)
    return np.concatenate([m + V @ a for a, m, V in parts])


def project(update: Array, space: Subspace, places: Places) -> Array:
    """Algorithm 3, line 6: m + V V' (u - m)."""
    return restore(compress(update, space, places), space)


def mix(public: Array, eps_public: Array, private: Array, eps_private: Array) -> Array:
    """Algorithm 3, line 8: two group means, each with the sum of its epsilons (the private one after projection)."""
    a, b = eps_public.sum(), eps_private.sum()
    return a / (a + b) * public + b / (a + b) * private


def aggregate(
    updates: Array,
    epsilons: Array,
    public: Sequence[bool],
    places: Places,
    k: int,
    centred: bool,
    given: Subspace | None = None,
) -> Array:
    """Algorithm 3. `given` takes the place of the public subspace (random projection).

    Without a public client nothing is projected; without a private one nothing needs to be.
    """
    is_public = np.array(public, dtype=bool)
    if is_public.all() or (given is None and not is_public.any()):
        return weiavg(updates, epsilons)
    eps_private = epsilons[~is_public]
    private = group_mean(updates[~is_public], eps_private)
    if given is None:
        given = subspace(updates[is_public], epsilons[is_public], places, k, centred)
    projected = project(private, given, places)
    if not is_public.any():
        return projected
    eps_public = epsilons[is_public]
    return mix(group_mean(updates[is_public], eps_public), eps_public, projected, eps_private)


@dataclass
class Trace:
    """Models after each round, and the bytes that each client sent in it (float32 numbers)."""

    models: list[Array] = field(default_factory=list)
    sent: list[dict[int, int]] = field(default_factory=list)


def run(
    theta: Array,
    clients: Sequence[Client],
    epsilons: Sequence[float],
    public: Sequence[bool] | None,
    sampled: Sequence[Sequence[int]],
    batches: Sequence[Sequence[Sequence[Rows]]],
    noises: Sequence[Sequence[Sequence[Array | None]]],
    lr: float,
    places: Places,
    k: int = 1,
    centred: bool = False,
    given: Subspace | None = None,
    gradients: Gradients = toy.gradients,
) -> Trace:
    """Algorithm 2: PFA. Without `public`, the clients of each round are divided (line 5)."""
    eps = np.array(epsilons, dtype=np.float64)
    trace = Trace()
    for t, ids in enumerate(sampled):
        updates = np.array([toy.dp_sgd(theta, clients[i], batches[t][i], noises[t][i], lr, gradients) for i in ids])
        # One client has the largest budget of its round.
        found = [True] if len(ids) == 1 else split(eps[list(ids)].tolist())
        trusted = found if public is None else [public[i] for i in ids]
        theta = theta + aggregate(updates, eps[list(ids)], trusted, places, k, centred, given)
        trace.models.append(theta)
        trace.sent.append(dict.fromkeys(ids, FLOAT32 * theta.size))
    return trace


def run_plus(
    theta: Array,
    clients: Sequence[Client],
    epsilons: Sequence[float],
    public: Sequence[bool],
    sampled: Sequence[Sequence[int]],
    batches: Sequence[Sequence[Sequence[Rows]]],
    noises: Sequence[Sequence[Sequence[Array | None]]],
    lr: float,
    places: Places,
    k: int = 1,
    centred: bool = False,
    gradients: Gradients = toy.gradients,
) -> Trace:
    """Algorithms 4 and 5: PFA+. Private clients project on the subspace of the round before, and send coordinates.

    A round is a warm-up, as in PFA, as long as there is no subspace. A round without a public client keeps the last
    one.
    """
    eps = np.array(epsilons, dtype=np.float64)
    space: Subspace | None = None
    trace = Trace()
    for t, ids in enumerate(sampled):
        full = {i: toy.dp_sgd(theta, clients[i], batches[t][i], noises[t][i], lr, gradients) for i in ids}
        ours, theirs = [i for i in ids if public[i]], [i for i in ids if not public[i]]
        if space is None:
            updates = np.array([full[i] for i in ids])
            move = aggregate(updates, eps[list(ids)], [public[i] for i in ids], places, k, centred)
            sent = dict.fromkeys(ids, FLOAT32 * theta.size)
        else:
            messages = {i: compress(full[i], space, places) for i in theirs}
            sent = dict.fromkeys(ours, FLOAT32 * theta.size)
            sent |= {i: FLOAT32 * sum(a.size for a in messages[i]) for i in theirs}
            w = eps[theirs] / eps[theirs].sum() if theirs else np.zeros(0)
            mean = [sum(w[j] * messages[i][c] for j, i in enumerate(theirs)) for c in range(len(places))]
            if not theirs:
                move = group_mean(np.array([full[i] for i in ours]), eps[ours])
            elif not ours:
                move = restore(mean, space)
            else:
                known = group_mean(np.array([full[i] for i in ours]), eps[ours])
                move = mix(known, eps[ours], restore(mean, space), eps[theirs])
        if ours:
            space = subspace(np.array([full[i] for i in ours]), eps[ours], places, k, centred)
        theta = theta + move
        trace.models.append(theta)
        trace.sent.append(sent)
    return trace


def participation(
    spend: Sequence[Sequence[float]], budgets: Sequence[float], sampled: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Who takes part in each round (section 4.2): a client that would exceed its budget in the round stays out.

    `spend[i][r]` is what client i has spent once it has taken part r + 1 times. Under the heterogeneous strategy it is
    a curve of its own that reaches its budget after the planned number of rounds; under the uniform one the noise, and
    so the curve, is the same for all, and small budgets are used up first. The check comes before the round.
    """
    done = [0] * len(budgets)
    rounds = []
    for ids in sampled:
        here = [i for i in ids if done[i] < len(spend[i]) and spend[i][done[i]] <= budgets[i]]
        for i in here:
            done[i] += 1
        rounds.append(here)
    return rounds
