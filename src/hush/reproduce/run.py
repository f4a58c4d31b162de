"""Run the cells of a table in lockstep, and compare the results with the published values."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.comparison import executed, from_files, path_of
from hush.config import Config, config_hash, in_one_process
from hush.engines.results import versions
from hush.reproduce.claims import judged
from hush.reproduce.entry import Cell, Entry, Printed, check_seeds, entry
from hush.reproduce.first_round import FIRST_ROUND, Numbers
from hush.reproduce.metrics import FinishedRun, course, metric
from hush.reproduce.pages import html, markdown
from hush.server.run_directory import RunDir, to_json, write_atomically
from hush.types import HushError, RoundRecord, RunResult

Progress = Callable[[str, int, RoundRecord], None]
RESULT = "reproduction.json"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The requested part of a table."""

    entry: Entry
    cells: tuple[Cell, ...]
    mode: str
    seeds: range
    configs: dict[str, Config]
    changes: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.seeds) * sum(config.rounds for config in self.configs.values())

    def label(self) -> str:
        """A directory name that is equal for equal requests, so that an interrupted run is found again."""
        seeds = [self.seeds.start, len(self.seeds)] if self.seeds.start else len(self.seeds)
        key_parts = [self.mode, seeds, [config_hash(in_one_process(config)) for config in self.configs.values()]]
        return f"{self.entry.name.replace('/', '-')}-{hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:8]}"


def make_request(
    name: str,
    cells: Sequence[str] = (),
    seeds: int | None = None,
    rounds: int | None = None,
    mode: str | None = None,
    device: str | None = None,
    changes: Sequence[str] = (),
    places: Sequence[str] = (),
    first_seed: int | None = None,
) -> Request:
    """Return the validated request of a command. `places` says where to compute, which changes no result."""
    check_seeds(seeds, first_seed)
    table = entry(name)
    chosen, how = table.chosen(cells), mode or table.modes[0]
    if how not in table.modes:
        raise HushError(f"--mode: {how!r} is not a mode of {name}; accepted: {', '.join(table.modes)}")
    given = [*changes]
    given += [] if rounds is None else [f"rounds={rounds}"]
    given += [] if device is None else [f'engine.device="{device}"']
    configs = {cell.name: table.configured(cell, how, [*given, *places]) for cell in chosen}
    first = table.first_seed if first_seed is None else first_seed
    return Request(
        entry=table,
        cells=chosen,
        mode=how,
        seeds=range(first, first + (seeds or table.seeds)),
        configs=configs,
        changes=tuple(given),
    )


