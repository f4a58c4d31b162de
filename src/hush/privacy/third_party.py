"""DP-SCAFFOLD's claim against a third party, who sees only the models, and what the server learns about one user.

Noble, Bellet and Dieuleveut (2022, arXiv:2111.09278) give every user the same noise, sigma_g times the sensitivity 2 C
/ (s R) of a mean over s R of its R rows, drawn without replacement. Their bound for T rounds: a Gaussian of noise
sigma_g sqrt(l M), subsampled by s, composed K times, subsampled by l over the M users, composed T times; each
subsampling by theorem 9 of Wang, Balle and Kasiviswanathan (2019, arXiv:1808.00087). Neighbours differ in one replaced
row. The names are the paper's (`ell` is its l).

Guarantees:
    `claimed_epsilon` and `claimed_rounds` follow the paper to the round. They depend on `ASSUMPTION`, which every
    `Claim` carries: always display it with them.
    `server_epsilon` does not need the assumption: it bounds what the server learns about one user's row from that
    user's updates, by the paper's own loose bound, so that the two can be compared. `tight_server_epsilon` bounds the
    same by `hush.privacy.accounting.api`, and is the one to report as the guarantee.
    `user_epsilon` bounds what the server learns about all rows of a user, in the variant with noise for users.

Edge cases:
    Delta is 1 / (M R) unless given.
    Orders are the integers from 2 to 100. The paper also interpolates between two integer orders; its bound is
    monotone there, so nothing lower can be found.
    The bound of a subsampled step does not vanish as noise grows, so more noise does not always allow more rounds.
    At a rate of 1 nothing is sampled, and the bound is that of the plain Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hush.privacy.accounting import api, gaussian
from hush.privacy.accounting.cost import Cost
from hush.types import HushError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

ASSUMPTION = (
    "Against a third party, this epsilon is the paper's claim: the gain of sqrt(l M) from summing the users' "
    "noise is not proved for K > 1, where users drift apart between local steps."
)

_MOST_ORDER = 100
_ORDERS = np.arange(2.0, _MOST_ORDER + 1.0)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Both epsilons of one run.

    Attributes:
        epsilon: Claimed against a third party.
        delta: For every epsilon here.
        rounds: All rounds.
        seen: Rounds in which the server saw the user of the next two figures.
        server_epsilon: Against the server, by the same bound.
        tight_server_epsilon: Against the server, by a tighter bound.
        assumption: The assumption behind `epsilon`.
    """

    epsilon: float
    delta: float
    rounds: int
    seen: int
    server_epsilon: float
    tight_server_epsilon: float
    assumption: str = ASSUMPTION


def claim(
    sigma_g: float,
    s: float,
    ell: float,
    K: int,
    T: int,
    M: int,
    R: int,
    delta: float | None = None,
    seen: int | None = None,
) -> Claim:
    """Return both; `seen` is the mean number of rounds of a user unless given."""
    seen = max(1, round(ell * T)) if seen is None else seen
    return Claim(
        epsilon=claimed_epsilon(sigma_g, s, ell, K, T, M, R, delta),
        delta=_delta(M, R, delta),
        rounds=T,
        seen=seen,
        server_epsilon=server_epsilon(sigma_g, s, K, seen, M, R, delta),
        tight_server_epsilon=tight_server_epsilon(sigma_g, s, K, seen, M, R, delta),
    )


def claimed_epsilon(
    sigma_g: float, s: float, ell: float, K: int, T: int, M: int, R: int, delta: float | None = None
) -> float:
    """Return the epsilon that the paper claims against a third party after T rounds; see `ASSUMPTION`.

    Args:
        sigma_g: Noise of a local step relative to its sensitivity.
        s: Fraction of a user's rows in a local step.
        ell: Fraction of the users in a round.
        K: Local steps per round.
        T: Rounds.
        M: Users.
        R: Training rows of a user.
        delta: 1 / (M R) unless given.
    """
    _check(sigma_g=sigma_g, s=s, ell=ell, K=K, T=T, M=M)
    return _least(T * _round(sigma_g, s, ell, K, M), _delta(M, R, delta))


def claimed_rounds(
    epsilon: float, sigma_g: float, s: float, ell: float, K: int, M: int, R: int, delta: float | None = None
) -> int:
    """Return the largest number of rounds whose `claimed_epsilon` is at most `epsilon`; 0 if not even one."""
    _check(epsilon=epsilon, sigma_g=sigma_g, s=s, ell=ell, K=K, M=M)
    delta, one = _delta(M, R, delta), _round(sigma_g, s, ell, K, M)
    rounds = math.floor(float(np.max((epsilon + math.log(delta) / (_ORDERS - 1.0)) / one)))
    # The division may have been rounded either way across an integer.
    near = (count for count in (rounds + 1, rounds, rounds - 1) if count > 0)
    return next((count for count in near if _least(count * one, delta) <= epsilon), 0)


