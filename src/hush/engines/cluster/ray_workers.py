"""Workers on Ray: it starts Ray on this machine or joins a cluster, and keeps warm actors that may come and go.

Actors are never restarted by Ray, which would repeat their calls in another order: a lost one is replaced by a fresh
one, and whoever called it asks again. Ray is imported when a run needs it; where it is missing, the error says what to
install.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hush.config import EngineConfig
from hush.engines.cluster.worker import Setup, Worker
from hush.types import HushError

_log = logging.getLogger("hush")
_START_SECONDS = 120.0  # for the first worker; those that need longer than the first join later
_LATER_SECONDS = 20.0
_REACHED_SECONDS = 5.0
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    # Ray lowers the priority of its workers, which would then wait for any other process of the machine.
    "RAY_worker_niceness": "0",
}
_MISSING = (
    'engine.name: "ray" needs Ray, which is not installed: pip install "hush[cluster]"; accepted without it: "process"'
)


def library() -> Any:
    """Return Ray, or raise a `HushError` that says what to install."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise HushError(_MISSING, "engine.name") from None


@contextmanager
def connected(engine: EngineConfig) -> Iterator[Any]:
    """Yield Ray, connected: as the caller left it, to the cluster at an address, or started on this machine."""
    ray = library()
    if ray.is_initialized():
        yield ray
        return
    address = engine.address or "local"
    _check_reachable(address)
    started: dict[str, Any] = {"address": address, "logging_level": "ERROR", "log_to_driver": False}
    if address == "local":
        cpus = os.cpu_count() or 1
        if engine.workers != "auto":
            cpus = max(cpus, engine.workers)
        started |= {"num_cpus": cpus, "include_dashboard": False}
    try:
        ray.init(**started)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise _no_cluster(address, first) from None
    send_notices_to_log()
    try:
        yield ray
    finally:
        ray.shutdown()


def send_notices_to_log() -> None:
    """Keep Ray's notices off standard output, which may be read by a program; there is no setting for it."""
    inside = importlib.import_module("ray._private.worker")
    if hasattr(inside, "print_to_stdstream"):
        inside.print_to_stdstream = _log_notice  # type: ignore[attr-defined]


def _log_notice(data: Mapping[str, Any], *_: Any, **__: Any) -> None:
    _log.debug("ray: %s", data.get("lines"))


def _check_reachable(address: str) -> None:
    """Raise a `HushError` if nothing listens at host:port, for which Ray itself waits a minute."""
    host, colon, port = address.rpartition(":")
    if "/" in address or not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACHED_SECONDS).close()
    except OSError as error:
        raise _no_cluster(address, error.strerror or str(error)) from None


def _no_cluster(address: str, why: str) -> HushError:
    return HushError(
        f"engine.address: no Ray cluster at {address!r} ({why[:200]}); accepted: the address of a running one, "
        '"auto" on one of its nodes, or none to start Ray on this machine',
        "engine.address",
    )


def lost_errors(ray: Any) -> tuple[type[Exception], ...]:
    """Return the errors that say that a worker, its node or an object on it is gone."""
    found = ray.exceptions
    return (
        found.RayActorError,
        found.ObjectLostError,
        found.NodeDiedError,
        found.WorkerCrashedError,
        found.OutOfMemoryError,
    )


