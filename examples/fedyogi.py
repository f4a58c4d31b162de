"""FedYogi (Reddi et al. 2021, https://arxiv.org/abs/2003.00295): a custom server step in one file."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import hush


@dataclass(frozen=True)
class FedYogi(hush.ServerStep):
    """As FedAdam, but the second moment moves by (1 - beta2) move^2, however far it is from there."""

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise ValueError(f"tau: expected a positive number, found {self.tau}")

    def start(self, models: Tensor) -> hush.State:
        """Return zero momentum, and a second moment of tau squared."""
        return {"first": torch.zeros_like(models), "second": torch.full_like(models, self.tau**2)}

    def step(self, models: Tensor, move: Tensor, state: hush.State, rng: hush.ServerRng) -> tuple[Tensor, hush.State]:
        """Move by the first moment over the root of the second."""
        square = move.square()
        first = self.beta1 * state["first"] + (1 - self.beta1) * move
        second = state["second"] - (1 - self.beta2) * square * torch.sign(state["second"] - square)
        return models + self.lr * first / (second.sqrt() + self.tau), {"first": first, "second": second}
