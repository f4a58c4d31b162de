"""Augmentation: a client's images with perturbed copies of each, for a full batch (RC-DPFL, section 4.3).

The copies of an image are the image itself and shifts of it by up to `SHIFT` pixels each way, the edge repeated. How
far is drawn for each copy, whatever the image shows.

Guarantees:
    - Each image has `plan.copies` copies, of which the first is the image as it is, and the plan of the job that is
      returned is `plan.of_copies`.

Edge cases:
    - A job without copies gets its own rows.
    - Copies of the rows of persons are refused: a person's rows are averaged before they are clipped.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hush.training.job import Job
from hush.types import HushError

SHIFT = 2  # pixels
KEY = "recipe.assign.copies"


def check_images(inputs: tuple[int, ...]) -> None:
    """Raise a `HushError` unless inputs of this shape are images."""
    if len(inputs) != 3:
        raise HushError(
            f"{KEY}: copies are images that are shifted, and the rows that are trained on have the shape {inputs}; "
            "accepted: 1, or images without fixed features before the model",
            KEY,
        )


def shifted(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Return each image (n x channels x height x width) moved by its own number of pixels, the edge repeated."""
    height, width = images.shape[2:]
    rows = (torch.arange(height, device=images.device) - down[:, None]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=images.device) - right[:, None]).clamp_(0, width - 1)
    found = images.gather(2, rows[:, None, :, None].expand(-1, images.shape[1], -1, width))
    return found.gather(3, columns[:, None, None, :].expand(-1, images.shape[1], height, -1))


def augmented(x: Tensor, y: Tensor, job: Job) -> tuple[Tensor, Tensor, list[Job]]:
    """Return the rows and labels of a job with their copies, and the job on them. Shifts are drawn before the noise."""
    if job.persons is not None:
        raise HushError(f'{KEY}: cannot be combined with privacy.unit = "person"; accepted: 1', KEY)
    own = slice(job.first_row, job.first_row + job.rows)
    images, labels, times = x[own], y[own], job.plan.copies
    pixels = (job.source.uniform(2 * (times - 1) * len(images)) * (2 * SHIFT + 1)).floor().long() - SHIFT
    moves = pixels.view(times - 1, 2, len(images)).to(x.device)
    copies = torch.cat([images, *(shifted(images, down, right) for down, right in moves)])
    repeated = labels.repeat(times, *(1,) * (labels.ndim - 1))
    return copies, repeated, [replace(job, first_row=0, plan=job.plan.of_copies)]
