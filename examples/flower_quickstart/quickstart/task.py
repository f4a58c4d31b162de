"""The network and the rows of the quickstart: as in Flower's own, with the digits that scikit-learn brings."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch."""
        out: Tensor = self.fc(self.pool(torch.relu(self.conv(x))).flatten(1))
        return out


def load_data(partition: int, partitions: int) -> tuple[Tensor, Tensor]:
    """The training rows of one client: every so many rows of the first 1,500."""
    x, y = _digits()
    return x[:1500][partition::partitions], y[:1500][partition::partitions]


def load_test() -> tuple[Tensor, Tensor]:
    """Public rows that no client trains with."""
    x, y = _digits()
    return x[1500:], y[1500:]


def _digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
