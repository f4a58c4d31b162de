"""Metrics that the papers report besides accuracy, computed on a finished run. All of it looks at data without noise:
for simulations.

DP-SCAFFOLD: the gap between the training loss and the least there is, and how much the clients' gradients differ.
RC-DPFL: how fairly clients fare, against the best model for each true cluster, trained centrally and without privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hush.config import parse
from hush.engines.driver import ACCURACY, uncentred
from hush.engines.fingerprint import identity
from hush.engines.results import by_group
from hush.engines.setup import Federation, own_data, prepare
from hush.models import Model, unflatten
from hush.seeds import rng
from hush.server.participation import nothing_trained, out_of_budget, trained
from hush.server.run_directory import MANIFEST, RunDir, check_identity, read_json
from hush.types import HushError

_CONVEX = "logreg"
_EPOCHS = 30
_BATCH = 64


@dataclass(frozen=True)
class Rows:
    """The rows of one client."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def rows_of(federation: Federation, number: int) -> list[Rows]:
    """Return each client's rows in a round, behind the model's fixed features, in float64."""
    inputs, labels = (each.cpu() for each in federation.arrays(number))
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    return [Rows(inputs[a:b], labels[a:b], inputs[b:c], labels[b:c]) for a, b, c in federation.data.bounds()]


def measures(federation: Federation, models: Tensor, assignments: Sequence[int], number: int) -> dict[str, Any]:
    """Return every metric that applies, by name.

    `models` are the released ones, `assignments` the model of each client.
    """
    rows, decay = rows_of(federation, number), federation.config.local.weight_decay
    model, vectors = federation.model, models.double()
    found: dict[str, Any] = {
        "train_loss": _mean([loss_of(model, vectors[h], r, decay) for h, r in zip(assignments, rows, strict=True)])
    }
    if len(models) == 1:
        gradients = torch.stack([gradient_of(model, vectors[0], each, decay) for each in rows])
        found |= dissimilarity(gradients)
        if model.name == _CONVEX:
            best = optimum(model, rows, decay)
            gap = _mean([loss_of(model, vectors[0], r, decay) - loss_of(model, best, r, decay) for r in rows])
            found["train_loss_gap"] = gap
            found["log10_train_loss_gap"] = math.log10(gap) if gap > 0 else -math.inf
    return {**found, **fairness(federation, vectors, assignments, rows)}


def measure_run(
    path: Path, data: str | None, dataset: object = None, module: nn.Module | None = None, bound: bool = False
) -> dict[str, Any]:
    """Return every metric of the run in a directory; `dataset` and `module` are the user's own, if it had any.

    `bound`: with the convergence bound of the recipe's paper, beside what was measured.

    Raises a `HushError` where they are missing, or are not those of the run, and where nothing was trained.
    """
    manifest = read_json(path / MANIFEST)
    for what, given, argument in (("data", dataset, "dataset"), ("model", module, "model")):
        kept = manifest.get(what)
        if not isinstance(kept, Mapping):
            raise HushError(f"{path}: its manifest does not name the {what}; only simulations can be measured")
        if kept["own"] and given is None:
            raise HushError(
                f"{path}: was run with {kept['name']}, which the directory does not hold; measure it from Python, "
                f"with hush.measure({str(path)!r}, {argument}=...)"
            )
    config = parse(manifest["config"])
    kept = RunDir(path).restore()
    if kept is None:
        raise HushError(f"{path}: no round has finished yet; nothing to measure")
    state, records = kept
    if not trained(records):
        why = nothing_trained(out_of_budget(records), config.data.clients)
        raise HushError(f"{path}: {why}; only the initial model could be measured")
    rows = None if dataset is None else own_data(dataset, config)
    federation = prepare(config, root=data, dataset=rows, module=module)
    check_identity(path, manifest, identity(federation))
    assignments = federation.recipe.assign.assignments(range(len(federation.members)), state.slots["assign"])
    released = uncentred(federation, state.released, state.slots["protect"])
    found = measures(federation, released, assignments, state.round)
    if not bound:
        return found
    from hush.engines.convergence import described

    return {**found, "bound": described(federation, released, records)}


def dissimilarity(gradients: Tensor) -> dict[str, float]:
    """Return the variance of the gradients (clients x p): mean of squares minus square of mean; and its log."""
    each, whole = float(gradients.square().sum(1).mean()), float(gradients.mean(0).square().sum())
    return {
        "gradient_dissimilarity": each - whole,
        "gradient_log_dissimilarity": math.log(each) - math.log(whole) if whole > 0 else math.inf,
    }


