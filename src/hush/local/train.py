"""DP-SGD for many clients at once.

On a processor every thread trains its share of the clients, batch after batch as they come; on an accelerator, and for
linear models, alike clients train together, shorter batches padded and masked.

Guarantees:
    - Rows, clip, noise and divisor come from the client's `PrivacyPlan`, which is also what is accounted.
    - A client draws from its own source in a fixed order (rows, then noise, step by step), so its update does not
      depend on who trains beside it, beyond rounding.

Edge cases:
    - Clients with different batch sizes, steps and amounts of data train together; a client with fewer steps stops
      earlier.
    - A batch may be empty; its step is noise alone.
    - A batch may be all of a client's data: no more than `physical_batch` of its examples are gathered at a time.
    - While threads train, PyTorch's own threads rest: their number is set to one and put back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from hush.local import centre, device, fallback, memory
from hush.local.chain import chain_of
from hush.local.chain_train import groups_of, train_chain
from hush.local.exact import integer_sums
from hush.local.job import Job as Job
from hush.local.linear import Closed, closed, known_lengths, linear_sums
from hush.local.per_example import piece, recorder_for
from hush.local.precision import Precision, accelerated
from hush.local.record import Recorder
from hush.local.sums import even_sums, ragged_sums
from hush.models import Model

_WORTH = 10_000_000  # examples times parameters from which threads pay
_SOON = 8  # rounds within which what is kept of the rows must have paid


def train(
    model: Model,
    x: Tensor,
    y: Tensor,
    jobs: Sequence[Job],
    physical_batch: int | None = None,
    precision: Precision = "float32",
    strict: bool = False,
) -> list[Tensor]:
    """The update (end minus start) of each job. A job's rows are `x[first_row : first_row + plan.samples]`.

    Args:
        model: What is trained.
        x: Inputs of all clients.
        y: Their labels.
        jobs: How each client trains.
        physical_batch: Examples held at a time; by the free memory if none.
        precision: How layers multiply.
        strict: Refuse a model that would need the slow path.
    """
    if not jobs:
        return []
    kernels = x.is_contiguous() and x.dtype == torch.float32 and accelerated(x.device) is not None
    chain = chain_of(model, x) if kernels else None
    if chain is not None and device.suits(jobs):
        groups = groups_of(jobs)
        mine = [[jobs[i] for i in group] for group in groups]
        with memory.explained(physical_batch or memory.MOST):
            ends = train_chain(model, chain, x, y, mine, physical_batch, precision)
        return _updates(jobs, groups, ends)
    size = memory.physical_batch(model, x.device, len(jobs)) if physical_batch is None else physical_batch
    with memory.explained(size):
        return _train(model, x, y, jobs, size, precision, strict)


def _train(
    model: Model, x: Tensor, y: Tensor, jobs: Sequence[Job], size: int, precision: Precision, strict: bool
) -> list[Tensor]:
    exact = any(job.plan.discrete for job in jobs)
    fast = not exact and recorder_for(model, x[:1], y[:1], strict) is not None
    spread = fast and not x.is_cuda
    alike = [] if spread else _alike(jobs)
    placed = fast and x.is_cuda and all(device.suits([jobs[i] for i in group]) for group in alike)
    centred = any(job.centre is not None for job in jobs)
    # bf16 would have to round what the closed form never forms.
    form = closed(model, x) if (spread or (placed and centred)) and precision != "bf16" else None
    if form is None and centred:
        return _train(model, *centre.shifted(x, y, jobs), size, precision, strict)
    # The closed form is a few products for all clients at once: PyTorch's threads serve it better than ours, which
    # would wait for the interpreter.
    worth = form is None and sum(map(_work, jobs)) * model.layout.size >= _WORTH
    groups = _shares(jobs, torch.get_num_threads() if worth else 1) if spread else alike
    if placed:
        limit = piece(model, jobs[0].vector, size)
        ends = device.train_groups(model, x, y, [[jobs[i] for i in group] for group in groups], limit, precision, form)
        return _updates(jobs, groups, ends)
    known = None if form is None else _known(x, jobs, form)

    def work(group: Sequence[int]) -> Tensor:
        mine = [jobs[i] for i in group]
        batch = _Batch(model, x, y, size, precision, Recorder(model) if fast else None, form, known)
        return _train_group(mine, batch)

    return _updates(jobs, groups, _all(work, groups) if spread else [work(group) for group in groups])


def _known(x: Tensor, jobs: Sequence[Job], form: Closed) -> dict[int, Tensor] | None:
    """The norms of all rows by the identity of the centre that they are counted from, if that pays soon."""
    if _SOON * sum(map(_work, jobs)) < len(x):
        return None
    distinct = {id(job.centre): job.centre for job in jobs}
    return dict(zip(distinct, known_lengths(x, list(distinct.values()), form.bias is not None), strict=True))


def _updates(jobs: Sequence[Job], groups: Sequence[Sequence[int]], ends: Sequence[Tensor]) -> list[Tensor]:
    updates: list[Tensor] = [torch.empty(0)] * len(jobs)
    for group, vectors in zip(groups, ends, strict=True):
        moved = vectors - torch.stack([jobs[i].vector for i in group])
        for i, update in zip(group, moved.unbind(), strict=True):
            updates[i] = update
    return updates


def _alike(jobs: Sequence[Job]) -> list[list[int]]:
    """Groups of similar batch size, longest first within a group, so that little is padded."""

    def kind(i: int) -> tuple[bool, bool, int]:
        return jobs[i].plan.discrete, jobs[i].still, round(2 * math.log2(jobs[i].plan.batch))

    order = sorted(range(len(jobs)), key=lambda i: (kind(i), -jobs[i].plan.steps))
    return [list(group) for _, group in groupby(order, key=kind)]


def _shares(jobs: Sequence[Job], number: int) -> list[list[int]]:
    """Groups of nearly equal work, longest first within a group."""
    work = [_work(job) for job in jobs]
    shares: list[list[int]] = [[] for _ in range(min(number, len(jobs)))]
    loads = [0] * len(shares)
    for i in sorted(range(len(jobs)), key=lambda i: -work[i]):
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += work[i]
    return [sorted(share, key=lambda i: -jobs[i].plan.steps) for share in shares]


def _work(job: Job) -> int:
    return job.plan.steps * job.plan.batch


def _all(work: Callable[[Sequence[int]], Tensor], groups: Sequence[Sequence[int]]) -> list[Tensor]:
    """Every group on a thread of its own."""
    if len(groups) == 1:
        return [work(groups[0])]
    with _one_thread_each(), ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(work, groups))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Batch:
    """The data, and how sums over batches of it are computed."""

    model: Model
    x: Tensor
    y: Tensor
    physical_batch: int
    precision: Precision
    recorder: Recorder | None
    form: Closed | None = None
    lengths: Mapping[int, Tensor] | None = None

    def sums(
        self, vectors: Tensor, drawn: Sequence[Tensor], clips: Tensor, jobs: Sequence[Job], centres: Tensor | None
    ) -> Tensor:
        """The clipped gradient sum of each client over the rows it drew."""
        limit = piece(self.model, vectors, self.physical_batch)
        if self.form is not None:
            known = None if self.lengths is None else [self.lengths[id(job.centre)] for job in jobs]
            return linear_sums(self.form, vectors, self.x, self.y, drawn, clips, limit, known, centres)
        if self.recorder is not None and not vectors.is_cuda:
            rows, counts = torch.cat(list(drawn)), [len(r) for r in drawn]
            return ragged_sums(self.recorder, vectors, self.x, self.y, counts, clips, limit, self.precision, rows)
        rows, mask = _padded(drawn, vectors.device)
        if self.recorder is None:
            size, how = self.physical_batch, self.precision
            return fallback.sums(self.model, vectors, self.x, self.y, mask, clips, size, rows, how)
        at, real = rows.t().flatten(), mask.t().flatten()
        return even_sums(self.recorder, vectors, self.x, self.y, real, clips, limit, self.precision, rows=at)


def _train_group(jobs: Sequence[Job], batch: _Batch) -> Tensor:
    starts = torch.stack([job.vector for job in jobs])
    vectors = starts.clone()
    grids = torch.tensor([job.plan.grid for job in jobs], dtype=torch.float64, device=vectors.device)

    def whole(at: Tensor, drawn: Sequence[Tensor], clips: Tensor) -> Tensor:
        rows, mask = _padded(drawn, at.device)
        here, size = grids[: len(at)], batch.physical_batch
        return integer_sums(batch.model, at, batch.x, batch.y, mask, clips, here, size, rows)

    clips = torch.tensor([job.plan.clip for job in jobs], dtype=torch.float64, device=vectors.device)
    corrected = _corrections(jobs, vectors)
    lr = vectors.new_tensor([[job.lr] for job in jobs])
    centres = _centres(jobs)
    still = torch.tensor([[job.still] for job in jobs], device=vectors.device)
    any_still = bool(still.any())
    for step in range(jobs[0].plan.steps):
        active = sum(job.plan.steps > step for job in jobs)
        drawn = [job.plan.sample(job.source) + job.first_row for job in jobs[:active]]
        at = torch.where(still[:active], starts[:active], vectors[:active]) if any_still else vectors[:active]
        if jobs[0].plan.discrete:
            sums = whole(at, drawn, clips[:active])
        else:
            sums = batch.sums(at, drawn, clips[:active], jobs[:active], None if centres is None else centres[:active])
        noised = [job.plan.privatise(total, job.source) for job, total in zip(jobs, sums.unbind(), strict=False)]
        vectors[:active] -= lr[:active] * corrected(torch.stack(noised), vectors, starts)
    return vectors


def _centres(jobs: Sequence[Job]) -> Tensor | None:
    """What is taken off the rows of each job, jobs x width."""
    given = [job.centre for job in jobs if job.centre is not None]
    if not given:
        return None
    found = [torch.zeros_like(given[0]) if job.centre is None else job.centre for job in jobs]
    return torch.stack(found).to(jobs[0].vector)


def _corrections(jobs: Sequence[Job], vectors: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """From the first clients' steps, where all clients are, and where they began: the steps with drift and pull."""
    drift = pull = None
    if any(job.drift is not None for job in jobs):
        drift = torch.stack([torch.zeros_like(job.vector) if job.drift is None else job.drift for job in jobs])
    if any(job.proximal and not job.still for job in jobs):
        pull = vectors.new_tensor([[0.0 if job.still else job.proximal] for job in jobs])

    def corrected(step: Tensor, now: Tensor, starts: Tensor) -> Tensor:
        active = len(step)
        step = step if drift is None else step + drift[:active]
        return step if pull is None else step + pull[:active] * (now[:active] - starts[:active])

    return corrected


def _padded(drawn: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row numbers padded to the longest batch, and the mask of the real ones."""
    lengths = torch.tensor([len(rows) for rows in drawn])
    rows = torch.nn.utils.rnn.pad_sequence(list(drawn), batch_first=True)
    mask = torch.arange(rows.shape[1])[None] < lengths[:, None]
    return rows.to(device), mask.to(device)
