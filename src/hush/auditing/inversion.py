"""Gradient inversion: the training row that an update of a single row gives away, without noise and with it.

Where the inputs enter a linear layer with a bias, the gradient of each of its weights is that of the bias times the
input, so that one row's input is the ratio of the two (Phong et al. 2017): no search is needed. It is the easiest case
for an attacker: one row in the batch, one step, and the server knows when. A batch of several rows gives a mixture.

The noise is that of the client's plan for a whole run of such steps at each budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.config import Config
from hush.data import ClientData
from hush.engines.setup import prepare
from hush.models import Model
from hush.privacy import noise
from hush.seeds import rng
from hush.training.input_mean import linear_layer
from hush.training.per_example.vmap import gradients
from hush.training.select import clipped_sums

Array = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Inversion:
    """What gradients of single rows give away at one budget.

    Attributes:
        epsilon: The budget; infinite for gradients as they are.
        noise_multiplier: That of the plan; 0 without privacy.
        originals: The rows, as the first layer sees them: rows x width.
        found: What was reconstructed from their gradients.
        correlations: Of each original and its reconstruction, between their numbers.
    """

    epsilon: float
    noise_multiplier: float
    originals: Array
    found: Array
    correlations: tuple[float, ...]


def inversion(
    config: Config,
    epsilons: Sequence[float],
    *,
    root: str | None = None,
    dataset: ClientData | None = None,
    module: nn.Module | None = None,
    rows: int = 20,
    seed: int = 0,
) -> list[Inversion]:
    """Invert gradients of single training rows of the first client, at each of these budgets.

    Args:
        config: The config of a run. Its first client takes one step a round on one expected row here.
        epsilons: Budgets, or `math.inf` for gradients without clipping and noise.
        root: The directory with the public dataset files.
        dataset: The data in place of what the config names.
        module: The module in place of the model that the config names.
        rows: The number of rows.
        seed: Of the choice of rows and of the noise.
    """
    return [_inverted(config, epsilon, root, dataset, module, rows, seed) for epsilon in epsilons]


def _inverted(
    config: Config, epsilon: float, root: str | None, dataset: ClientData | None, module: nn.Module | None,
    rows: int, seed: int,
) -> Inversion:  # fmt: skip
    private = not math.isinf(epsilon)
    budgets = {"budgets": float(epsilon)} if private else {}
    local = config.local.model_copy(update={"batch_size": 1, "steps": 1, "lr": 1.0})
    privacy = config.privacy.model_copy(update=budgets)
    federation = prepare(
        config.model_copy(update={"local": local, "privacy": privacy, "recipe": {"name": "dp-fedavg"}}),
        root=root, dataset=dataset, module=module,
    )  # fmt: skip
    model, plan = federation.model, federation.schedules[0].plan
    linear_layer(model)
    x, y = federation.arrays(1)
    first, end, _ = federation.data.bounds()[0]
    chosen = torch.from_numpy(rng(seed, "inversion").permutation(end - first)[:rows] + first)
    x, y, start = x[chosen], y[chosen], model.start.to(x.device)
    if private:
        vectors, mask = start.repeat(len(x), 1), torch.ones(len(x), 1, dtype=torch.bool, device=x.device)
        clips = torch.full((len(x),), plan.clip, dtype=torch.float64, device=x.device)
        sums = clipped_sums(model, vectors, x[:, None], y[:, None], mask, clips)
        source = noise.Seeded(seed, 0, 1)
        seen = torch.stack([plan.privatise(total, source) for total in sums.unbind()])
    else:
        seen = gradients(model, start[None], x[None], y[None])[0]
    found = torch.stack([reconstructed(model, gradient) for gradient in seen]).cpu().numpy().astype(np.float32)
    originals = x.flatten(1).cpu().numpy().astype(np.float32)
    return Inversion(
        epsilon=epsilon,
        noise_multiplier=plan.noise_multiplier if private else 0.0,
        originals=originals,
        found=found,
        correlations=tuple(map(correlation, originals, found)),
    )


def reconstructed(model: Model, gradient: Tensor) -> Tensor:
    """The input of the row whose gradient this is: weights over bias, at the output that the bias knows best."""
    weight, bias = linear_layer(model).parts(gradient[None].double())
    assert bias is not None
    output = int(bias[0].abs().argmax())
    return weight[0, output] / bias[0, output]


def correlation(one: Array, other: Array) -> float:
    """The correlation of the numbers of two rows; 0 where one of them is constant."""
    a, b = (each.astype(np.float64) - float(each.mean()) for each in (one, other))
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length > 0 else 0.0
