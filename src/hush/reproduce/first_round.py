"""Metrics of the first round: noise, weights, clusters, directions of updates, and the time that projecting takes, for
tables and figures that need no more than one round, or none.

Each is a function from a config and the directory of the data to numbers by name. The empty name is the measure of a
table that has only one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hush.config import Config
from hush.recipes.slots.clusters import GmmThenLoss
from hush.recipes.slots.project import DelayedPublicSubspace
from hush.recipes.slots.weight import Balanced, EstimatedNoise
from hush.seeds import rng
from hush.server.loop import enrolled
from hush.server.run_directory import RunDir
from hush.types import HushError, RoundRecord, TaskExtras

if TYPE_CHECKING:
    from torch import Tensor

    from hush.engines.setup import Federation
    from hush.engines.simulator import Execution

Numbers = dict[str, float]
_LARGEST = 6
_DIRECTIONS = (2, 5)
_TIMES = 9


def noise(config: Config, data: str | None) -> Numbers:
    """Return Robust-HDP's table 3: the noise variance per parameter of the first round's aggregate, over lr squared."""
    from hush.engines.setup import prepare

    federation = prepare(config, root=data)
    weights, planned, _ = _first_round(federation)
    return {"": _energy(weights, planned) / (federation.model.layout.size * federation.config.local.lr**2)}


def weights(config: Config, data: str | None) -> Numbers:
    """Return how far the weights of the first round are from those of least noise (Robust-HDP, equation 8), in percent.

    The distance is half the sum of the absolute differences: the weight that is at the wrong clients. Where the noise
    is estimated, the mean error of the estimates is returned too: as they are, and after the common factor that cancels
    in the weights.
    """
    from hush.engines.setup import prepare

    given, planned, estimated = _first_round(prepare(config, root=data))
    total = sum(1 / each for each in planned)
    best = [1 / each / total for each in planned]
    found = {
        "": 50 * sum(abs(one - other) for one, other in zip(given, best, strict=True)),
        "noise over the least": _energy(given, planned) / _energy(best, planned),
        f"{_LARGEST} largest weights together": 100 * sum(sorted(given)[-_LARGEST:]),
    }
    if estimated:
        ratios = [own / true for own, true in zip(estimated, planned, strict=True)]
        factor = sorted(ratios)[len(ratios) // 2]
        found["error of the estimates"] = 100 * _mean([abs(ratio - 1) for ratio in ratios])
        found["error up to a common factor"] = 100 * _mean([abs(ratio / factor - 1) for ratio in ratios])
    return found


def plan(config: Config, data: str | None) -> Numbers:
    """Return the noise multiplier z of the first client, N z^2 with its N rows, and the noise in its update.

    Nothing is trained: all follows from budget, rows, batch and rounds (Robust-HDP, figures 2, 8 and 11).
    """
    from hush.engines.setup import prepare

    federation = prepare(config, root=data)
    own = federation.schedules[0].plan
    return {
        "": own.noise_multiplier,
        "N z^2": own.samples * own.noise_multiplier**2,
        "noise of the update": float(enrolled(federation.terms).planned_noise[0]),
    }


def clusters(config: Config, data: str | None) -> Numbers:
    """Return the success rate of the clusters that RC-DPFL learns from the first round, in percent.

    A client counts where its likeliest cluster is the true one, under the best naming. The largest overlap of two
    clusters, in percent, is that by which the recipe chooses E_c.
    """
    from hush.engines.setup import prepare

    federation = prepare(config, root=data)
    if not isinstance(federation.recipe.assign, GmmThenLoss):
        raise HushError("metric: clusters of the first round need assign = gmm-then-loss; accepted: another metric")
    with tempfile.TemporaryDirectory() as folder:
        _trained(federation, Path(folder) / "run")
        kept = RunDir(Path(folder) / "run").restore()
    assert kept is not None
    learnt = kept[0].slots["assign"]
    found = {client: int(cluster) for client, cluster in enumerate(learnt["soft"].argmax(1).tolist())}
    truth = {member.client: member.group for member in federation.members}
    return {"": 100 * matched_share(found, truth), "largest overlap": 100 * float(learnt["overlap"])}


def matched_share(placed: Mapping[int, int], truth: Mapping[int, int]) -> float:
    """Return the largest share of clients that are in their true cluster under any naming of the models."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    common = np.zeros((max(placed.values()) + 1, max(truth.values()) + 1))
    for client, model in placed.items():
        common[model, truth[client]] += 1
    return float(common[linear_sum_assignment(-common)].sum()) / len(placed)


