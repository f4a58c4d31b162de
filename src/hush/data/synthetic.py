"""Synthetic users of DP-SCAFFOLD, newly sampled or as in its code, and scikit-learn's digits."""

from __future__ import annotations

import contextlib
import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hush.seeds import rng

DIMENSION = 40
CLASSES = 10
CHANGED = 0.05

Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def synthetic_users(
    clients: int, samples: int, alpha: float, beta: float, seed: int
) -> tuple[Features, Labels, Labels]:
    """Return features, labels and owners of `clients` users with `samples` rows each (DP-SCAFFOLD, appendix D.2).

    `alpha` is the variance of the users' mean models and `beta` (nu in the appendix) that of their mean features; at
    (0, 0) users still differ. One label in twenty is changed to another class, independently. A user's rows depend only
    on the seed and on its own number, so adding users does not change the existing ones.
    """
    users = [_user(user, samples, alpha, beta, seed) for user in range(clients)]
    x = np.concatenate([features for features, _ in users])
    y = np.concatenate([labels for _, labels in users])
    return x, y, np.repeat(np.arange(clients, dtype=np.int64), samples)


def _user(user: int, samples: int, alpha: float, beta: float, seed: int) -> tuple[Features, Labels]:
    gen = rng(seed, "synthetic", user)
    weights = gen.normal(np.sqrt(alpha) * gen.standard_normal((DIMENSION, CLASSES)))
    bias = gen.normal(np.sqrt(alpha) * gen.standard_normal(CLASSES))
    centre = gen.normal(np.sqrt(beta) * gen.standard_normal(DIMENSION))
    spread = np.arange(1, DIMENSION + 1) ** -0.6  # the standard deviations of the variances j^-1.2
    x = centre + spread * gen.standard_normal((samples, DIMENSION))
    truth = np.argmax(x @ weights + bias, axis=1)
    shift = np.where(gen.random(samples) < CHANGED, gen.integers(1, CLASSES, samples), 0)
    return x.astype(np.float32), ((truth + shift) % CLASSES).astype(np.int64)


def published_users(clients: int, samples: int, alpha: float, beta: float) -> tuple[Features, Labels, Labels]:
    """Return the users of DP-SCAFFOLD's public code, from NumPy's legacy generator at seed 0: always the same rows.

    The code intends to scale each feature of a user to [0, 1], but uses the minimum and maximum of one row: row j for
    feature j. Rows are then normalised. This determines how hard the task is, so it is reproduced.
    """
    old = np.random.RandomState(0)
    centres = np.sqrt(beta) * old.randn(clients, DIMENSION) + old.randn(clients, DIMENSION)
    weights = np.sqrt(alpha) * old.randn(clients, DIMENSION, CLASSES) + old.randn(clients, DIMENSION, CLASSES)
    biases = np.sqrt(alpha) * old.randn(clients, CLASSES) + old.randn(clients, CLASSES)
    spread = np.diag(np.arange(1, DIMENSION + 1) ** -1.2)
    x = np.stack([old.multivariate_normal(centre, spread, samples) for centre in centres])
    truth = np.argmax(x @ weights + biases[:, None], axis=2).ravel()
    changed = old.binomial(1, CHANGED, truth.size) == 1
    y = np.where(changed, old.randint(0, CLASSES, truth.size), truth)
    for j in range(min(DIMENSION, samples)):
        low, high = x[:, j].min(axis=1), x[:, j].max(axis=1)
        x[:, :, j] = (x[:, :, j] - low[:, None]) / (high - low)[:, None]
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    owner = np.repeat(np.arange(clients, dtype=np.int64), samples)
    return x.reshape(-1, DIMENSION).astype(np.float32), y.astype(np.int64), owner


def digits() -> tuple[Features, Labels]:
    """Return the 1,797 handwritten digits of scikit-learn, (n, 1, 8, 8) in [0, 1]."""
    table = _digits_table()
    return (table[:, :-1].reshape(-1, 1, 8, 8) / 16.0).astype(np.float32), table[:, -1].astype(np.int64)


def _digits_table() -> npt.NDArray[np.float64]:
    """Return the pixels and the class of each digit, read from scikit-learn's file: to import it takes a second."""
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        with contextlib.suppress(OSError), gzip.open(Path(folder) / "datasets" / "data" / "digits.csv.gz") as file:
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    return np.column_stack([pixels, classes])
