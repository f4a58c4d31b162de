"""The model, and the rows of each client: a third of the digits of scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Net(nn.Sequential):
    """Logistic regression."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 10))


def digits() -> tuple[Tensor, Tensor]:
    """All rows."""
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def rows(client: int) -> tuple[Tensor, Tensor]:
    """The rows of one of three clients."""
    x, y = digits()
    return x[:1440][client::3], y[:1440][client::3]


def test_rows() -> tuple[Tensor, Tensor]:
    """Rows that no client has."""
    x, y = digits()
    return x[1440:], y[1440:]
