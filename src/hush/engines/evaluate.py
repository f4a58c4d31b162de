"""How good the models are, on each client's own held-out rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from hush.models import Model

_AT_ONCE = 4096


def evaluate(
    model: Model, vectors: Tensor, placed: Sequence[int], x: Tensor, y: Tensor, test: Sequence[range]
) -> tuple[tuple[float, ...], float]:
    """Accuracy of each client under the model it is placed on, and the mean loss over all rows.

    Args:
        model: Gives the logits.
        vectors: Parameters of each model, models x p.
        placed: The model number of each client.
        x: Inputs of all clients.
        y: Labels of all clients.
        test: The test rows of each client.
    """
    rows = torch.cat([torch.arange(r.start, r.stop) for r in test])
    owner = torch.repeat_interleave(torch.arange(len(test)), torch.tensor([len(r) for r in test]))
    right = torch.zeros(len(test), dtype=torch.float64)
    loss = 0.0
    for number, vector in enumerate(vectors.to(x.device)):
        mine = (torch.tensor(placed)[owner] == number).nonzero().flatten()
        for part in mine.split(_AT_ONCE):
            chosen = rows[part].to(x.device)
            logits, truth = model.logits(vector, x[chosen]), y[chosen]
            loss += functional.cross_entropy(logits.double(), truth, reduction="sum").item()
            right.index_add_(0, owner[part], (logits.argmax(1) == truth).double().cpu())
    counts = torch.tensor([len(r) for r in test], dtype=torch.float64)
    return tuple((right / counts).tolist()), loss / len(rows)