def server_epsilon(sigma_g: float, s: float, K: int, seen: int, M: int, R: int, delta: float | None = None) -> float:
    """Return what the server learns about one row of a user seen in this many rounds, by the paper's bound."""
    _check(sigma_g=sigma_g, s=s, K=K, seen=seen)
    return _least(seen * K * _subsampled(_gaussian(sigma_g), s), _delta(M, R, delta))


def tight_server_epsilon(
    sigma_g: float, s: float, K: int, seen: int, M: int, R: int, delta: float | None = None
) -> float:
    """Return the same by the tighter bound for Gaussian noise that `hush.privacy.accounting.api` uses."""
    _check(sigma_g=sigma_g, s=s, K=K, seen=seen)
    delta = _delta(M, R, delta)
    # sigma_g is relative to the replace-one sensitivity, twice the clipping norm; a cost is relative to the norm.
    steps = Cost(
        what="model update",
        kind="fixed-gaussian",
        noise=2.0 * sigma_g,
        steps=seen * K,
        samples=R,
        batch=max(1, round(s * R)),
    )
    return api.epsilon(steps.event(), delta, "replace-one", "rdp")


def user_epsilon(sigma_g: float, s: float, K: int, seen: int, delta: float) -> float:
    """Return what the server learns about all rows of a user seen in this many rounds, with the noise for users.

    Section 3.3 gives a step noise of sigma_g S, S = 2 C / s. If all rows of a user change, the clipped mean of a batch
    moves by at most 2 C, whichever rows were sampled: a Gaussian of noise sigma_g / s, without a gain from sampling,
    K times in each of the rounds. That composition is exact.

    Args:
        sigma_g: Noise of a local step relative to S.
        s: Fraction of a user's rows in a local step.
        K: Local steps per round.
        seen: Rounds in which the server sees the user.
        delta: The delta for which the epsilon holds.
    """
    _check(sigma_g=sigma_g, s=s, K=K, seen=seen)
    return gaussian.epsilon_of(sigma_g / (s * math.sqrt(K * seen)), delta)


@lru_cache(maxsize=1024)
def _round(sigma_g: float, s: float, ell: float, K: int, M: int) -> Array:
    """Renyi divergences of one round against a third party, as claimed."""
    return _subsampled(K * _subsampled(_gaussian(sigma_g * math.sqrt(ell * M)), s), ell)


def _gaussian(noise: float) -> Array:
    return _ORDERS / (2.0 * noise**2)


def _subsampled(divergences: Array, rate: float) -> Array:
    """Theorem 9 of Wang et al. for a mechanism whose pure epsilon is infinite."""
    if rate == 1.0:
        return divergences
    terms = math.log(2.0) + (_ORDERS - 1.0) * divergences
    second = float(divergences[0])
    terms[0] = second + min(math.log(2.0), math.log(4.0) + math.log(-math.expm1(-second)))
    terms = _log_binomials() + terms + _ORDERS * math.log(rate)
    result: Array = np.logaddexp(0.0, np.logaddexp.reduce(terms, axis=1)) / (_ORDERS - 1.0)
    return result


@lru_cache(maxsize=1)
def _log_binomials() -> Array:
    """Rows are orders; columns are the number chosen, from 2 up; minus infinity if that exceeds the order."""
    choose = [[math.comb(n, k) for k in range(2, _MOST_ORDER + 1)] for n in range(2, _MOST_ORDER + 1)]
    return np.array([[math.log(ways) if ways else -math.inf for ways in row] for row in choose])


def _least(divergences: Array, delta: float) -> float:
    return max(0.0, float(np.min(divergences - math.log(delta) / (_ORDERS - 1.0))))


def _delta(M: int, R: int, delta: float | None) -> float:
    _check(M=M, R=R)
    delta = 1.0 / (M * R) if delta is None else delta
    if not 0.0 < delta < 1.0:
        raise HushError(f"delta: found {delta!r}; accepted: a number between 0 and 1, both excluded")
    return delta


def _check(**arguments: float) -> None:
    for name, value in arguments.items():
        if name in ("s", "ell"):
            accepted, holds = "a number above 0 and at most 1", 0.0 < value <= 1.0
        elif name == "epsilon":
            accepted, holds = "a positive number", 0.0 < value < math.inf
        elif name == "sigma_g":
            accepted, holds = "a number from 0.001 to 1,000,000", 1e-3 <= value <= 1e6
        else:
            accepted, holds = "an integer, 1 or more", 1 <= value < math.inf and value == math.floor(value)
        if not holds:
            raise HushError(f"{name}: found {value!r}; accepted: {accepted}")
