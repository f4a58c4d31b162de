"""Metrics of the first round: noise and weights, for tables and figures that need no more than one round, or none.

Each is a function from a config and the directory of the data to numbers by name. The empty name is the measure of a
table that has only one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hush.config import Config
from hush.recipes.slots.weight import Balanced, EstimatedNoise
from hush.server.loop import enrolled
from hush.types import HushError, RoundRecord

if TYPE_CHECKING:
    from hush.engines.setup import Federation

Numbers = dict[str, float]
_LARGEST = 6


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


PLANNED = "planned-noise"
FIRST_ROUND: Mapping[str, Callable[[Config, str | None], Numbers]] = {
    "first-round-noise": noise,
    "first-round-weights": weights,
    PLANNED: plan,
}


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


def _trained(federation: Federation) -> RoundRecord:
    """Train the first round, and return its record."""
    from hush.engines import simulator

    kept: list[RoundRecord] = []
    one = simulator.execution(federation, callbacks=[kept.append])
    asked = next(one)
    try:
        one.send(simulator.train_together([asked])[0])
    except StopIteration:
        pass
    finally:
        one.close()
    if not kept:
        raise HushError("the first round produced no update")
    return kept[0]
