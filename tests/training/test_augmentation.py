"""Full batches with copies of each image: what is trained on, what noise it has, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from hush.models import Model
from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import RoundSpec, calibrated, drafted
from hush.privacy.sensitivity import SLACK
from hush.training.augmentation import SHIFT, augmented, shifted
from hush.training.job import Job
from hush.training.train import train
from hush.types import HushError, Layout, Policy
from tests.conformance.references import rc_dpfl, toy
from tests.support.recipe_toys import Script

SIDE, CLASSES, ROWS, COPIES, LR = 5, 3, 7, 3, 0.4
WIDTH = SIDE * SIDE
IMAGES = np.random.default_rng(1).normal(size=(ROWS, 1, SIDE, SIDE))
LABELS = np.random.default_rng(2).integers(0, CLASSES, ROWS)
THETA = 0.3 * np.random.default_rng(3).normal(size=CLASSES * (WIDTH + 1))
NOISE = np.random.default_rng(4).normal(size=THETA.size)
POLICY = Policy(2.0, 1e-4)


class Drawing(Script):
    """A script with uniform numbers as well."""

    def __init__(self, uniforms: np.ndarray, *args: Any) -> None:
        super().__init__(*args)
        self._uniforms = uniforms

    def uniform(self, size: int) -> Tensor:
        assert size == len(self._uniforms)
        return torch.tensor(self._uniforms)


def plan(copies: int = COPIES, noise_per: Literal["row", "copy"] = "row", batch: int = ROWS) -> PrivacyPlan:
    return PrivacyPlan(
        samples=ROWS, batch=batch, epochs=1, rounds=1, clip=0.6, noise_multiplier=1.4, relation="add-remove",
        accountant="pld", local_steps=1, copies=copies, noise_per=noise_per,
    )  # fmt: skip


def model() -> Model:
    module = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, CLASSES)).double().requires_grad_(False)
    layout = Layout(("1.weight", "1.bias"), ((CLASSES, WIDTH), (CLASSES,)))
    return Model(name="toy", module=module, layout=layout, start=torch.tensor(THETA))


@pytest.mark.parametrize("noise_per", ["row", "copy"])
def test_a_step_agrees_with_the_plain_reference(noise_per: Literal["row", "copy"]) -> None:
    uniforms = np.random.default_rng(5).random(2 * (COPIES - 1) * ROWS)
    source = Drawing(uniforms, [range(COPIES * ROWS)], [NOISE])
    # Other rows lie before the client's own.
    x = torch.cat([torch.zeros(4, 1, SIDE, SIDE, dtype=torch.float64), torch.tensor(IMAGES)])
    y = torch.cat([torch.zeros(4, dtype=torch.int64), torch.tensor(LABELS)])
    job = Job(vector=torch.tensor(THETA), first_row=4, plan=plan(noise_per=noise_per), lr=LR, source=source)  # type: ignore[arg-type]
    (found,) = train(model(), x, y, [job])
    assert source.left == (0, 0)
    pixels = np.floor(uniforms * (2 * SHIFT + 1)).astype(int) - SHIFT
    moves = [list(zip(*each, strict=True)) for each in pixels.reshape(COPIES - 1, 2, ROWS)]
    client = toy.Client(IMAGES, LABELS, ROWS, clip=0.6, z=1.4, slack=SLACK)
    expected = rc_dpfl.augmented_update(THETA, client, IMAGES, moves, NOISE, LR, per=noise_per)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)
    # The other noise would be seen.
    other = rc_dpfl.augmented_update(
        THETA, client, IMAGES, moves, NOISE, LR, per="copy" if noise_per == "row" else "row"
    )
    assert np.abs(found.numpy() - other).max() > 0.01


def test_shifts_agree_with_padding_and_cutting() -> None:
    images = np.random.default_rng(6).normal(size=(25, 3, 6, 4))
    down, right = np.meshgrid(range(-2, 3), range(-2, 3))
    expected = [rc_dpfl.shifted(*each) for each in zip(images, down.ravel(), right.ravel(), strict=True)]
    found = shifted(torch.tensor(images), torch.tensor(down.ravel()), torch.tensor(right.ravel()))
    np.testing.assert_array_equal(found.numpy(), expected)


def test_one_row_moves_the_sum_by_at_most_what_its_noise_is_for() -> None:
    """Without noise: the sum of a client with a row more differs by `copies` clips at most, and by more than one."""
    uniforms = np.random.default_rng(7).random((COPIES - 1, 2, ROWS))

    def total(rows: int) -> Tensor:
        own = uniforms[:, :, :rows].ravel()
        source = Drawing(own, [range(COPIES * rows)], [np.zeros(THETA.size)])
        drawn = replace(plan(), samples=rows, batch=rows)
        job = Job(vector=torch.tensor(THETA), first_row=0, plan=drawn, lr=1.0, source=source)  # type: ignore[arg-type]
        (found,) = train(model(), torch.tensor(IMAGES[:rows]), torch.tensor(LABELS[:rows]), [job])
        return -found * COPIES * rows

    moved = float((total(ROWS) - total(ROWS - 1)).norm())
    assert 0.6 < moved <= COPIES * 0.6


def test_the_noise_of_the_mean_is_that_of_the_plan() -> None:
    """As without copies where it is for a row; a third of it for one of three copies. What is charged never differs."""
    alone, rows, copies = plan(1), plan(), plan(noise_per="copy")
    size = THETA.size
    assert rows.update_noise(LR, size) == pytest.approx(alone.update_noise(LR, size))
    assert copies.update_noise(LR, size) == pytest.approx(alone.update_noise(LR, size) / COPIES**2)
    for each in (rows, copies):
        step = each.of_copies
        applied = step.noise_multiplier * step.clip / step.batch * LR
        assert size * applied**2 == pytest.approx(each.update_noise(LR, size))
        assert each.cost(1) == alone.cost(1)


def test_copies_change_nothing_of_what_a_schedule_costs() -> None:
    usual = plan(1, batch=2)
    found = [
        calibrated(drafted([RoundSpec(full_batch=True, copies=copies), RoundSpec()], [1, 5], usual), POLICY)
        for copies in (1, COPIES)
    ]
    assert found[0].costs() == found[1].costs()
    assert [stage.plan.copies for stage in found[1].stages] == [COPIES, 1]


def test_copies_are_for_full_batches() -> None:
    with pytest.raises(ValueError, match=r"copies: expected 1, or more in a full batch, found 3 at rate 0\.2857"):
        plan(batch=2)


def test_clients_without_copies_train_beside_others() -> None:
    x, y = torch.tensor(np.concatenate([IMAGES, IMAGES])), torch.tensor(np.concatenate([LABELS, LABELS]))

    def job(first: int, copies: int) -> Job:
        uniforms = np.zeros(2 * (copies - 1) * ROWS)
        source = Drawing(uniforms, [range(copies * ROWS)], [NOISE])
        return Job(vector=torch.tensor(THETA), first_row=first, plan=plan(copies), lr=LR, source=source)  # type: ignore[arg-type]

    both = train(model(), x, y, [job(0, COPIES), job(ROWS, 1)])
    alone = [train(model(), x, y, [each])[0] for each in (job(0, COPIES), job(ROWS, 1))]
    for one, other in zip(both, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert float((both[0] - both[1]).norm()) > 1e-3


def test_the_first_copy_is_the_image_itself() -> None:
    source = Drawing(np.full(2 * (COPIES - 1) * ROWS, 0.99), [], [])
    job = Job(vector=torch.tensor(THETA), first_row=0, plan=plan(), lr=LR, source=source)  # type: ignore[arg-type]
    x, y, (moved,) = augmented(torch.tensor(IMAGES), torch.tensor(LABELS), job)
    assert torch.equal(x[:ROWS], torch.tensor(IMAGES))
    assert torch.equal(y, torch.tensor(np.tile(LABELS, COPIES)))
    assert (moved.plan.samples, moved.plan.batch, moved.plan.copies) == (COPIES * ROWS, COPIES * ROWS, 1)
    assert moved.plan.rate == 1


def run(tmp_path: Path, data: dict[str, Any], **assign: Any) -> Any:
    config = {
        "rounds": 4,
        "mode": "sound",
        "data": {"clients": 4, **data},
        "model": {"name": "logreg"},
        "privacy": {"budgets": 4.0, "delta": 1e-4},
        "local": {"lr": 0.1, "batch_size": 16},
        "recipe": {"name": "rc-dpfl", "assign": {"rule": "gmm-then-loss", "clusters": 2, **assign}},
    }
    return hush.simulate(config, out=tmp_path)


def test_a_run_names_noise_that_is_for_single_copies(tmp_path: Path) -> None:
    covered = run(tmp_path / "row", {"name": "digits"}, copies=3)
    named = run(tmp_path / "copy", {"name": "digits"}, copies=3, noise_per="copy")
    assert not any("copies" in text for text in covered.not_covered)
    text = "model update of round 1: its noise is for one of the 3 copies of each row, so a row has 1/3 of it"
    assert text in named.not_covered
    spent = [[card.epsilon_spent for card in result.guarantees] for result in (covered, named)]
    assert spent[0] == spent[1]


def test_rows_that_are_no_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HushError, match=r"recipe\.assign\.copies: copies are images that are shifted"):
        run(tmp_path, {"name": "synthetic", "samples": 40}, copies=2)
    for copies in (0, 33):
        with pytest.raises(HushError, match=f"copies: expected 1 to 32, found {copies}"):
            run(tmp_path, {"name": "synthetic", "samples": 40}, copies=copies)