class WorkerPool:
    """Warm workers, one for each CPU or GPU of the cluster, or as many as are asked for."""

    _gpus = 1  # of each worker, where there are any

    def __init__(self, ray: Any, engine: EngineConfig, setup: Setup, most: int) -> None:
        self.ray, self.lost = ray, lost_errors(ray)
        self._engine, self._most = engine, most
        self._setup = ray.put(setup)
        self._rows: tuple[Any, Any] | None = None
        self._numbers = iter(range(1 << 62))
        self.workers: dict[int, Any] = {}
        self._starting: dict[int, tuple[Any, Any]] = {}
        self._begun = False
        gpus = float(ray.cluster_resources().get("GPU", 0))
        self._on_gpu = engine.device == "cuda" or (engine.device == "auto" and gpus > 0)

    def hold(self, x: Any, y: Any) -> None:
        """Have all workers hold these rows, which every node stores once."""
        rows = self._rows = (self.ray.put(x), self.ray.put(y))
        refs = {number: actor.hold.remote(*rows) for number, actor in self.workers.items()}
        for number, ref in refs.items():
            try:
                self.get(ref)
            except self.lost:
                self.drop(number)

    def refresh(self) -> None:
        """Take in workers for nodes that have joined, and wait until there is one at least."""
        ends = time.monotonic() + _START_SECONDS
        self._start_missing()
        while not self.workers and (left := ends - time.monotonic()) > 0:
            self._collect(1, left)
            # What was lost while it started is replaced as well.
            self._start_missing()
        # The first time, the others are waited for a little as well, so that the work is shared from the beginning.
        self._collect(len(self._starting), 0.0 if self._begun else _LATER_SECONDS)
        self._begun = True
        if not self.workers:
            kind = "GPU" if self._on_gpu else "CPU"
            raise HushError(
                f"engine.name: no worker started on Ray within {_START_SECONDS:.0f} s; accepted: a cluster with a free "
                f"{kind} for each worker (ray status shows what is free)",
                "engine.name",
            )

    def drop(self, number: int) -> None:
        """Forget a worker that was lost; it is killed in case it only seems to be."""
        actor = self.workers.pop(number, None)
        if actor is not None:
            _log.warning("a worker was lost; its clients are computed again with the same draws")
            self.ray.kill(actor)

    def close(self) -> None:
        """End all workers."""
        for actor in [*self.workers.values(), *(actor for actor, _ in self._starting.values())]:
            self.ray.kill(actor)
        self.workers, self._starting = {}, {}

    def get(self, ref: Any) -> Any:
        """Return a result; a `HushError` of the worker is raised as it is."""
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HushError):
                raise error.cause from None
            raise

    def anywhere(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what workers answer to a call with each of the arguments, whichever worker it is that answers."""
        answers: dict[int, Any] = {}
        while left := [number for number in range(len(arguments)) if number not in answers]:
            if not self.workers:
                self.refresh()
            turns = itertools.cycle(list(self.workers))
            asked = [(number, next(turns)) for number in left]
            refs = [getattr(self.workers[worker], method).remote(*arguments[number]) for number, worker in asked]
            for (number, worker), ref in zip(asked, refs, strict=True):
                try:
                    answers[number] = self.get(ref)
                except self.lost:
                    self.drop(worker)
        return [answers[number] for number in range(len(arguments))]

    def _start_missing(self) -> None:
        wanted = self._wanted() - len(self.workers) - len(self._starting)
        options = {
            "num_cpus": 1,
            "num_gpus": self._gpus if self._on_gpu else 0,
            "max_restarts": 0,
            "max_concurrency": 1,
        }
        made = self.ray.remote(**options)(Worker)
        for _ in range(wanted):
            actor = made.remote(self._setup)
            first = actor.ready.remote() if self._rows is None else actor.hold.remote(*self._rows)
            self._starting[next(self._numbers)] = (actor, first)

    def _wanted(self) -> int:
        resources = self.ray.cluster_resources()
        room = int(resources.get("GPU" if self._on_gpu else "CPU", 0))
        asked = room if self._engine.workers == "auto" else self._engine.workers
        return max(1, min(asked, max(room, 1), self._most))

    def _collect(self, number: int, seconds: float) -> None:
        """Take in workers that have started; wait at most so long for that many of them."""
        refs = [ref for _, ref in self._starting.values()]
        if not refs:
            return
        self.ray.wait(refs, num_returns=min(number, len(refs)), timeout=seconds)
        ready = set(self.ray.wait(refs, num_returns=len(refs), timeout=0.0)[0])
        for each, (actor, ref) in list(self._starting.items()):
            if ref in ready:
                del self._starting[each]
                try:
                    self.get(ref)
                except self.lost as error:
                    if getattr(error, "actor_init_failed", False):
                        why = str(error).strip().splitlines()[-1].removeprefix("hush.types.HushError: ")
                        raise HushError(f"engine.name: a worker cannot start: {why}", "engine.name") from None
                    continue
                self.workers[each] = actor


def tasks(
    ray: Any, work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], gpu: bool
) -> Iterator[tuple[int, Any]]:
    """Run a function with each of the arguments as a task, and yield number and result as they finish.

    A task whose worker is lost is run again, by Ray.
    """
    remote = ray.remote(num_cpus=1, num_gpus=1 if gpu else 0, max_retries=5)(work)
    numbers = {remote.remote(*each): number for number, each in enumerate(arguments)}
    waiting = list(numbers)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        try:
            yield numbers[done[0]], ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HushError):
                raise error.cause from None
            raise
