"""Whole runs as tasks on Ray, for sweeps, comparisons and reproductions: each run on one worker, many at a time.

On CPUs each run is a task. On GPUs a task is a group of runs that advance in lockstep, since one run fills no GPU.

A finished run comes back with the files of its directory, which are written on this side: workers need no shared disk.
A run whose worker is lost is run again from its first round, with the same draws; finished ones are never repeated.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hush.callbacks import Callback, RunStart
from hush.config import Config, in_one_process
from hush.engines import simulator
from hush.engines.cluster.ray_workers import connected, tasks
from hush.engines.fingerprint import Hashes
from hush.engines.setup import Federation
from hush.server.run_directory import RESULT, RunDir, write_atomically
from hush.types import HushError, RoundRecord, RunResult

Prepare = Callable[[Config], Federation]


@dataclass(frozen=True)
class FinishedTask:
    """A run that a worker has finished: what was known before, its result and rounds, and its files by name."""

    start: RunStart
    result: RunResult
    records: tuple[RoundRecord, ...]
    files: Mapping[str, bytes]

    def tell(self, callbacks: Sequence[Callback], directory: Path | None) -> None:
        """Call callbacks as the run would have called them, one after the other."""
        for callback in callbacks:
            callback.on_run_start(replace(self.start, directory=directory))
            for record in self.records:
                callback.on_round_end(record)
            callback.on_run_end(self.result)


class _Started(Callback):
    """Remembers what is known before the first round."""

    def on_run_start(self, start: RunStart) -> None:
        """Remember it."""
        self.start = start


def run_all(
    configs: Sequence[Config],
    paths: Sequence[Path | None],
    federation_of: Prepare,
    callbacks: Callable[[int], Sequence[Callback]],
    command: str,
    resume: bool,
) -> Iterator[tuple[int, RunResult, tuple[RoundRecord, ...]]]:
    """Run all configs and yield number, result and rounds of each as it is finished, those of `paths` from there.

    `callbacks` are those of a run by its number; they are called when it is finished.

    `federation_of` prepares a config on a worker, with data that are sent along once.
    """
    waiting = []
    for number, path in enumerate(paths):
        finished = _finished(path, resume)
        if finished is None:
            waiting.append(number)
        else:
            yield number, *finished
    if not waiting:
        return
    engine = configs[0].engine
    with connected(engine) as ray:
        gpus = float(ray.cluster_resources().get("GPU", 0)) > 0
        shared = ray.put(federation_of)
        on_gpu = engine.device == "cuda" or (engine.device == "auto" and gpus > 0)
        groups = _groups(waiting, int(gpus) if on_gpu else len(waiting))
        asked = [
            (shared, [in_one_process(configs[n]) for n in group], command, [paths[n] is not None for n in group])
            for group in groups
        ]
        for place, finished in tasks(ray, _run_group, asked, on_gpu):
            for number, done in zip(groups[place], finished, strict=True):
                path = paths[number]
                if path is not None:
                    _write(path, done.files)
                done.tell(callbacks(number), path)
                yield number, done.result, done.records


def _groups(waiting: Sequence[int], most: int) -> list[list[int]]:
    """Return runs in at most so many groups of equal size; neighbours, which cost about the same, in different ones.

    Args:
        waiting: The numbers of the runs.
        most: How many groups can compute at a time.
    """
    number = max(1, min(most, len(waiting)))
    return [list(waiting[first::number]) for first in range(number)]


def _run_group(
    federation_of: Prepare, configs: Sequence[Config], command: str, keep: Sequence[bool]
) -> list[FinishedTask]:
    """Run configs in lockstep in this process: the task of a worker."""
    torch.set_num_threads(1)
    arrays: simulator.Arrays = {}
    hashes: Hashes = {}
    with tempfile.TemporaryDirectory(prefix="hush-run-") as made:
        paths = [Path(made) / str(number) if kept else None for number, kept in enumerate(keep)]
        starts = [_Started() for _ in configs]
        executions = [
            simulator.execution(
                federation_of(config), path, command=command, callbacks=[start], arrays=arrays, hashes=hashes
            )
            for config, path, start in zip(configs, paths, starts, strict=True)
        ]
        return [
            FinishedTask(start.start, done.result, done.records, _files(path))
            for start, done, path in zip(starts, simulator.lockstep(executions), paths, strict=True)
        ]


def _files(path: Path | None) -> Mapping[str, bytes]:
    return {} if path is None else {each.name: each.read_bytes() for each in path.iterdir()}


def _finished(path: Path | None, resume: bool) -> tuple[RunResult, tuple[RoundRecord, ...]] | None:
    """Return a run that was finished before, if the directory has one and is to be resumed."""
    if path is None or not path.exists() or not any(path.iterdir()):
        return None
    if not resume:
        raise HushError(f"{path}: not empty; choose another directory, or use --resume to resume the run in it")
    directory = RunDir(path)
    result = directory.finished()
    return None if result is None else (result, tuple(directory.records()))


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a run directory; the result comes last, since it says that all others are there."""
    path.mkdir(parents=True, exist_ok=True)
    for old in path.glob("checkpoint-*.safetensors"):
        old.unlink()
    for name in sorted(files, key=lambda each: each == RESULT):
        write_atomically(path / name, files[name])
