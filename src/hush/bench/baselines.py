"""Baselines: the same workload with other libraries, one client after the other.

Each baseline samples batches in its usual way: the plain loop shuffles and splits; Opacus has its own Poisson sampler.
Tensors are indexed by whole batches, which is far faster than a loader that collates rows.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from hush.bench.workloads import Workload
from hush.seeds import rng


def plain(work: Workload) -> Callable[[], None]:
    """A non-private PyTorch loop over the clients, with their control variates if they have any."""

    def run() -> None:
        for client, first in enumerate(work.firsts):
            module, drift = _module(work), _drift(work, client)
            parameters = _trained(module)
            optimiser = torch.optim.SGD(parameters, lr=work.lr)
            for rows in shuffled(work, client):
                optimiser.zero_grad(set_to_none=True)
                functional.cross_entropy(module(work.x[first + rows]), work.y[first + rows]).backward()
                _add(parameters, drift)
                optimiser.step()

    return run


def opacus(work: Workload, trained: list[nn.Module] | None = None) -> Callable[[], None] | None:
    """The same with Opacus's sampler, per-example hooks, clipping and noise; None if Opacus is not installed.

    The trained modules are added to a list, if one is given.
    """
    try:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    except ImportError:
        return None

    def run() -> None:
        for client, (first, plan) in enumerate(zip(work.firsts, work.plans, strict=True)):
            own, drift = _fixed(_module(work)), _drift(work, client)
            module = GradSampleModule(own)
            parameters = _trained(module)
            optimiser = DPOptimizer(
                torch.optim.SGD(parameters, lr=work.lr),
                noise_multiplier=1.0,
                max_grad_norm=plan.clip,
                expected_batch_size=plan.batch,
            )
            if drift:
                optimiser.attach_step_hook(_hook(parameters, drift))
            sampler = UniformWithReplacementSampler(num_samples=plan.samples, sample_rate=plan.rate, steps=plan.steps)
            for chosen in sampler:
                rows = first + torch.tensor(chosen, device=work.x.device)
                optimiser.zero_grad()
                functional.cross_entropy(module(work.x[rows]), work.y[rows]).backward()
                optimiser.step()
            if trained is not None:
                trained.append(own)

    return _quiet(run)


def opacus_ghost(work: Workload) -> Callable[[], None] | None:
    """The same by Opacus's ghost clipping, which makes a second backward pass in place of per-example gradients."""
    try:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    except ImportError:
        return None

    def run() -> None:
        for first, plan in zip(work.firsts, work.plans, strict=True):
            module = GradSampleModuleFastGradientClipping(
                _fixed(_module(work)), max_grad_norm=plan.clip, use_ghost_clipping=True
            )
            optimiser = DPOptimizerFastGradientClipping(
                torch.optim.SGD(_trained(module), lr=work.lr),
                noise_multiplier=1.0,
                max_grad_norm=plan.clip,
                expected_batch_size=plan.batch,
            )
            loss = DPLossFastGradientClipping(module, optimiser, nn.CrossEntropyLoss())
            for chosen in UniformWithReplacementSampler(
                num_samples=plan.samples, sample_rate=plan.rate, steps=plan.steps
            ):
                rows = first + torch.tensor(chosen, device=work.x.device)
                optimiser.zero_grad()
                loss(module(work.x[rows]), work.y[rows]).backward()
                optimiser.step()

    return _quiet(run)


def double_vmap(work: Workload) -> Callable[[], None]:
    """Clients of equal batch size together, by torch.func.vmap over clients and over examples; without noise."""

    def loss(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(work.model.logits(vector, x[None]), y[None])

    each = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))

    def step(vectors: Tensor, x: Tensor, y: Tensor, clip: float, batch: int) -> Tensor:
        gradients = each(vectors, x, y)
        scale = (clip / gradients.norm(dim=2)).clamp(max=1.0)
        return vectors - (work.lr / batch) * torch.einsum("cb,cbp->cp", scale, gradients)

    def run() -> None:
        kinds = sorted({(plan.batch, plan.steps, plan.clip) for plan in work.plans})
        for batch, steps, clip in kinds:
            group = [c for c, plan in enumerate(work.plans) if (plan.batch, plan.steps) == (batch, steps)]
            vectors = work.model.start.to(work.x.device).repeat(len(group), 1)
            drawn = [[rows + work.firsts[c] for rows in shuffled(work, c)] for c in group]
            for number in range(steps):
                rows = torch.stack([mine[number] for mine in drawn])
                vectors = step(vectors, work.x[rows], work.y[rows], clip, batch)

    return run


def shuffled(work: Workload, client: int) -> Iterator[Tensor]:
    """Equal parts of repeated shuffles."""
    plan, generator = work.plans[client], rng(0, "bench", "shuffle", client)
    whole = plan.samples // plan.batch
    order = torch.empty(0, dtype=torch.int64)
    for step in range(plan.steps):
        at = step % whole
        if at == 0:
            order = torch.from_numpy(generator.permutation(plan.samples)).to(work.x.device)
        yield order[at * plan.batch : (at + 1) * plan.batch]


def _module(work: Workload) -> nn.Module:
    """The module as its user wrote it, with what is trained asking for gradients."""
    model = work.model
    module = copy.deepcopy(model.module if model.source is None else model.source).requires_grad_(False)
    for name in model.layout.names:
        module.get_parameter(name).requires_grad_(True)
    return module.to(work.x.device).train()


def _fixed(module: nn.Module) -> nn.Module:
    """The module with Opacus's own attention in place of PyTorch's, for which Opacus has no hooks."""
    from opacus.validators import ModuleValidator

    replaced = any(
        isinstance(part, nn.MultiheadAttention) and any(value.requires_grad for value in part.parameters())
        for part in module.modules()
    )
    device = next(module.parameters()).device
    return ModuleValidator.fix(module).to(device).train() if replaced else module


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [value for value in module.parameters() if value.requires_grad]


def _drift(work: Workload, client: int) -> list[Tensor]:
    if work.drifts is None:
        return []
    parts = work.drifts[client].split(work.model.layout.sizes)
    return [part.view(shape) for part, shape in zip(parts, work.model.layout.shapes, strict=True)]


def _add(parameters: list[nn.Parameter], drift: list[Tensor]) -> None:
    for parameter, part in zip(parameters, drift, strict=False):
        assert parameter.grad is not None
        parameter.grad.add_(part)


def _hook(parameters: list[nn.Parameter], drift: list[Tensor]) -> Callable[[Any], None]:
    return lambda _: _add(parameters, drift)


def _quiet(work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work()

    return run
