"""Rows that are drawn on a device: those of the bits, for Poisson batches and for batches of a fixed size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hush.bench.workloads import plan_of
from hush.privacy import noise
from hush.training.gpu import sampling
from hush.training.gpu.sampling import RoundBatches, sample
from hush.training.job import Job
from tests.support.interpreter import CUDA, DEVICE, check_interpreted, on_either, runs_itself

# Rows, size of a batch, steps, and whether that size is fixed.
CLIENTS = ((700, 90, 9, True), (1500, 40, 9, False), (40, 40, 8, True), (1025, 1, 7, True), (1025, 900, 6, True))


@pytest.mark.interpreter
@runs_itself()
def test_the_interpreter_agrees() -> None:
    """All tests of this file, with Triton's kernels interpreted."""
    check_interpreted(__file__)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, also where they are interpreted."""
    if not CUDA:
        from hush.training.gpu import kernels

        monkeypatch.setattr(sampling, "triton_kernels", lambda _: kernels)


class Bits:
    """A generator of given bits."""

    def __init__(self, words: Tensor) -> None:
        self._words = words

    def words(self, target: Tensor) -> None:
        target.copy_(self._words)

    def fill(self, target: Tensor) -> None:
        raise AssertionError


def jobs() -> list[Job]:
    made = []
    for i, (samples, size, steps, fixed) in enumerate(CLIENTS):
        plan = replace(plan_of(samples, size, 1000, 1.0), local_steps=steps)
        if fixed:
            plan = replace(plan, sampler="fixed", relation="replace-one")
        made.append(Job(vector=torch.zeros(3), first_row=10_000 * i, plan=plan, lr=0.1, source=noise.Seeded(1, i, 0)))
    return made


def drawn(words: list[Tensor]) -> tuple[RoundBatches, Tensor]:
    batches = sample(jobs(), [Bits(own) for own in words], DEVICE)
    return batches, batches.packed(len(words), max(batches.totals)).cpu()


@on_either
@pytest.mark.parametrize("at_once", [1 << 25, 4000])
@pytest.mark.parametrize("kind", ["random", "few bits", "equal"])
def test_rows_are_those_of_the_bits(monkeypatch: pytest.MonkeyPatch, kind: str, at_once: int) -> None:
    """With the lowest bits of a fixed batch come the first of the rows whose bits are equal."""
    monkeypatch.setattr(sampling, "_WORDS", at_once)
    generator = torch.Generator().manual_seed(3)
    words = [
        torch.randint(-(2**63), 2**63 - 1, (samples * steps,), generator=generator) for samples, _, steps, _ in CLIENTS
    ]
    if kind == "few bits":
        words = [own >> 61 << 61 for own in words]
    elif kind == "equal":
        words = [torch.full_like(own, -1) for own in words]
    batches, packed = drawn(words)
    ends = packed[:, : len(CLIENTS) + 1]
    assert batches.totals == ends[:, -1].tolist()
    assert batches.largest == ends.diff(dim=1).amax(1).tolist()
    for i, (samples, size, steps, fixed) in enumerate(CLIENTS):
        for step in range(9):
            found = packed[step, len(CLIENTS) + 1 :][ends[step, i] : ends[step, i + 1]].long()
            if step >= steps:
                assert not len(found)
                continue
            high = (words[i].view(steps, samples)[step] >> 11) & (2**53 - 1)
            if fixed:
                expected = high.argsort(stable=True)[:size].sort().values
            else:
                expected = (high < noise.threshold(jobs()[i].plan.rate)).nonzero()[:, 0]
            assert torch.equal(found, expected + 10_000 * i), (i, step)
