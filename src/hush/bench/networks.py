"""Networks of the benchmark, as a user would write them: a transformer over tokens with learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 10


class Positions(nn.Module):
    """A learned vector for each position, added to what stands there."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(length, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + self.table


class Transformer(nn.Module):
    """Encoder layers of PyTorch over embedded tokens, the mean over positions, and a linear layer."""

    def __init__(self, layers: int, width: int, heads: int, length: int, words: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), Positions(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        out: Tensor = self.out(self.encoder(self.positions(self.words(x))).mean(1))
        return out
