"""What others do with the same workload: one client after the other, one module each."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.bench.workloads import Workload
from hush.privacy.noise import replayable


def plain(work: Workload) -> Callable[[], None]:
    """An ordinary, non-private PyTorch loop over the clients."""

    def run() -> None:
        for first, batches in _batches(work):
            module = _module(work)
            optimiser = torch.optim.SGD(module.parameters(), lr=work.lr)
            for rows in batches:
                optimiser.zero_grad(set_to_none=True)
                functional.cross_entropy(module(work.x[first + rows]), work.y[first + rows]).backward()
                optimiser.step()

    return run


def opacus(work: Workload) -> Callable[[], None] | None:
    """The same with Opacus's per-example hooks, clip and noise; None where Opacus is not installed."""
    try:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer
    except ImportError:
        return None

    def run() -> None:
        for (first, batches), plan in zip(_batches(work), work.plans, strict=True):
            module = GradSampleModule(_module(work))
            optimiser = DPOptimizer(
                torch.optim.SGD(module.parameters(), lr=work.lr),
                noise_multiplier=1.0,
                max_grad_norm=plan.clip,
                expected_batch_size=plan.batch,
            )
            for rows in batches:
                optimiser.zero_grad()
                functional.cross_entropy(module(work.x[first + rows]), work.y[first + rows]).backward()
                optimiser.step()

    def quiet() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()

    return quiet


def _module(work: Workload) -> nn.Module:
    module = copy.deepcopy(work.model.module).requires_grad_(True)
    return module.to(work.x.device).train()


def _batches(work: Workload) -> list[tuple[int, list[Tensor]]]:
    """Each client's first row, and its batches: the ones that Hush draws."""
    drawn, first = [], 0
    for client, plan in enumerate(work.plans):
        source = replayable(0, client, 1)
        drawn.append((first, [plan.sample(source).to(work.x.device) for _ in range(plan.steps)]))
        first += plan.samples
    return drawn