def spectrum(config: Config, data: str | None) -> Numbers:
    """Return which part of the squared norm of the first round's updates lies in their leading directions, in percent.

    Tensor by tensor, as PFA looks for directions: in one direction of each, and in a few. Updates that were noise alone
    would have about one part in as many as there are clients in each direction.
    """
    import torch

    from hush.engines.setup import prepare

    federation = prepare(config, root=data)
    parts = trained_updates(federation).double().split(federation.model.layout.sizes, dim=1)
    # Squares of the singular values, the largest first: eigenvalues of the small Gram matrix.
    values = [torch.linalg.eigvalsh(part @ part.T).flip(0) for part in parts]
    total = sum(float(each.sum()) for each in values)

    def share(directions: int) -> float:
        return 100 * sum(float(each[:directions].sum()) for each in values) / total

    return {"": share(1), **{f"in {k} directions": share(k) for k in _DIRECTIONS}}


def projection_seconds(config: Config, data: str | None) -> Numbers:
    """Return the seconds that PFA+ takes in a round: the server for the directions, a private client to project.

    The middle of several times on this machine, on updates of the federation's size; what they are does not matter.
    """
    import torch

    from hush.engines.setup import prepare

    federation = prepare(config, root=data)
    project, view = federation.recipe.project, enrolled(federation.terms)
    if not isinstance(project, DelayedPublicSubspace):
        raise HushError(
            "metric: seconds of projecting need project = delayed-public-subspace; accepted: another metric"
        )
    layout, trusted = federation.model.layout, project.trusted(view)
    drawn = torch.from_numpy(rng(config.seed, "projection").normal(size=(len(trusted), layout.size))).float()
    public = replace(view, updates=drawn).rows(trusted.nonzero().flatten())
    middle, basis = project.found(public)
    extras = TaskExtras(slots={"middle": middle, "basis": basis})
    return {
        "": _seconds(lambda: project.found(public)),
        "seconds of a client": _seconds(lambda: project.encode(drawn[0], layout, extras)),
    }


def _seconds(do: Callable[[], object]) -> float:
    """Return how long it takes in the middle of several times."""
    found = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        do()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


PLANNED = "planned-noise"
TIMED = "projection-seconds"
FIRST_ROUND: Mapping[str, Callable[[Config, str | None], Numbers]] = {
    "first-round-noise": noise,
    "first-round-weights": weights,
    "first-round-clusters": clusters,
    "first-round-directions": spectrum,
    PLANNED: plan,
    TIMED: projection_seconds,
}
UNTRAINED = (PLANNED, TIMED)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _energy(each: list[float], planned: list[float]) -> float:
    return sum(weight**2 * own for weight, own in zip(each, planned, strict=True))


def _first_round(federation: Federation) -> tuple[list[float], list[float], list[float]]:
    """Return the weights of the first round, the planned noise and its estimates; it is trained only if it must be."""
    if not _uses_updates(federation.recipe.weight):
        view = enrolled(federation.terms)
        return federation.recipe.weight.foreseen(view).tolist(), view.planned_noise.tolist(), []
    record = _trained(federation)
    clients = list(record.weights)
    return (
        [record.weights[client] for client in clients],
        [record.noise_planned[client] for client in clients],
        [record.noise_estimated[client] for client in clients if client in record.noise_estimated],
    )


def _uses_updates(weight: object) -> bool:
    """Whether weights depend on the updates, so that a round must be trained to compute them."""
    return isinstance(weight, Balanced) or (isinstance(weight, EstimatedNoise) and weight.estimator != "declared")


def _trained(federation: Federation, out: Path | None = None) -> RoundRecord:
    """Train the first round, and return its record."""
    from hush.engines import simulator

    kept: list[RoundRecord] = []
    one = simulator.execution(federation, out, callbacks=[kept.append])
    _first_updates(one, finish=True)
    if not kept:
        raise HushError("the first round produced no update")
    return kept[0]


def trained_updates(federation: Federation) -> Tensor:
    """Train the first round, and return the updates, a row a client, as they come from training."""
    import torch

    from hush.engines import simulator

    return torch.stack(_first_updates(simulator.execution(federation), finish=False))


def _first_updates(one: Execution, *, finish: bool) -> list[Tensor]:
    """Train the first round; with `finish`, also take the server's part in it."""
    from hush.engines import simulator

    vectors = simulator.train_together([next(one)])[0]
    try:
        if finish:
            one.send(vectors)
    except StopIteration:
        pass
    finally:
        one.close()
    return vectors
