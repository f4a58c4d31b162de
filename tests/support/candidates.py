"""The candidates of a sweep within the budget, whose noised scores are attacked with and without one held-out row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hush import Simulation
from hush.auditing.trade_off import Planned
from hush.privacy import noise
from hush.privacy.accounting import gaussian
from hush.privacy.accounting.cost import Cost
from hush.seeds import derive
from hush.tuning import SCORES, noised_scores, tuned

Array = NDArray[np.float64]
CLAIM, DELTA = 4.0, 1e-3


def planned() -> Planned:
    """The evaluation of candidates, with noise for the claim."""
    cost = Cost(what=SCORES, kind="gaussian", noise=gaussian.noise_for(CLAIM, DELTA), steps=1)
    return Planned(costs=(cost,), delta=DELTA, relation="add-remove")


def scores_of_candidates(repeats: int, seed: int) -> tuple[Array, Array]:
    """The scores of three candidates without and with one held-out row, projected onto what that row changes."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    given = {"clients": 2, "rounds": 1, "recipe": "dp-fedavg", "epsilon": 4.0, "delta": 1e-3, "batch_size": 8}
    made = [
        Simulation((x, (x[:, 0] > 0).astype(int)), "logreg", lr=lr, partition="iid", **given)  # type: ignore[arg-type]
        for lr in (0.1, 0.5, 2.0)
    ]
    candidates = {f"lr {number}": one.config for number, one in enumerate(made)}
    whole = list(tuned(candidates, made[0]._preparation(), compare=False).runs.values())
    (cost,) = planned().costs
    data = whole[0].federation.data
    exact = replace(cost, noise=0.0)
    source = noise.Seeded(seed, 0, 0)
    released = noised_scores(whole, 0, exact, source)

    def without(row: int) -> list[object]:
        fewer = replace(data, test=(np.delete(data.test[0], row), *data.test[1:]))
        return [replace(run, federation=replace(run.federation, data=fewer)) for run in whole]

    gaps = [released - noised_scores(without(row), 0, exact, source) for row in range(len(data.test[0]))]  # type: ignore[arg-type]
    row = max(range(len(gaps)), key=lambda number: float(gaps[number].norm()))
    along = gaps[row] / gaps[row].norm()
    scores = [
        np.array(
            [
                float(noised_scores(runs, 0, cost, noise.Seeded(derive(seed, name, run), 0, 1)) @ along)  # type: ignore[arg-type]
                for run in range(repeats)
            ]
        )
        for name, runs in (("absent", without(row)), ("present", whole))
    ]
    return scores[0], scores[1]
