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

from hush.privacy import device_draws
from hush.privacy.source import DeviceRng
from hush.training.gpu.prefetch import DEPTH
from hush.training.job import Job

_MOST_PREFETCHED = 2**26  # numbers of noise that may wait on the host
_AT_ONCE = 2**19  # numbers of noise that are drawn on the device at a time for a client


class NoiseBank:
    """Noise of several steps: one launch for each step would cost more."""

    def __init__(self, jobs: Sequence[Job], rngs: Sequence[DeviceRng], like: Tensor) -> None:
        self._jobs, self._rngs = jobs, rngs
        # As many steps at a time as a client takes by itself, since what it draws must not depend on the others.
        self._most = max(1, _AT_ONCE // like.shape[1])
        self._steps = min(self._most, jobs[0].plan.steps)
        self._like, self._noise = like, like[:, None]

    @property
    def noise(self) -> Tensor:
        """Where noise lies once there is any, clients x steps x p: that of the first steps, then that of the next."""
        return self._noise

    def step(self, number: int, active: int) -> Tensor:
        """The noise of that step, clients x p, for the first clients; steps are asked for in order.

        Where a bank has room for one step alone, it is drawn in the step's own buffer, and no copy is made.
        """
        if number == 0:
            if self._steps > 1:
                self._noise = self._like.new_zeros(len(self._jobs), self._steps, self._like.shape[1])
            device_draws.prepare(self._rngs)
        at = number % self._steps
        if at == 0:
            device_draws.normals(self._rngs[:active], self._noise, self._spans(active))
        return self._noise[:, at]

    def _spans(self, active: int) -> list[tuple[int, int]]:
        """Where each client's noise goes, and how much of it there is: none without privacy."""
        size, room = self._noise.shape[2], self._noise.shape[1] * self._noise.shape[2]
        plans = [job.plan for job in self._jobs[:active]]
        return [(room * i, min(self._most, plan.steps) * size if plan.private else 0) for i, plan in enumerate(plans)]


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
