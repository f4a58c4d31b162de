"""Train many clients by DP-SGD at once.

`hush.training.select` says how clipped sums are computed, `hush.training.grouping` which clients step together, and
`hush.training.update_rule` what a step does. On a CPU each group may have a thread of its own; on a GPU each has a CUDA
stream, and the host launches the steps of the group that is furthest behind.

Guarantees:
    - Rows, clip, noise and divisor come from the client's `PrivacyPlan`, which is also what is accounted.
    - A client draws from its own source in a fixed order (rows, then noise, step by step), so its update does not
      depend on who trains beside it, beyond rounding.

Edge cases:
    - Clients with different batch sizes, steps and amounts of data train together; a client with fewer steps stops
      earlier.
    - A batch may be empty; its step is noise alone.
    - A batch may be all of a client's data: no more than `physical_batch` of its examples are gathered at a time.
    - While groups run on threads, PyTorch's own threads are switched off: their number is set to one and restored.
    - Work that runs out of memory is not tried again in smaller pieces, since its random numbers are spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from hush.models import Model
from hush.models.isolation import depends_on_batch
from hush.models.validation import check_global_hooks
from hush.privacy.sensitivity import MOST_ROWS
from hush.training import memory
from hush.training.augmentation import augmented
from hush.training.clipped_sum import ClientGroup, ClippedSum
from hush.training.input_mean import subtracted
from hush.training.job import Job as Job
from hush.training.precision import Precision
from hush.training.select import select
from hush.types import HushError

_PHYSICAL_BATCH = "engine.physical_batch"
_CHECKED_ROWS = 4  # of a user's module that are compared in each round


def train(
    model: Model,
    x: Tensor,
    y: Tensor,
    jobs: Sequence[Job],
    physical_batch: int | None = None,
    precision: Precision = "float32",
    strict: bool = False,
) -> list[Tensor]:
    """Return the update (end minus start) of each job. A job's rows are `x[first_row : first_row + rows]`.

    Args:
        model: What is trained.
        x: Inputs of all clients.
        y: Their labels.
        jobs: How each client trains.
        physical_batch: Examples whose gradients are in memory at a time; by the free memory if none.
        precision: How layers multiply.
        strict: Refuse a model that needs vmap.
    """
    if not jobs:
        return []
    if any(job.idle for job in jobs):
        working = [job for job in jobs if not job.idle]
        updates = iter(train(model, x, y, working, physical_batch, precision, strict))
        return [torch.zeros_like(job.vector) if job.idle else next(updates) for job in jobs]
    if any(job.plan.copies > 1 for job in jobs):
        # Client by client, since the copies of all of its rows take memory.
        return [train(model, *augmented(x, y, job), physical_batch, precision, strict)[0] for job in jobs]
    if max(job.plan.batch for job in jobs) > MOST_ROWS // 2:
        raise HushError(
            f"local.batch_size: larger than one step supports; accepted: up to {MOST_ROWS // 2:,}",
            "local.batch_size",
        )
    evaluated, model = model, model if model.training is None else model.in_training
    for each in (model,) if evaluated is model else (evaluated, model):
        if each.probes is not None:
            _check_isolation(each, each.probes, x, jobs[0])
    with _out_of_memory_advice(physical_batch or memory.MOST):
        path = select(model, x, y, jobs, physical_batch, precision, strict)
        if not path.subtracts_input_mean and any(job.input_mean is not None for job in jobs):
            x, y, jobs = subtracted(x, y, jobs)
            path = select(model, x, y, jobs, physical_batch, precision, strict)
    with _out_of_memory_advice(path.physical_batch):
        return _train(path, jobs)


def _train(path: ClippedSum, jobs: Sequence[Job]) -> list[Tensor]:
    """Return the update of each job, whichever group it is in."""
    numbers = path.groups(jobs)
    with ExitStack() as resources:
        groups = [path.start([jobs[i] for i in own], number, resources) for number, own in enumerate(numbers)]
        _finish_all(groups, path.threaded)
    updates: list[Tensor] = [torch.empty(0)] * len(jobs)
    for own, group in zip(numbers, groups, strict=True):
        moved = group.vectors - torch.stack([job.vector for job in group.jobs])
        for i, update in zip(own, moved.unbind(), strict=True):
            updates[i] = update
    return updates


def _finish_all(groups: Sequence[ClientGroup], threaded: bool) -> None:
    """Let every group take all of its steps: on threads, on streams, or one group after the other."""
    if threaded and len(groups) > 1:
        _on_threads(groups)
    else:
        _on_streams(groups)


def _on_threads(groups: Sequence[ClientGroup]) -> None:
    with _one_thread_each(), ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(_finish, groups))


def _finish(group: ClientGroup) -> None:
    while group.done < group.steps:
        _advance(group)


def _advance(group: ClientGroup) -> None:
    group.step()
    group.done += 1


@contextmanager
def _one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_streams(groups: Sequence[ClientGroup]) -> None:
    """Groups with a stream share the device; groups without one finish one after the other."""
    streamed = [group for group in groups if group.stream is not None]
    for group in streamed:
        _stream(group).wait_stream(torch.cuda.current_stream(_stream(group).device))
    while waiting := [group for group in streamed if group.done < group.steps]:
        # The one that is furthest behind, so that large and small steps share the device.
        group = min(waiting, key=lambda g: g.done / g.steps)
        with torch.cuda.stream(group.stream):
            _advance(group)
    for group in streamed:
        torch.cuda.current_stream(_stream(group).device).wait_stream(_stream(group))
    for group in groups:
        if group.stream is None:
            _finish(group)


def _stream(group: ClientGroup) -> torch.cuda.Stream:
    assert group.stream is not None
    return group.stream


def _check_isolation(model: Model, probes: Tensor, x: Tensor, job: Job) -> None:
    """Compare a few rows together and alone at the present parameters, whatever was proved before training.

    Private rows are not used: whether they are refused would be released without noise.
    """
    check_global_hooks(model.name)
    rows = probes[:_CHECKED_ROWS].to(x.device, x.dtype)
    if (found := depends_on_batch(model.logits, job.vector, rows)) is not None:
        raise HushError(f"model {model.name}: {found}; nothing further is released")


@contextmanager
def _out_of_memory_advice(number: int) -> Iterator[None]:
    """Turn running out of memory into an error that says which setting to lower; `number` is its present value."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _too_many(number) from error
    except RuntimeError as error:
        # What PyTorch raises where a CPU's memory ends has no class of its own.
        if "can't allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        raise _too_many(number) from error


def _too_many(number: int) -> HushError:
    smaller = max(1, number // 4)
    return HushError(
        f"{_PHYSICAL_BATCH}: {number} examples at a time do not fit in memory; accepted: fewer, such as {smaller}",
        _PHYSICAL_BATCH,
    )
