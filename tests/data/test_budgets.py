"""Budgets and batch sizes: every way to write them, and errors that name the key."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush.data import distributions
from hush.data.budgets import batch_sizes, budgets, distribution_names
from hush.types import HushError


def test_numbers_and_lists() -> None:
    assert budgets(2, 3, 0) == (2.0, 2.0, 2.0)
    assert budgets([0.5, 1, 2.5], 3, 0) == (0.5, 1.0, 2.5)
    assert budgets(np.array([0.5, 1.0]), 2, 0) == (0.5, 1.0)  # type: ignore[arg-type]


def test_files(tmp_path: Path) -> None:
    contents = {"b.json": "[0.5, 1, 2]", "b.txt": "0.5\n1\n\n2\n", "b.csv": "\ufeff0.5, 1,2\r\n", "B.TXT": "0.5\n1,2"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert budgets(str(tmp_path / name), 3, 0) == (0.5, 1.0, 2.0)


@pytest.mark.parametrize("name", distribution_names())
def test_every_name_gives_positive_replayable_budgets(name: str) -> None:
    drawn = budgets(name, 20, 7)
    assert len(drawn) == 20 and min(drawn) > 0 and np.isfinite(drawn).all()
    assert drawn == budgets(name.upper(), 20, 7)
    assert name.startswith("robust-hdp-paper") == (drawn == budgets(name, 20, 8))


def test_names() -> None:
    assert (
        len(distribution_names()) == 9 + 7 + 9
        and "robust-hdp-paper:dist6" in distribution_names()
        and "mixgauss4" in distribution_names()
    )


def test_more_clients_leave_the_first_budgets_as_they_are() -> None:
    assert budgets("dist6", 40, 0)[:20] == budgets("dist6", 20, 0)


def test_values_of_the_paper() -> None:
    assert budgets("robust-hdp-paper:dist1", 20, 0)[:3] == (2.81, 1.69, 1.74)
    assert len(budgets("robust-hdp-paper:dist9", 60, 0)) == 60
    assert batch_sizes("robust-hdp-paper", 20, 0)[:4] == (32, 64, 16, 32)
    assert batch_sizes("robust-hdp-paper", 40, 0)[:20] == batch_sizes("robust-hdp-paper", 20, 1)
    with pytest.raises(HushError, match=r"privacy\.budgets: .*no values for 30 clients; accepted: 20, 40, 60"):
        budgets("robust-hdp-paper:dist1", 30, 0)
    with pytest.raises(HushError, match=r"local\.batch_size: .*no values for 30 clients; accepted: 20, 40, 60"):
        batch_sizes("robust-hdp-paper", 30, 0)


def test_second_parameter_is_the_standard_deviation_in_the_papers_own_draws() -> None:
    near_one = [value for value in budgets("robust-hdp-paper:dist2", 60, 0) if 0.5 < value < 2]
    assert len(near_one) == 41
    # Two-sided 99.9 % bounds of the standard deviation of 41 draws at 0.1; sqrt(0.1) is far outside.
    assert 0.1 * 0.65 < np.std(near_one, ddof=1) < 0.1 * 1.38 < np.sqrt(0.1)
    assert distributions.ROBUST_HDP["dist2"].components[1] == distributions.Normal(1.0, 0.1)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (0, "found 0"),
        (-1.0, "found -1"),
        (float("nan"), "found nan"),
        (float("inf"), "found inf"),
        (True, "found True"),
        (None, "found None"),
        ([1, 2], "2 numbers for 3 clients"),
        ([1, 0, 2], r"privacy\.budgets\[1\]: found 0"),
        ([1, 2, "3"], r"privacy\.budgets\[2\]: found '3'"),
        ([1, 2, float("inf")], r"\[2\]: found inf"),
        ("dist10", "did you mean dist1"),
        ("nothing like it", "accepted: dist1"),
        ("robust-hdp-paper:dist0", "unknown"),
        ("no-such-file.json", r"no-such-file\.json cannot be read \(No such file"),
    ],
)
def test_wrong_budgets(spec: Any, words: str) -> None:
    with pytest.raises(HushError, match=words) as error:
        budgets(spec, 3, 0)
    assert error.value.key == "privacy.budgets" and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("b.json", "[1, 2", "not a list of numbers"),
        ("b.json", json.dumps({"a": 1}), "accepted: a list"),
        ("b.json", "[" * 100_000, "not a list of numbers"),
        ("b.json", "[1, 2]", "2 numbers in .* for 3 clients"),
        ("b.json", "[1, 2, NaN]", r"\[2\]: found nan"),
        ("b.txt", "1\ntwo\n3", "not a list of numbers"),
        ("b.txt", "1\n-2\n3", r"\[1\]: found -2"),
        ("b.csv", "", "0 numbers in"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(HushError, match=words) as error:
        budgets(str(tmp_path / name), 3, 0)
    assert error.value.key == "privacy.budgets" and "\n" not in str(error.value)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HushError, match="not a list of numbers"):
        budgets(str(tmp_path / "b.txt"), 3, 0)


def test_batch_sizes() -> None:
    assert batch_sizes(32, 3, 0) == (32, 32, 32)
    drawn = batch_sizes([16, 32, 64, 128], 22, 0)
    assert sorted(Counter(drawn).values()) == [5, 5, 6, 6] and set(drawn) == {16, 32, 64, 128}
    assert drawn == batch_sizes([16, 32, 64, 128], 22, 0) != batch_sizes([16, 32, 64, 128], 22, 1)
    assert list(drawn) != sorted(drawn)
    # With fewer clients than choices, any of the choices may be used.
    assert {batch_sizes([16, 32], 1, seed)[0] for seed in range(20)} == {16, 32}


@pytest.mark.parametrize("spec", [0, -1, 1.5, True, [], [16, 0], [16, "a"], "robust", None])
def test_wrong_batch_sizes(spec: Any) -> None:
    with pytest.raises(HushError, match=r"^local\.batch_size") as error:
        batch_sizes(spec, 3, 0)
    assert error.value.key == "local.batch_size"
