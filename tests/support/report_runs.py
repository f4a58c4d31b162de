"""Run and comparison directories with made-up but plausible numbers, and a reader of the pages made from them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hush.config import Config, config_hash
from hush.privacy import noise
from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.seeds import rng
from hush.server.loop import ServerState
from hush.server.run_directory import RunDir, to_json, write_atomically
from hush.types import Guarantee, RoundRecord, RunResult

CLIENTS, ROUNDS, STEPS, DELTA = 20, 20, 3, 1e-4
BUDGETS = (0.2, 0.5, 1.0, 3.0)
BATCHES = (16, 32)
SIMULATED = "test accuracy per client: computed on held-out rows without noise, in simulations only"


def epsilon_after(rate: float, z: float, steps: int) -> float:
    return api.epsilon_after(rate, z, [steps], DELTA, "add-remove", "pld")[0]


def guarantee(client: int, rounds: int, **changes: Any) -> Guarantee:
    """A card as the engine would write it: the noise is round, and what it costs is what the accountant says."""
    batch, z = BATCHES[client % 2], (6.0, 3.0, 2.0, 1.0)[client % 4]
    rate = batch / 72
    cost = Cost(what="model update", kind="poisson-gaussian", noise=z, steps=STEPS, rate=rate)
    made = Guarantee(
        client=client, epsilon_budget=BUDGETS[client % 4] * 10, epsilon_spent=epsilon_after(rate, z, rounds * STEPS),
        delta=DELTA, relation="add-remove", accountant="pld", sampler="poisson", noise=noise.SEEDED,
        not_covered=(SIMULATED,), samples=72, batch_size=batch, rounds=rounds, steps=rounds * STEPS, sample_rate=rate,
        clip=1.0, noise_multiplier=z, stages=((dataclasses.asdict(cost),),),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def record(number: int, seed: int = 0, **changes: Any) -> RoundRecord:
    draw = rng(seed, "made up", number)
    planned = {c: 10.0 ** (-(c % 4)) * (1 + c / 50) for c in range(CLIENTS)}
    inverse = {c: 1 / value for c, value in planned.items()}
    level = 0.9 - 0.8 * 0.8**number
    made = RoundRecord(
        round=number,
        weights={c: value / sum(inverse.values()) for c, value in inverse.items()},
        noise_estimated={c: value * float(draw.uniform(0.8, 1.25)) for c, value in planned.items()},
        noise_planned=planned,
        refused={},
        charged=tuple(inverse),
        accuracy_per_client=tuple(float(level + draw.uniform(-0.08, 0.08)) for _ in range(CLIENTS)),
        loss=2.3 * 0.9**number,
        seconds=0.4 * number,
    )
    return dataclasses.replace(made, **changes)


def make_run(
    path: Path,
    *,
    recipe: str = "robust-hdp",
    rounds: int = ROUNDS,
    finished: bool = True,
    noise_mode: str = "seeded",
    seed: int = 1,
    card: Mapping[str, Any] | None = None,
    records: list[RoundRecord] | None = None,
    command: str = "hush run demo.toml --out runs/demo",
    not_covered: tuple[str, ...] = (SIMULATED,),
) -> Path:
    """A run directory through the engine's own writer, with made-up numbers."""
    config = Config.model_validate(
        {
            "seed": seed,
            "rounds": ROUNDS,
            "privacy": {"budgets": "dist2", "noise": noise_mode},
            "recipe": {"name": recipe},
        }
    )
    versions = {"python": "3.11.2", "hush": "0.1.0", "torch": "2.13.0"}
    directory = RunDir.create(
        path,
        {
            "config": config.model_dump(), "config_hash": config_hash(config), "seed": seed, "recipe": recipe,
            "parameters": 650, "command": command, "started": "2026-11-15T08:00:00Z", "versions": versions,
        },
    )  # fmt: skip
    model = torch.zeros(1, 4)
    records = records if records is not None else [record(number, seed) for number in range(1, rounds + 1)]
    for each in records:
        directory.save(ServerState(each.round, model, model, {"step": {}}), each)
    if finished:
        label = noise.SECURE if noise_mode == "secure" else noise.SEEDED
        last = records[-1].accuracy_per_client
        result = RunResult(
            recipe=recipe, dataset="digits", model="logreg", rounds=rounds, seed=seed,
            accuracy={"mean": sum(last) / CLIENTS, "min": min(last), "max": max(last), "std": 0.03},
            accuracy_per_client=last, loss=records[-1].loss, ended="all rounds are done",
            guarantees=tuple(guarantee(c, rounds, **{"noise": label, **(card or {})}) for c in range(CLIENTS)),
            not_covered=not_covered, seconds=8.2, versions=versions, config_hash=config_hash(config),
            config=config.model_dump(),
        )  # fmt: skip
        directory.finish(result, {"model.safetensors": save({"weight": model[0]})})
    return path


def make_comparison(
    path: Path, recipes: tuple[str, ...] = ("weiavg", "robust-hdp"), seeds: tuple[int, ...] = (1, 2)
) -> Path:
    entries: dict[str, Any] = {}
    for place, recipe in enumerate(recipes):
        runs = []
        for seed in seeds:
            where = f"{recipe.replace('/', '_')}/seed-{seed}"
            make_run(path / where, recipe=recipe, seed=seed)
            accuracy = {"mean": 0.7 + 0.1 * place, "min": 0.6 + 0.01 * seed, "max": 0.9, "std": 0.02}
            runs.append({"seed": seed, "path": where, "accuracy": accuracy, "loss": 0.4})
        own = [f"only {recipe} reveals this"]
        entries[recipe] = {
            "accuracy": {"mean": 0.7 + 0.1 * place, "min": 0.69, "max": 0.71, "std": 0.0123},
            "runs": runs,
            "not_covered": [*own, SIMULATED],
        }
    summary = {"command": "hush compare demo.toml --seeds 2", "seeds": list(seeds), "recipes": entries}
    write_atomically(path / "comparison.json", to_json(summary))
    return path


class Page(HTMLParser):
    """The visible text, the elements and the numbers of the charts of a page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.charts: dict[str, Any] = {}
        self._inside = self._figure = ""
        self.feed(content)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "figure":
            self._figure = dict(attrs)["id"]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""
        if tag == "figure":
            self._figure = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script" and self._figure:
            self.charts[self._figure] = json.loads(data)
        elif self._inside not in ("script", "style", "title", "text"):
            self.words.append(data)

    @property
    def scripts(self) -> int:
        """How many elements hold code."""
        return sum(tag == "script" and "type" not in attrs for tag, attrs in self.tags)
