"""Groups by budget: clients with equal budgets are averaged, and the groups by the noise of their means.

In the manner of GDPFed, which groups clients by their budgets, for whole updates that clients noise themselves:
`privacy.unit = "client"` and `recipe.weight = "budget_groups:BudgetGroups"`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import hush


@dataclass(frozen=True)
class BudgetGroups(hush.Weight):
    """Equal weights in a group of equal budgets; each group by the inverse variance of its mean's noise."""

    def weight(self, view: hush.RoundView, state: hush.State) -> tuple[hush.Weights, hush.State]:
        """As planned: what is declared decides, and no update."""
        _, group = view.epsilon.unique(return_inverse=True)
        members = torch.bincount(group).double()
        noise = torch.zeros_like(members).index_add_(0, group, view.planned_noise.double()) / members.square()
        inverse = 1.0 / noise.clamp_min(1e-300)
        return hush.Weights((inverse / inverse.sum() / members)[group]), state
