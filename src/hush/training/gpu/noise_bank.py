"""A bank of noise on the device: noise of several steps, drawn at a time from each client's own generator.

Guarantees:
    - What a client draws depends on its own source alone, not on who else is in its group.

Edge cases:
    - Shared draws have no device generator, nor has secure noise where Triton's kernels cannot run. If any client of a
      group has none, the host draws the noise of the entire group.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hush.privacy.source import DeviceRng
from hush.training.gpu.prefetch import DEPTH
from hush.training.job import Job

_MOST_PREFETCHED = 2**26  # numbers of noise that may wait on the host
_AT_ONCE = 2**19  # numbers of noise that are drawn on the device at a time for a client


class NoiseBank:
    """Noise of several steps: one launch for each client and step would cost more."""

    def __init__(self, jobs: Sequence[Job], rngs: Sequence[DeviceRng], like: Tensor) -> None:
        self._jobs, self._rngs = jobs, rngs
        # A number that does not depend on who else is in the group, since what a client draws must not either.
        self._steps = max(1, _AT_ONCE // like.shape[1])
        self._like, self._noise = like, like[:, None]

    def step(self, number: int, active: int) -> Tensor:
        """The noise of that step, clients x p, for the first clients; steps are asked for in order."""
        if number == 0:
            self._noise = self._like.new_zeros(len(self._jobs), self._steps, self._like.shape[1])
        at = number % self._steps
        if at == 0:
            for job, rng, own in zip(self._jobs[:active], self._rngs, self._noise.unbind(), strict=False):
                if job.plan.private:
                    rng.fill(own)
        return self._noise[:, at]


def noise_bank(jobs: Sequence[Job], rngs: Sequence[DeviceRng | None], like: Tensor) -> NoiseBank | None:
    """The bank of a group, or none if the host must draw its noise."""
    found = [rng for rng in rngs if rng is not None]
    return NoiseBank(jobs, found, like) if len(found) == len(rngs) else None


def device_rngs(jobs: Sequence[Job]) -> list[DeviceRng | None]:
    """The device generator of each client, none where only the host may draw."""
    return [job.source.device_rng(job.vector.device) for job in jobs]


def noise_fits(jobs: Sequence[Job]) -> bool:
    """Whether noise is a multiple of normal numbers, and drawn on the device or small enough to be prefetched."""
    if any(job.plan.discrete for job in jobs):
        return False
    return DEPTH * len(jobs) * jobs[0].vector.numel() <= _MOST_PREFETCHED or None not in device_rngs(jobs)