def reproduce(
    what: Request,
    out: Path,
    data: str | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run the requested cells that have not been run yet, and write the results as JSON, Markdown and HTML to `out`."""
    seeds = list(what.seeds)
    out.mkdir(parents=True, exist_ok=True)
    if what.entry.metric in FIRST_ROUND:
        found = _first_rounds(what, seeds, out, data)
        runs: dict[str, list[FinishedRun]] = {}
    else:
        runs = _done(what, executed(what.configs, seeds, out, True, from_files(data), command, progress), out, data)
        found = {name: [metric(what.entry.metric)(one) for one in done] for name, done in runs.items()}
    cells = [_row(cell, what.configs[cell.name], found[cell.name], runs.get(cell.name, [])) for cell in what.cells]
    made = _versions([one.result for done in runs.values() for one in done])
    return _written({**_described(what, command), "versions": made}, cells, what, out)


def repeated(what: Request, recorded: Path, out: Path, command: str = "") -> dict[str, Any]:
    """Fill the requested cells from the recorded reproduction of another table with the same runs; write it to `out`.

    Only cells with equal configs count, on whatever device, and only with the same metric and seeds. Raises a
    `HushError` if there is none.
    """
    try:
        kept = json.loads(recorded.read_bytes())
        source, rows = entry(kept["entry"]), {(cell["algorithm"], cell["column"]): cell for cell in kept["cells"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HushError(f"--from {recorded}: not a recorded reproduction ({error}); accepted: a {RESULT}") from None
    known = {
        _apart_from_engine(source.configured(cell, kept["mode"], kept.get("changes", ()))): rows[
            cell.algorithm, cell.column
        ]
        for cell in source.cells
        if (cell.algorithm, cell.column) in rows
    }
    found = [(cell, known.get(_apart_from_engine(what.configs[cell.name]))) for cell in what.cells]
    cells = [_relabelled(cell, row) for cell, row in found if row is not None]
    if not cells or source.metric != what.entry.metric or kept["seeds"] != list(what.seeds):
        raise HushError(
            f"--from {recorded}: no run of {source.name} over seeds {kept['seeds']} is one of {what.entry.name} over "
            f"seeds {list(what.seeds)}; accepted: a reproduction of the same metric, seeds and settings"
        )
    same = {key: kept[key] for key in ("mode", "seeds", "changes", "versions") if key in kept}
    return _written({**_described(what, command), **same}, cells, what, out)


def _apart_from_engine(config: Config) -> str:
    return json.dumps(config.model_dump(exclude={"engine"}), sort_keys=True, default=str)


def _relabelled(cell: Cell, row: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded cell as one of another table, next to what that table prints."""
    measures = {
        name: _comparison(value["runs"], cell.printed.get("" if name == "value" else name))
        for name, value in row["measures"].items()
    }
    return {
        **row,
        "algorithm": cell.algorithm,
        "column": cell.column,
        "settings": dict(cell.settings),
        "measures": measures,
    }


def _described(what: Request, command: str) -> dict[str, Any]:
    return {
        "entry": what.entry.name,
        "title": what.entry.title,
        "metric": what.entry.metric,
        "command": command,
        "mode": what.mode,
        "seeds": list(what.seeds),
        "config": dict(what.entry.config),
        "changes": list(what.changes),
    }


def _written(described: dict[str, Any], cells: list[dict[str, Any]], what: Request, out: Path) -> dict[str, Any]:
    """Write a reproduction as JSON, Markdown and HTML, and return it."""
    content = {
        **described,
        "notes": what.entry.remarks,
        "orders": judged(what.entry.orders, described, cells),
        "cells": cells,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / RESULT, to_json(content))
    write_atomically(out / "reproduction.md", markdown(content).encode())
    write_atomically(out / "reproduction.html", html(content).encode())
    return content


def _versions(results: Sequence[RunResult]) -> dict[str, str]:
    """The versions that the runs were made with."""
    made = [run.versions for run in results] or [versions()]
    return {name: ", ".join(sorted({each[name] for each in made if name in each})) for name in made[0]}


def _done(
    what: Request, results: dict[str, list[RunResult]], out: Path, data: str | None
) -> dict[str, list[FinishedRun]]:
    def done(name: str, result: RunResult) -> FinishedRun:
        path = out / path_of(name, result.seed)
        config = what.configs[name].model_copy(update={"seed": result.seed})
        return FinishedRun(config, result, RunDir(path).records(), path, data)

    return {name: [done(name, result) for result in runs] for name, runs in results.items()}


def _course(runs: Sequence[FinishedRun]) -> dict[str, float]:
    """Return the mean accuracy after each tenth of the rounds, over the runs, in percent."""
    courses = [course(run.rounds) for run in runs]
    return {name: statistics.fmean(each[name] for each in courses) for name in courses[0]} if courses else {}


def _first_rounds(what: Request, seeds: Sequence[int], out: Path, data: str | None) -> dict[str, list[Numbers]]:
    """Run one round per cell; finished cells are cached in a file, so that an interrupted run resumes."""
    kept = out / "first-rounds.json"
    known: dict[str, Numbers] = json.loads(kept.read_bytes()) if kept.exists() else {}
    for name, config in what.configs.items():
        for seed in seeds:
            key = f"{name} {seed}"
            if key not in known:
                known[key] = FIRST_ROUND[what.entry.metric](config.model_copy(update={"seed": seed}), data)
                write_atomically(kept, to_json(known))
    return {name: [known[f"{name} {seed}"] for seed in seeds] for name in what.configs}


def _row(cell: Cell, config: Config, values: Sequence[Numbers], runs: Sequence[FinishedRun]) -> dict[str, Any]:
    results = [run.result for run in runs]
    measures = {
        name or "value": _comparison([numbers[name] for numbers in values], cell.printed.get(name))
        for name in values[0]
    }
    measures |= {name: _comparison([fact], cell.printed.get(name)) for name, fact in cell.facts.items()}
    spent = [card.epsilon_spent for result in results for card in result.guarantees if card.epsilon_spent is not None]
    return {
        "algorithm": cell.algorithm,
        "column": cell.column,
        "own": cell.own,
        "settings": dict(cell.settings),
        "mode": config.mode,
        "lr": results[0].config["local"]["lr"] if results else config.local.lr,
        "epsilon_spent_max": max(spent) if spent else None,
        "seconds": sum(result.seconds for result in results),
        "not_covered": list(results[0].not_covered) if results else [],
        "measures": measures,
        "course": _course(runs),
    }


def _comparison(each: Sequence[float], printed: Printed | None) -> dict[str, Any]:
    """Return our values over seeds, and the published value."""
    mean = statistics.fmean(each)
    return {
        "ours": mean,
        "std": statistics.stdev(each) if len(each) > 1 else None,
        "runs": list(each),
        "printed": printed.value if printed else None,
        "printed_std": printed.std if printed else None,
        "difference": mean - printed.value if printed and printed.value is not None else None,
    }
