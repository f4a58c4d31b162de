"""Audits of correct training: lower bounds over many seeds in each setting, for docs/audit.md.

The results go into results/audits.json. Run it from the repository: `OMP_NUM_THREADS=1 .venv/bin/python -m
scripts.audits [SETTING ...]`. What is measured replaces what the file has of the same setting. The page is written by
`scripts/planted_bugs.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hush.auditing.target import Target

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "audits.json"
SEEDS = 20
CONFIDENCES = (0.95, 0.999)
CANDIDATES = "scores of candidates"
LAST = "sufficient statistics"
TWO = {"kind": "two-datasets"}


@dataclass(frozen=True)
class Setting:
    """What is audited, and how."""

    name: str
    target: Callable[[], Target]
    options: Mapping[str, Any] = field(default_factory=dict)


def settings() -> list[Setting]:
    """All settings, in the order of the page."""
    from hush.auditing.target import target
    from hush.config import load
    from hush.engines.setup import prepare
    from tests.statistical.checks import BESIDE, releasing
    from tests.support.worst_case import worst_case

    def worst(**changes: Any) -> Callable[[], Target]:
        return lambda: worst_case(**changes)

    def mixed() -> Target:
        return target(prepare(load(ROOT / "scripts" / "mixed_budgets.toml")))

    thousand = {"kind": "one-run", "canaries": 1000}
    return [
        Setting("one full batch", worst(), {**TWO, "runs": 10_000}),
        Setting("one full batch, a row replaced", worst(relation="replace-one"), {**TWO, "runs": 4_000}),
        Setting("one full batch, delta 0.01", worst(delta=1e-2), {**TWO, "runs": 3_000}),
        Setting("one full batch, a row replaced, delta 0.01", worst(delta=1e-2, relation="replace-one"),
                {**TWO, "runs": 3_000}),
        Setting("half batches, 2 rounds of 2 steps", worst(batch=4, rounds=2), {**TWO, "runs": 3_000}),
        Setting("half batches, 3 rounds of 2 steps, delta 0.01", worst(batch=4, rounds=3, delta=1e-2),
                {**TWO, "runs": 3_000}),
        Setting("persons with 20 rows each", worst(rows=20), {**TWO, "runs": 3_000}),
        Setting("a client as a whole", worst(unit="client"), {**TWO, "runs": 3_000}),
        *(Setting(f"one full batch with {name}", partial(releasing, sections), {**TWO, "runs": 3_000})
          for name, sections in BESIDE.items() if name != LAST),
        Setting("1,000 rows, delta 1e-5", worst(samples=1000, batch=1000, delta=1e-5), {**thousand, "runs": 1}),
        Setting("1,000 rows, delta 1e-5, 8 runs", worst(samples=1000, batch=1000, delta=1e-5),
                {**thousand, "runs": 8}),
        Setting("1,000 rows, epsilon 8, delta 1e-8", worst(epsilon=8.0, samples=1000, batch=1000, delta=1e-8),
                {**thousand, "runs": 1}),
        Setting("digits, mixed budgets", mixed, {"kind": "one-run", "runs": 80}),
        Setting(CANDIDATES, worst()),
        # At the end, so that the settings before it keep their seeds.
        Setting(f"one full batch with {LAST}", partial(releasing, BESIDE[LAST]), {**TWO, "runs": 3_000}),
    ]  # fmt: skip


def measured(setting: Setting, number: int) -> dict[str, Any]:
    """The bounds for every seed at both confidences, from the same runs."""
    if setting.name == CANDIDATES:
        return measured_candidates(number)
    from hush.auditing.run import judged, observe

    target, began = setting.target(), time.perf_counter()
    bounds: dict[str, dict[str, list[float]]] = {str(c): {"lower": [], "any": []} for c in CONFIDENCES}
    releases: dict[str, dict[str, Any]] = {}
    scores = found = None
    refuted = dict.fromkeys(map(str, CONFIDENCES), 0)
    # Seeds of its own for each setting: equal ones would draw equal noise, and show the same thing twice.
    seeds = [number * SEEDS + seed for seed in range(SEEDS)]
    for seed in seeds:
        scores = observe(target, seed=seed, **setting.options)
        for confidence in CONFIDENCES:
            found = judged(target, scores, confidence)
            bounds[str(confidence)]["lower"].append(round(found.epsilon_lower, 4))
            bounds[str(confidence)]["any"].append(round(found.epsilon_lower_any, 4))
            refuted[str(confidence)] += found.refuted
            for each in found.releases if confidence == CONFIDENCES[0] else ():
                claimed = round(each.epsilon_claimed, 4)
                own = releases.setdefault(each.what, {"epsilon_claimed": claimed, "lower": []})
                own["lower"].append(round(each.epsilon_lower, 4))
    assert found is not None
    return {
        "kind": found.kind,
        "unit": found.unit,
        "relation": found.relation,
        "options": dict(setting.options),
        "config": json.loads(target.config.model_dump_json()),
        "canaries": found.canaries,
        "runs": found.runs,
        "rounds": found.rounds,
        "steps": found.steps,
        "delta": found.delta,
        "epsilon_claimed": found.epsilon_claimed,
        "seeds": seeds,
        "bounds": bounds,
        "refuted": refuted,
        "releases": releases,
        "seconds": round(time.perf_counter() - began, 1),
    }


def measured_candidates(number: int) -> dict[str, Any]:
    """The same for the scores of candidates, which a sweep releases once, alone."""
    from hush.auditing import statistics
    from hush.tuning import SCORES
    from tests.support.candidates import DELTA, planned, scores_of_candidates

    plan, began, repeats = planned(), time.perf_counter(), 1_000
    bounds: dict[str, dict[str, list[float]]] = {str(c): {"lower": [], "any": []} for c in CONFIDENCES}
    refuted = dict.fromkeys(map(str, CONFIDENCES), 0)
    seeds = [number * SEEDS + seed for seed in range(SEEDS)]
    for seed in seeds:
        scores = scores_of_candidates(repeats, seed)
        for confidence in CONFIDENCES:
            found = statistics.two_datasets(*scores, DELTA, confidence)
            scale = plan.least_refuted(found.refutes)
            lower = 0.0 if math.isinf(scale) else plan.epsilon(scale)
            bounds[str(confidence)]["lower"].append(round(lower, 4))
            bounds[str(confidence)]["any"].append(round(found.epsilon(DELTA), 4))
            refuted[str(confidence)] += scale < 1.0
    (cost,) = plan.costs
    lower_bounds = bounds[str(CONFIDENCES[0])]["lower"]
    return {
        "kind": "two-datasets",
        "unit": "row",
        "relation": plan.relation,
        "options": {"runs": repeats},
        "config": {"noise": cost.noise},
        "canaries": 1,
        "runs": repeats,
        "rounds": 1,
        "steps": 1,
        "delta": DELTA,
        "epsilon_claimed": plan.epsilon(),
        "seeds": seeds,
        "bounds": bounds,
        "refuted": refuted,
        "releases": {SCORES: {"epsilon_claimed": round(plan.epsilon(), 4), "lower": lower_bounds}},
        "seconds": round(time.perf_counter() - began, 1),
    }


def table(stored: Mapping[str, Any]) -> list[str]:
    """The lines of the page, one for each setting."""
    return [_line(name, found) for name, found in stored["settings"].items()]


def _line(name: str, found: Mapping[str, Any]) -> str:
    claim, usual, strict = found["epsilon_claimed"], *(found["bounds"][str(c)] for c in CONFIDENCES)
    lower = usual["lower"]
    many = (
        f"{found['canaries']:,} canaries, {found['runs']:,} runs"
        if found["kind"] == "one-run"
        else f"{found['runs']:,}"
    )
    return (
        f"| {name} | `{found['kind']}` | {many.replace(', 1 runs', ', 1 run')} | {claim:.2f} "
        f"| {min(lower):.2f}, {mean(lower):.2f}, {max(lower):.2f} | {mean(lower) / claim:.2f} "
        f"| {mean(usual['any']):.2f} | {mean(strict['lower']):.2f}, {max(strict['lower']):.2f} "
        f"| {found['refuted'][str(CONFIDENCES[1])]} of {len(lower)} |"
    )


def lines_by_release(stored: Mapping[str, Any]) -> list[str]:
    """The lines for each release alone, from the settings in which it goes with updates."""
    lines = []
    for name, found in stored["settings"].items():
        for what, own in found["releases"].items():
            if len(found["releases"]) > 1:
                lower = mean(own["lower"])
                lines.append(f"| {name} | {what} | {own['epsilon_claimed']:.2f} | {lower:.2f} |")
    return lines


def main() -> None:
    """Measure the settings that are named, or all."""
    from hush.engines.results import versions

    known = {setting.name: (number, setting) for number, setting in enumerate(settings())}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("setting", nargs="*", default=[], help="Names of settings; all by default.")
    wanted = parser.parse_args().setting or list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"unknown settings: {', '.join(unknown)}; accepted: {', '.join(known)}")
    for name in wanted:
        number, setting = known[name]
        found = measured(setting, number)
        stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"settings": {}}
        kept = {**stored["settings"], name: found}
        RESULTS.write_text(
            json.dumps(
                {
                    "command": "OMP_NUM_THREADS=1 .venv/bin/python -m scripts.audits",
                    "versions": versions(),
                    "confidences": list(CONFIDENCES),
                    "settings": {each: kept[each] for each in known if each in kept},
                },
                indent=1,
            )
            + "\n",
            encoding="utf-8",
        )
        bounds = found["bounds"]["0.95"]["lower"]
        assert all(math.isfinite(one) for one in bounds)
        print(
            f"{name}: {mean(bounds) / found['epsilon_claimed']:.3f} of the claim, {found['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    main()