def fairness(
    federation: Federation, vectors: Tensor, assignments: Sequence[int], rows: Sequence[Rows]
) -> dict[str, Any]:
    """Return scores of the worst client, the smallest true cluster and the others, and the cost of privacy."""
    model, decay = federation.model, federation.config.local.weight_decay
    groups, primary = [member.group for member in federation.members], federation.model.objective.primary
    higher = primary.higher_is_better
    score = [_score(model, vectors[h], r) for h, r in zip(assignments, rows, strict=True)]
    found: dict[str, Any] = {"worst": (min if higher else max)(score), "disparity": max(score) - min(score)}
    found |= by_group(score, groups)
    best = {
        group: _central(model, [r for r, g in zip(rows, groups, strict=True) if g == group], decay)
        for group in set(groups)
    }
    gained = [_score(model, best[g], r) - own for own, g, r in zip(score, groups, rows, strict=True)]
    lost = gained if higher else [-each for each in gained]
    excess = [
        loss_of(model, vectors[h], r, 0.0) - loss_of(model, best[g], r, 0.0)
        for h, g, r in zip(assignments, groups, rows, strict=True)
    ]
    name = "f_acc" if primary.name == ACCURACY else f"f_{primary.name}"
    return {**found, name: max(lost) - min(lost), "f_loss": max(excess) - min(excess)}


def optimum(model: Model, rows: Sequence[Rows], decay: float) -> Tensor:
    """Return the minimiser of the mean of the clients' losses by L-BFGS, for convex models."""
    vector = model.start.double().clone().requires_grad_(True)
    solver = torch.optim.LBFGS(
        [vector],
        max_iter=2000,
        history_size=50,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        solver.zero_grad()
        value = torch.stack([_objective(model, vector, each, decay) for each in rows]).mean()
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(loss)
    return vector.detach()


def _central(model: Model, rows: Sequence[Rows], decay: float) -> Tensor:
    """Return the best model for some clients together: the optimum if the model is convex, else some epochs of Adam."""
    if model.name == _CONVEX:
        return optimum(model, rows, max(decay, 1e-4))
    x, y = torch.cat([each.x for each in rows]).float(), torch.cat([each.y for each in rows])
    vector = model.start.clone().requires_grad_(True)
    solver = torch.optim.Adam([vector], lr=1e-3)
    order = rng(0, "central")
    with torch.enable_grad():
        for _ in range(_EPOCHS):
            for part in torch.from_numpy(order.permutation(len(y))).split(_BATCH):
                solver.zero_grad()
                model.objective.loss(model.logits(vector, x[part]), y[part], reduction="mean").backward()
                solver.step()
    return vector.detach().double()


def _outputs(model: Model, vector: Tensor, x: Tensor) -> Tensor:
    """Return the output in the precision of the vector; untrained parameters are converted."""
    tensors = {name: value.to(vector.dtype) for name, value in model.module.named_parameters()}
    given = {**tensors, **unflatten(vector, model.layout)}
    out: Tensor = torch.func.functional_call(model.module, given, (_in_precision(x, vector.dtype),))
    return out


def _in_precision(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def _objective(model: Model, vector: Tensor, rows: Rows, decay: float) -> Tensor:
    loss = model.objective.loss(_outputs(model, vector, rows.x), rows.y, reduction="mean")
    return loss + 0.5 * decay * vector.square().sum()


def loss_of(model: Model, vector: Tensor, rows: Rows, decay: float) -> float:
    """Return the mean loss of a client's training rows, with the penalty of the weights."""
    with torch.no_grad():
        return float(_objective(model, vector, rows, decay))


def gradient_of(model: Model, vector: Tensor, rows: Rows, decay: float) -> Tensor:
    """Return the gradient of `loss_of`."""
    leaf = vector.clone().requires_grad_(True)
    with torch.enable_grad():
        (found,) = torch.autograd.grad(_objective(model, leaf, rows, decay), leaf)
    return found


def _score(model: Model, vector: Tensor, rows: Rows) -> float:
    with torch.no_grad():
        each = model.objective.row_scores(_outputs(model, vector, rows.test_x), rows.test_y)
        return float(model.objective.score_of(each.mean()))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
