"""docs/extending.md shows the files in examples/, and they do what it says."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
import torch

import hush
from hush.config import parse as parse_config
from hush.deploy.admin import localhost
from hush.recipes import RECIPES, SLOTS, Recipe, parse
from tests.support.fork_server import ForkServer
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
Array = npt.NDArray[np.float64]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the directory of the examples, as a user would be."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(EXAMPLES))])
    yield
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


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
    rows = re.findall(r"^\| .* \| `(\w+)` \| `hush\.(\w+)` \| (?:`(\w*)` )?\|$", PAGE, re.MULTILINE)
    kinds = typing.get_type_hints(Recipe)
    wanted = {slot: set(vars(kinds[slot]).get("__abstractmethods__", ())) for slot in SLOTS}
    assert {slot: {part} - {""} for slot, _, part in rows} == wanted
    assert all(vars(hush)["__getattr__"](base) is kinds[slot] for slot, base, _ in rows)


@dataclass(frozen=True)
class Halving(hush.Weight):
    """The first client counts half, the others share the rest: an option with a default for all but one method."""

    first: float = 0.5

    def weight(self, view: hush.RoundView, state: hush.State) -> tuple[hush.Weights, hush.State]:
        rest = torch.full_like(view.samples, (1 - self.first) / (len(view.clients) - 1))
        return hush.Weights(rest.index_fill(0, torch.tensor(0), self.first)), state


SMALL = {"rounds": 3, "data": {"clients": 3}, "privacy": {"budgets": 5}}


@pytest.mark.parametrize(
    "recipe", [hush.Recipe(weight=Halving()), {"name": "dp-fedavg", "weight": Halving()}], ids=["recipe", "table"]
)
def test_options_can_be_passed_in_python(recipe: Any, tmp_path: Path) -> None:
    records: list[Any] = []
    result = hush.simulate(SMALL, recipe=recipe, out=tmp_path / "run", progress=records.append)
    assert [list(record.weights.values()) for record in records] == [[0.5, 0.25, 0.25]] * 3
    described = {"rule": f"{__name__}:Halving", "first": 0.5}
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert result.config["recipe"]["weight"] == manifest["config"]["recipe"]["weight"] == described
    # What is recorded is a table that gives the same run, and a config that holds the options can be passed on.
    again = hush.simulate({**SMALL, "recipe": result.config["recipe"]})
    assert (again.loss, again.config_hash) == (result.loss, result.config_hash)
    assert hush.simulate({**SMALL, "recipe": recipe}).loss == result.loss


def test_a_run_resumes_with_an_equal_option_alone(tmp_path: Path) -> None:
    def stop(record: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    whole = hush.simulate(SMALL, recipe=hush.Recipe(weight=Halving()))
    with pytest.raises(KeyboardInterrupt):
        hush.simulate(SMALL, recipe=hush.Recipe(weight=Halving()), out=tmp_path / "run", progress=stop)
    with pytest.raises(hush.HushError, match="contains a run with a different config"):
        hush.simulate(SMALL, recipe=hush.Recipe(weight=Halving(0.4)), out=tmp_path / "run", resume=True)
    resumed = hush.simulate(SMALL, recipe=hush.Recipe(weight=Halving()), out=tmp_path / "run", resume=True)
    assert resumed.loss == whole.loss


def test_an_option_in_the_wrong_slot_is_refused() -> None:
    with pytest.raises(
        hush.HushError, match=r"^recipe\.step: Halving is not an option of step; accepted: a hush\.Serv"
    ):
        hush.simulate(SMALL, recipe={"step": Halving()})
    with pytest.raises(hush.HushError, match=r"^recipe: found int; accepted: a name, a table or a Recipe"):
        hush.simulate(SMALL, recipe=3)  # type: ignore[arg-type]


def test_importing_hush_imports_no_torch() -> None:
    code = "import sys, hush; print('torch' in sys.modules, hush.Weight.__name__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "Weight", "True"]


@pytest.mark.usefixtures("beside")
def test_the_example_runs_and_moves_as_its_paper_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = tomllib.loads((EXAMPLES / "fedyogi.toml").read_text())["recipe"]
    _, built = parse(recipe)
    rule = type(built.step)
    assert rule.__module__ == "fedyogi"
    seen: list[tuple[Array, Array, Array]] = []
    original = rule.step

    def spy(self: Any, models: Any, move: Any, state: Any, rng: Any) -> Any:
        after, kept = original(self, models, move, state, rng)
        seen.append(tuple(t.double().numpy() for t in (models, move, after)))  # type: ignore[arg-type]
        return after, kept

    monkeypatch.setattr(rule, "step", spy)
    small = ["rounds=4", "data.clients=4", "privacy.budgets=5"]
    result = hush.simulate("fedyogi.toml", overrides=small, out=tmp_path / "run")
    moves = [move for _, move, _ in seen]
    assert len(moves) == 4
    settings = {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
    expected = yogi(seen[0][0], moves, recipe["step"]["lr"], **settings)
    np.testing.assert_allclose([after for _, _, after in seen], expected, rtol=1e-4, atol=1e-6)
    # FedAdam from the same moves is distinguished, so the comparison above is one of FedYogi.
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
    by_root = [*small, 'recipe.weight="square_root:SquareRoot"']
    result = hush.simulate("fedyogi.toml", overrides=by_root, out=tmp_path / "run")
    words = "number of training samples: taken as public, and its root used as the weight"
    assert words in result.not_covered
    assert words in PAGE
    assert words in json.loads((tmp_path / "run" / "result.json").read_text())["not_covered"]
    assert not any("privacy budget" in line for line in result.not_covered)


@pytest.mark.usefixtures("beside")
def test_weights_by_the_root() -> None:
    records: list[Any] = []
    more = ["rounds=1", "data.clients=3", "data.sizes=[100, 200, 400]", 'recipe.weight="square_root:SquareRoot"']
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
        ("square_root:SquareRoot", r"step\.rule: 'square_root:SquareRoot' is not an option of step; accepted: a sub"),
        ({"rule": "fedyogi:FedYogi", "tua": 1.0}, r"step\.tua: unknown key 'tua'; did you mean tau"),
        ({"rule": "fedyogi:FedYogi", "tau": "x"}, r"step\.tau: expected a valid number, found 'x'"),
        ({"rule": "fedyogi:FedYogi", "tau": 0.0}, r"step\.tau: expected a positive number, found 0\.0"),
        ({"rule": ["fedyogi"]}, r"step\.rule: unknown rule \['fedyogi'\]"),
    ],
)
def test_mistakes_are_reported_in_one_line(spec: Any, words: str) -> None:
    with pytest.raises(hush.HushError, match=r"^recipe\." + words) as caught:
        parse({"step": spec})
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("beside")
def test_own_options_within_others() -> None:
    _, recipe = parse({"step": {"rule": "ema", "inner": {"rule": "fedyogi:FedYogi", "lr": 0.5}}})
    inner = getattr(recipe.step, "inner", None)
    assert getattr(inner, "lr", None) == 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("beside")
def test_an_estimator_a_dataset_and_a_model_are_one_file_each(tmp_path: Path) -> None:
    records: list[Any] = []
    result = hush.simulate("two_circles.toml", out=tmp_path / "run", progress=records.append)
    assert (result.dataset, result.model) == ("two_circles:two_circles", "residual_mlp:residual_mlp")
    assert result.recipe == "robust-hdp (modified)"
    assert result.accuracy["mean"] > 0.9
    energies = np.array(list(records[-1].noise_estimated.values()))
    weights = np.array(list(records[-1].weights.values()))
    np.testing.assert_allclose(weights, 1 / energies / (1 / energies).sum(), rtol=1e-5)
    # The most private client has the most noise, and the least weight.
    assert weights.argmin() == energies.argmax() == 0
    # Named or passed as objects, the estimator and the dataset give the same run.
    from median_noise import MedianNoise
    from two_circles import two_circles

    recipe = {"name": "robust-hdp", "weight": MedianNoise()}
    assert hush.simulate("two_circles.toml", dataset=two_circles(), recipe=recipe).loss == result.loss


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "nowhere:rows",
            "data.name: 'nowhere:rows' cannot be used: No module named 'nowhere'; expected module:function",
        ),
        ("two_circles:points", "module 'two_circles' has no attribute 'points'; expected module:function"),
        ("residual_mlp:Residual", "missing 1 required positional argument: 'width'; expected module:function"),
        ("os:getpid", "found int; accepted: arrays x and y"),
    ],
)
def test_datasets_that_cannot_be_used_are_named(spec: str, words: str) -> None:
    with pytest.raises(hush.HushError, match=re.escape(words)):
        hush.simulate("two_circles.toml", overrides=[f'data.name="{spec}"'])


@pytest.mark.usefixtures("beside")
def test_a_side_release_of_ones_own_is_produced_charged_and_listed(tmp_path: Path) -> None:
    counts: list[Any] = []
    parse({"weight": "label_balance:LabelBalance"})
    module = importlib.import_module("label_balance")
    real = module.LabelBalance.weight

    def spy(self: Any, view: Any, state: Any) -> Any:
        counts.append(view.answers["label counts"])
        return real(self, view, state)

    with patch.object(module.LabelBalance, "weight", spy):
        result = hush.simulate(SMALL, recipe={"weight": "label_balance:LabelBalance"}, out=tmp_path / "run")
    assert [tuple(each.shape) for each in counts] == [(3, 10)] * 3
    for card in result.guarantees:
        (stage,) = card.stages
        (cost,) = [each for each in stage if each["what"] == "label counts"]
        assert cost["kind"] == "poisson-gaussian"
        assert cost["noise"] > 0
        assert card.epsilon_spent is not None
        assert card.epsilon_spent <= 5
    alone = hush.simulate(SMALL, recipe={"weight": "uniform"})
    # What it costs is taken from the budget that training has without it.
    assert all(
        (a.noise_multiplier or 0) > (b.noise_multiplier or 0)
        for a, b in zip(result.guarantees, alone.guarantees, strict=True)
    )
    assert "label counts" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.usefixtures("beside")
def test_a_side_release_of_ones_own_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    recipe = {"weight": "label_balance:LabelBalance"}
    whole = hush.simulate(SMALL, recipe=recipe)

    def stop(record: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hush.simulate(SMALL, recipe=recipe, out=tmp_path / "run", progress=stop)
    assert hush.simulate(SMALL, recipe=recipe, out=tmp_path / "run", resume=True).loss == whole.loss


@pytest.mark.usefixtures("beside")
def test_a_side_release_of_ones_own_is_audited() -> None:
    config = {**SMALL, "rounds": 1, "recipe": {"weight": "label_balance:LabelBalance"}}
    found = hush.audit(config, kind="one-run", runs=1, canaries=8)
    assert [(each["what"], each["times"], each["audited"]) for each in found["releases"]] == [
        ("model update", 1, 1), ("label counts", 1, 1),
    ]  # fmt: skip
    assert not found["refuted"]


@pytest.mark.usefixtures("beside")
def test_a_side_release_needs_a_budget_and_a_name_of_its_own() -> None:
    with pytest.raises(hush.HushError, match=r"^recipe\.weight: a side release has no budget"):
        hush.simulate(SMALL, recipe={"name": "fedavg", "weight": "label_balance:LabelBalance"})


@pytest.mark.usefixtures("beside")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of typer about click
def test_a_side_release_of_ones_own_between_machines(tmp_path: Path, parent: ForkServer) -> None:
    """A federation of two members on localhost: both release the counts, which are charged as in a simulation."""
    pytest.importorskip("flwr", reason="needs the deploy extra")
    recipe = {"weight": "label_balance:LabelBalance"}
    config = parse_config({**SMALL, "rounds": 2, "data": {"clients": 2}, "recipe": recipe})
    place = localhost.make(tmp_path / "federation", config)
    for policy in (tmp_path / "federation" / "kits").glob("*/policy.toml"):
        text = policy.read_text()
        policy.write_text(text.replace("models = []", 'models = ["label_balance:LabelBalance"]', 1))
    with parent.tidy() as fork_server:
        fork_server.start(["federation", "serve", place.path], place.server / "superlink.log").wait_for("ready at", 60)
        for name in place.members():
            kit = place.path / "kits" / name
            words = ["federation", "join", kit, "--data", kit / "data.npz"]
            fork_server.start(words, kit / "join.log", cwd=EXAMPLES).wait_for("is online", 60)
        result = localhost.coordinator(place, 10).run(config, place.runs / localhost.RUN)
    alone = hush.simulate(config)
    lines = (place.runs / localhost.RUN / "rounds.jsonl").read_text().splitlines()
    assert [sorted(json.loads(line)["weights"]) for line in lines] == [["0", "1"]] * 2
    assert [card.noise_multiplier for card in result.guarantees] == [card.noise_multiplier for card in alone.guarantees]
    for card in result.guarantees:
        assert any(cost["what"] == "label counts" for stage in card.stages for cost in stage)
