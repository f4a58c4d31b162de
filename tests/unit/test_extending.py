"""docs/extending.md shows the files in examples/, and they do what it says."""

from __future__ import annotations

import json
import re
import sys
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import hush
from hush.recipes import RECIPES, SLOTS, Recipe, parse

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
Array = npt.NDArray[np.float64]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the directory of the examples, as a user would be."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(EXAMPLES))])
    yield
    for name in ("fedyogi", "square_root"):
        sys.modules.pop(name, None)


def yogi(x: Array, moves: list[Array], lr: float, beta1: float, beta2: float, tau: float) -> list[Array]:
    """FedYogi as its paper prints it (Algorithm 2), one number after the other."""
    m, v, models = np.zeros_like(x), np.full_like(x, tau**2), []
    for delta in moves:
        x = x.copy()
        for j in np.ndindex(x.shape):
            m[j] = beta1 * m[j] + (1 - beta1) * delta[j]
            gap = v[j] - delta[j] ** 2
            v[j] = v[j] - (1 - beta2) * delta[j] ** 2 * (1 if gap > 0 else -1 if gap < 0 else 0)
            x[j] = x[j] + lr * m[j] / (np.sqrt(v[j]) + tau)
        models.append(x)
    return models


def test_the_page_shows_the_files() -> None:
    blocks = re.findall(r"```(python|toml)\n(.*?)```", PAGE, re.DOTALL)
    for path in sorted(EXAMPLES.iterdir()):
        if path.suffix in (".py", ".toml"):
            kind = "python" if path.suffix == ".py" else "toml"
            assert (kind, path.read_text(encoding="utf-8")) in blocks, path.name


def test_the_page_says_what_each_slot_must_have() -> None:
    rows = re.findall(r"^\| .* \| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    shown = {slot: set(re.findall(r"`(\w+)`", parts)) for slot, parts in rows}
    kinds = typing.get_type_hints(Recipe)
    assert shown == {
        slot: {part for part in dir(kinds[slot]) if not part.startswith("_")} - {"ask", "releases"} for slot in SLOTS
    }


@pytest.mark.usefixtures("beside")
def test_the_example_runs_and_moves_as_its_paper_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = tomllib.loads((EXAMPLES / "fedyogi.toml").read_text())["recipe"]
    _, built = parse(recipe)
    rule = type(built.step)
    assert rule.__module__ == "fedyogi"
    seen: list[tuple[Array, Array, Array]] = []
    original = rule.step

    def spy(self: Any, models: Any, move: Any, state: Any, chance: Any) -> Any:
        after, kept = original(self, models, move, state, chance)
        seen.append(tuple(t.double().numpy() for t in (models, move, after)))
        return after, kept

    monkeypatch.setattr(rule, "step", spy)
    small = ["rounds=4", "data.clients=4", "privacy.budgets=5"]
    result = hush.simulate("fedyogi.toml", overrides=small, out=tmp_path / "run")
    moves = [move for _, move, _ in seen]
    assert len(moves) == 4
    settings = {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
    expected = yogi(seen[0][0], moves, recipe["step"]["lr"], **settings)
    np.testing.assert_allclose([after for _, _, after in seen], expected, rtol=1e-4, atol=1e-6)
    # FedAdam from the same moves is told apart, so the comparison above is one of FedYogi.
    adam = adam_of(seen[0][0], moves, recipe["step"]["lr"], **settings)
    assert np.abs(adam[-1] - expected[-1]).max() > 1e-4
    assert result.recipe == "weiavg (modified)"


def adam_of(x: Array, moves: list[Array], lr: float, beta1: float, beta2: float, tau: float) -> list[Array]:
    """FedAdam, which differs in the second moment alone."""
    m, v, models = np.zeros_like(x), np.full_like(x, tau**2), []
    for delta in moves:
        m, v = beta1 * m + (1 - beta1) * delta, beta2 * v + (1 - beta2) * delta**2
        x = x + lr * m / (np.sqrt(v) + tau)
        models.append(x)
    return models


@pytest.mark.usefixtures("beside")
def test_a_run_that_stops_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    small = ["rounds=4", "data.clients=4", "privacy.budgets=5"]
    whole = hush.simulate("fedyogi.toml", overrides=small)

    def stop(record: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hush.simulate("fedyogi.toml", overrides=small, out=tmp_path / "run", progress=stop)
    resumed: list[int] = []
    result = hush.simulate(
        "fedyogi.toml", overrides=small, out=tmp_path / "run", resume=True, progress=lambda r: resumed.append(r.round)
    )
    assert resumed == [3, 4]
    assert (result.accuracy_per_client, result.loss) == (whole.accuracy_per_client, whole.loss)


@pytest.mark.usefixtures("beside")
def test_what_the_examples_release_is_named(tmp_path: Path) -> None:
    small = ["rounds=2", "data.clients=4", "privacy.budgets=5"]
    result = hush.simulate("fedyogi.toml", overrides=small)
    declared = [f"{r.what}: {r.why}" for r in RECIPES["weiavg"].releases() if not r.covered]
    assert list(result.not_covered[: len(declared)]) == declared
    by_root = [*small, 'recipe.weigh="square_root:SquareRoot"']
    result = hush.simulate("fedyogi.toml", overrides=by_root, out=tmp_path / "run")
    words = "number of training samples: taken as public, and its root used as the weight"
    assert words in result.not_covered
    assert words in PAGE
    assert words in json.loads((tmp_path / "run" / "result.json").read_text())["not_covered"]
    assert not any("privacy budget" in line for line in result.not_covered)


@pytest.mark.usefixtures("beside")
def test_weights_by_the_root() -> None:
    records: list[Any] = []
    more = ["rounds=1", "data.clients=3", "data.sizes=[100, 200, 400]", 'recipe.weigh="square_root:SquareRoot"']
    hush.simulate("fedyogi.toml", overrides=more, progress=records.append)
    roots = np.sqrt([80, 160, 320])
    assert list(records[0].weights.values()) == pytest.approx(list(roots / roots.sum()))


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere:Thing", r"step\.rule: 'nowhere:Thing' cannot be used: No module named 'nowhere'; expected module:Cl"),
        ("fedyogi:Nothing", r"step\.rule: 'fedyogi:Nothing' cannot be used: module 'fedyogi' has no attribute 'Noth"),
        ("fedyogi:dataclass", r"step\.rule: 'fedyogi:dataclass' cannot be used: it is not a dataclass"),
        (":", r"step\.rule: ':' cannot be used"),
        ("square_root:SquareRoot", r"step\.rule: 'square_root:SquareRoot' lacks released, start, step; accepted: one"),
        ({"rule": "fedyogi:FedYogi", "tua": 1.0}, r"step\.tua: unknown key 'tua'; did you mean tau"),
        ({"rule": "fedyogi:FedYogi", "tau": "x"}, r"step\.tau: expected a valid number, found 'x'"),
        ({"rule": "fedyogi:FedYogi", "tau": 0.0}, r"step\.tau: expected a positive number, found 0\.0"),
        ({"rule": ["fedyogi"]}, r"step\.rule: unknown rule \['fedyogi'\]"),
    ],
)
def test_mistakes_are_told_in_one_line(spec: Any, words: str) -> None:
    with pytest.raises(hush.HushError, match=r"^recipe\." + words) as caught:
        parse({"step": spec})
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("beside")
def test_own_options_within_others() -> None:
    _, recipe = parse({"step": {"rule": "ema", "inner": {"rule": "fedyogi:FedYogi", "lr": 0.5}}})
    inner = getattr(recipe.step, "inner", None)
    assert getattr(inner, "lr", None) == 0.5
