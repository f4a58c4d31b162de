"""A client's training loop in plain PyTorch, with a budget: what Opacus' PrivacyEngine does, and a ledger that lasts.

With Opacus, a program wraps model, optimizer and loader, loops over batches, and asks its accountant what it has spent:

    engine = PrivacyEngine()
    net, optimizer, loader = engine.make_private_with_epsilon(module=net, optimizer=optimizer, data_loader=loader, ...)
    spent = engine.get_epsilon(delta)

With Hush these are the three lines marked below. The budget is that of the ledger file: a second run is refused.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import hush


def main(ledger: str) -> hush.Guarantee:
    """Train for three rounds, print the accuracy on public rows, and return the guarantee card."""
    x, y = load_digits(return_X_y=True)
    rows, targets = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    trainer = hush.PrivateTrainer(  # 1. in place of make_private_with_epsilon
        net, rows[:1500], targets[:1500], epsilon=4.0, delta=1e-5, rounds=3, batch_size=64, lr=0.5, classes=10,
        ledger=ledger,
    )  # fmt: skip
    for number in range(1, 4):
        done = trainer.fit(net.state_dict(), round=number)  # 2. in place of the loop over batches
        net.load_state_dict(done.weights)
    spent = done.guarantee.epsilon_spent  # 3. in place of get_epsilon: over the life of the ledger

    hits = net(rows[1500:]).argmax(1) == targets[1500:]
    sys.stdout.write(f"accuracy {hits.float().mean():.3f}, epsilon {spent:.3f} of {done.guarantee.epsilon_budget}\n")
    return done.guarantee


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "client.ledger")
