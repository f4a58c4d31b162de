"""The grouping of clients: which clients step together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from hush.training.job import Job

SMALL_STEP = 4096  # examples in a step up to which a GPU has room for another step beside it
STREAMS = 2  # groups that run beside each other then: more were no faster


def similar_batches(jobs: Sequence[Job]) -> list[list[int]]:
    """Return groups of similar batch size, longest first within a group, so that little is padded."""

    def kind(i: int) -> tuple[bool, bool, int]:
        return jobs[i].plan.discrete, jobs[i].at_start, round(2 * math.log2(jobs[i].plan.batch))

    order = sorted(range(len(jobs)), key=lambda i: (kind(i), -jobs[i].plan.steps))
    return [list(group) for _, group in groupby(order, key=kind)]


def equal_work(jobs: Sequence[Job], number: int) -> list[list[int]]:
    """Return at most that many groups of nearly equal work, longest first within a group."""
    work = [expected_examples(job) for job in jobs]
    shares: list[list[int]] = [[] for _ in range(min(number, len(jobs)))]
    loads = [0] * len(shares)
    for i in sorted(range(len(jobs)), key=lambda i: -work[i]):
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += work[i]
    return [sorted(share, key=lambda i: -jobs[i].plan.steps) for share in shares]


def expected_examples(job: Job) -> int:
    """Return the expected number of example gradients in all steps."""
    return job.plan.steps * job.plan.batch


def similar_steps(jobs: Sequence[Job]) -> list[list[int]]:
    """Return groups by where gradients are taken and, where steps are small, by the number of steps.

    So clients with many steps do not wait for those with few.
    """
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i].plan.steps)
    found: dict[tuple[bool, int], list[int]] = {}
    small = sum(job.plan.batch for job in jobs) <= SMALL_STEP
    for i in order:
        behind = round(math.log2(jobs[order[0]].plan.steps / jobs[i].plan.steps)) if small else 0
        found.setdefault((jobs[i].at_start, min(behind, STREAMS - 1)), []).append(i)
    return list(found.values())
