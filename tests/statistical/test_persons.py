"""A person with all rows moves the sum of any step by at most one clip, on every path, with numbers of every size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hush.models.model import wrap
from hush.privacy import noise
from hush.privacy.persons import Persons
from hush.privacy.plan import PrivacyPlan
from hush.training.eager import EagerSum
from hush.training.job import Job
from hush.training.select import select
from tests.statistical.neighbours import COMPANY, ODD, SCALES
from tests.statistical.planted import all_rows, flattened

pytestmark = pytest.mark.filterwarnings("ignore:model vmap.*slow path")
ROWS, OTHERS, WIDTH, CLASSES = 20, 3, 5, 3
QUICK, FULL, TOGETHER = 200, 10_000, 250


class Scaled(nn.Module):
    """A layer that no rule of the fast path knows."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(WIDTH))
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x * self.factor)
        return found


NETS: dict[str, Callable[[], nn.Module]] = {
    "closed form": lambda: nn.Linear(WIDTH, CLASSES),
    "packed": lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, CLASSES)),
    "vmap": Scaled,
    "discrete": lambda: nn.Linear(WIDTH, CLASSES),
}
PATHS = {"closed form": "ClosedFormSum", "packed": "PackedSum", "vmap": "VmapSum", "discrete": "IntegerSum"}


@dataclass(frozen=True)
class Moves:
    """How far sums moved, in clips, by a person added and by a person replaced."""

    added: Tensor
    replaced: Tensor


def moves(net: str, each: int, count: int, seed: int) -> Moves:
    """The moves of that many neighbouring pairs of clients, whose last person has twenty rows of every size."""
    rng = np.random.default_rng(seed)
    model = wrap(net, NETS[net](), None)
    rows = (OTHERS + 2) * ROWS
    vectors = torch.from_numpy(
        rng.normal(size=(count, model.layout.size)) * rng.choice([0, 1, 1, 1e3, 1e6], (count, 1))
    )
    x = rng.normal(size=(count, rows, WIDTH)) * rng.choice(SCALES, (count, rows, 1))
    # Half of the persons are alike in all their rows, so that they add up if each is clipped alone.
    alike = rng.random(count) < 0.5
    x[alike] = x[alike][:, ::ROWS].repeat(ROWS, 1)
    odd = (rng.random((count, rows)) < 0.02).nonzero()
    x[(*odd, rng.integers(0, WIDTH, len(odd[0])))] = rng.choice(ODD, len(odd[0]))
    y = rng.integers(0, CLASSES, (count, rows // ROWS)).repeat(ROWS, 1)
    with np.errstate(over="ignore"):
        flat = torch.from_numpy(x.astype(np.float32)).flatten(0, 1)
    labels, clips = torch.from_numpy(y).flatten(), torch.from_numpy(10 ** rng.uniform(-2, 3, count))

    def sums(persons: int, replaced: bool) -> Tensor:
        """With so many persons; or with the one after them in place of the last."""
        data, own = flat.view(count, rows, WIDTH), labels.view(count, rows)
        kept = list(range((persons - 1) * ROWS)) + list(range(persons * ROWS, (persons + 1) * ROWS))
        chosen = kept if replaced else list(range(persons * ROWS))
        jobs = [
            Job(
                vector=vectors[at].float(),
                first_row=at * len(chosen),
                plan=PrivacyPlan(
                    samples=persons, batch=persons, epochs=1, rounds=1, clip=float(clips[at]), noise_multiplier=1.0,
                    relation="add-remove", accountant="pld", discrete=net == "discrete",
                ),
                lr=1.0,
                source=noise.Seeded(seed, at, 1),
                persons=Persons(torch.full((persons,), ROWS), each),
            )
            for at in range(count)
        ]  # fmt: skip
        path = select(model, data[:, chosen].flatten(0, 1), own[:, chosen].flatten(), jobs)
        assert isinstance(path, EagerSum)
        assert type(path).__name__ == (PATHS[net] if each == 1 or net == "discrete" else "VmapSum")
        batches = [job.plan.batch_rows(job.source, job.persons) + job.first_row for job in jobs]
        found = path.sums_of(jobs)(vectors.float(), batches, clips, None).double()
        unit = torch.tensor([job.plan.grid for job in jobs], dtype=torch.float64) if net == "discrete" else 1.0
        return found * (torch.as_tensor(unit) / clips).view(-1, 1)

    present = sums(OTHERS + 1, False)
    return Moves(
        added=(present - sums(OTHERS, False)).norm(dim=1),
        replaced=(present - sums(OTHERS + 1, True)).norm(dim=1),
    )


def check(net: str, each: int, pairs: int, seed: int) -> Counter[str]:
    """The bounds that do not hold, and how many pairs came near them; what is rounded in a sum is allowed for."""
    found, slack = Counter[str](), COMPANY * torch.finfo(torch.float32).eps
    for start in range(0, pairs, TOGETHER):
        moved = moves(net, each, min(TOGETHER, pairs - start), seed * 100_003 + start)
        for name, far, most in (("added", moved.added, 1.0), ("replaced", moved.replaced, 2.0)):
            found[name] += int((~(far <= most + slack)).sum())
        found["pairs"] += len(moved.added)
        found["near"] += int((moved.added > 0.99).sum())
    return found


@pytest.mark.parametrize("each", [1, 4])
@pytest.mark.parametrize("net", NETS)
def test_a_person_moves_a_sum_by_at_most_the_clip(net: str, each: int) -> None:
    found = check(net, each, QUICK, 1)
    assert (found["added"], found["replaced"]) == (0, 0)
    assert found["near"] > 0.2 * QUICK, "bounds that nothing comes near say little"


@pytest.mark.soak
@pytest.mark.parametrize("each", [1, 4])
@pytest.mark.parametrize("net", NETS)
def test_ten_thousand_persons_move_sums_by_at_most_the_clip(net: str, each: int) -> None:
    found = check(net, each, FULL, 2)
    assert (found["pairs"], found["added"], found["replaced"]) == (FULL, 0, 0)
    assert found["near"] > 0.2 * FULL


@pytest.mark.parametrize("net", ["closed form", "packed", "vmap", "discrete"])
def test_rows_of_a_person_that_are_clipped_one_by_one_are_refused(net: str) -> None:
    with patch.object(Persons, "drawn", all_rows):
        found = check(net, 1, 50, 3)
    assert found["added"] > 5
    assert found["replaced"] > 5


def test_rows_that_are_not_averaged_are_refused() -> None:
    """Several rows to a batch: the path must know that they are one person's."""
    with patch.object(Persons, "drawn", flattened):
        found = check("vmap", 4, 50, 4)
    assert found["added"] > 5
