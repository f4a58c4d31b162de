"""Central models for RC-DPFL's fairness: each client against a model of its true cluster trained without privacy.

The models without privacy depend on the data, the network and the seed alone, so all cells of a table share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hush.config import Config
from hush.reproduce.cache import cached, table_file
from hush.seeds import rng
from hush.server.run_directory import RunDir
from hush.types import HushError

if TYPE_CHECKING:
    from torch import Tensor

    from hush.engines.setup import Federation

EPOCHS = 30
BATCH = 64
RATE = 1e-3
Scores = list[dict[str, float]]


def costs(config: Config, path: Path, data: str | None) -> tuple[list[float], list[float]]:
    """Return what privacy costs each client of a finished run: lost accuracy, and added training loss."""
    from hush.engines.driver import uncentred
    from hush.engines.setup import prepare

    kept = RunDir(path).restore()
    if kept is None:
        raise HushError(f"{path}: no round has finished yet; nothing to measure")
    federation, (state, _) = prepare(config, root=data), kept
    assignments = federation.recipe.assign.assignments(range(len(federation.members)), state.slots["assign"])
    vectors = uncentred(federation, state.released, state.slots["protect"])
    ours = scores(federation, [vectors[home] for home in assignments])
    best: Scores = cached(
        table_file(path, "without-privacy.json"),
        config,
        EPOCHS,
        BATCH,
        RATE,
        compute=lambda: without_privacy(federation),
    )
    lost = [free["accuracy"] - own["accuracy"] for free, own in zip(best, ours, strict=True)]
    return lost, [own["loss"] - free["loss"] for free, own in zip(best, ours, strict=True)]


def scores(federation: Federation, vectors: Sequence[Tensor]) -> Scores:
    """Return each client's test accuracy and training loss under its own model."""
    import torch
    from torch.nn import functional

    x, y = federation.arrays(federation.config.rounds)
    found = []
    with torch.no_grad():
        for vector, (first, test, end) in zip(vectors, federation.data.bounds(), strict=True):
            logits = torch.cat([federation.model.logits(vector.to(x), part) for part in x[first:end].split(2048)])
            right = (logits[test - first :].argmax(1) == y[test:end]).double().mean()
            loss = functional.cross_entropy(logits[: test - first], y[first:test])
            found.append({"accuracy": float(right), "loss": float(loss)})
    return found


def without_privacy(federation: Federation) -> Scores:
    """Return the same under the model of its true cluster, after some epochs of Adam on the rows of all its clients."""
    import torch
    from torch.nn import functional

    x, y = federation.arrays(federation.config.rounds)
    groups = [member.group for member in federation.members]
    models: dict[int, Tensor] = {}
    for group in sorted(set(groups)):
        bounds = [b for b, own in zip(federation.data.bounds(), groups, strict=True) if own == group]
        rows = torch.cat([torch.arange(first, test) for first, test, _ in bounds])
        vector = federation.model.start.to(x).clone().requires_grad_(True)
        solver, order = torch.optim.Adam([vector], lr=RATE), rng(federation.config.seed, "central", group)
        with torch.enable_grad():
            for _ in range(EPOCHS):
                for part in rows[torch.from_numpy(order.permutation(len(rows)))].to(x.device).split(BATCH):
                    solver.zero_grad()
                    functional.cross_entropy(federation.model.logits(vector, x[part]), y[part]).backward()
                    solver.step()
        models[group] = vector.detach()
    return scores(federation, [models[group] for group in groups])
