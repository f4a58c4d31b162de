from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hush.config import Config, config_hash, load, located, parse
from hush.types import HushError

MINIMAL = """\
seed = 1
rounds = 20
[data]
name = "digits"
clients = 20
partition = "iid"              # or { name = "dirichlet", alpha = 1.0 }
[model]
name = "logreg"
[privacy]
budgets = "dist6"              # number, list, file or name
delta = 1e-4
clip = 1.0
[local]
batch_size = [16, 32, 64]      # a number for all, or choices drawn per client
epochs = 1
lr = 0.1
[recipe]
name = "robust-hdp"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL)
    return path


def test_minimal_file(file: Path) -> None:
    config = load(file)
    assert (config.seed, config.rounds, config.data.clients) == (1, 20, 20)
    assert config.local.batch_size == [16, 32, 64]
    assert config.recipe == {"name": "robust-hdp"}


def test_sets_replace_keys(file: Path) -> None:
    config = load(file, ["local.lr=0.5", "data.partition.name=dirichlet", "data.name=mnist"][:1])
    assert config.local.lr == 0.5
    config = load(file, ['data.partition={name="dirichlet", alpha=0.3}', "data.name=mnist", "privacy.budgets=[1, 2.5]"])
    assert config.data.partition == {"name": "dirichlet", "alpha": 0.3}
    assert config.data.name == "mnist"
    assert config.privacy.budgets == [1, 2.5]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("clients = 20", "clints = 20", 5, "data.clints: unknown key 'clints'; did you mean clients?"),
        ("clients = 20", 'clients = "many"', 5, "data.clients: expected a valid integer"),
        ("clients = 20", "clients = 2.5", 5, "data.clients: expected a valid integer"),
        ("clients = 20", "clients = true", 5, "data.clients: expected a valid integer"),
        ("rounds = 20", "rounds = 0", 2, "rounds: expected greater than or equal to 1, found 0"),
        ("delta = 1e-4", "delta = 0", 11, "privacy.delta: expected a number between 0 and 1"),
        ("delta = 1e-4", "delta = 1.0", 11, "privacy.delta: expected a number between 0 and 1"),
        ("delta = 1e-4", "delta = [1e-4, 2]", 11, "privacy.delta: expected a number between 0 and 1"),
        ("clip = 1.0", "clip = -1", 12, "privacy.clip: expected greater than or equal to"),
        ("lr = 0.1", "lr = nan", 16, "local.lr: expected a number above 0"),
        ("lr = 0.1", "lr = inf", 16, "local.lr: expected a number above 0"),
        (
            'budgets = "dist6"',
            "budgets = true",
            10,
            "privacy.budgets: expected a number, a list, a table by client name, a file or a name",
        ),
        ("[recipe]", "[recipes]", 17, "recipes: unknown key 'recipes'; did you mean recipe?"),
    ],
)
def test_mistakes_name_key_and_line(file: Path, old: str, new: str, line: int, words: str) -> None:
    file.write_text(MINIMAL.replace(old, new))
    with pytest.raises(HushError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}:{line}: {words}")
    assert "\n" not in str(caught.value)


def test_mistake_in_a_set_says_so(file: Path) -> None:
    with pytest.raises(HushError, match=r"^--set rounds: expected greater"):
        load(file, ["rounds=-3"])
    with pytest.raises(HushError, match="expected key=value"):
        load(file, ["rounds"])
    with pytest.raises(HushError, match="is not a table"):
        load(file, ["seed.x=1"])


def test_later_errors_are_located_too(file: Path) -> None:
    error = located(HushError("recipe.name: unknown recipe", "recipe.name"), file)
    assert str(error) == f"{file}:18: recipe.name: unknown recipe"
    assert located(HushError("no key"), file).args == ("no key",)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(HushError, match="no such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(HushError, match="not valid TOML"):
        load(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HushError, match="cannot be read"):
        load(tmp_path / "bytes.toml")


def test_hash_covers_every_key() -> None:
    base = config_hash(Config())
    assert base == config_hash(parse({}))
    changes: list[Any] = [
        {"seed": 5}, {"rounds": 3}, {"participation": 0.5}, {"data": {"clients": 3}}, {"model": {"hidden": 3}},
        {"privacy": {"clip": 2.0}}, {"local": {"lr": 0.2}}, {"recipe": {"name": "weiavg"}},
        {"engine": {"physical_batch": 1}},
    ]  # fmt: skip
    assert len({base, *(config_hash(parse(change)) for change in changes)}) == len(changes) + 1


def test_old_names_say_the_new_ones() -> None:
    from hush.recipes import parse as parse_recipe

    with pytest.raises(HushError, match=r"privacy\.noise = replayable: renamed to privacy\.noise = seeded"):
        parse({"privacy": {"noise": "replayable"}})
    with pytest.raises(HushError, match=r"recipe\.weigh: renamed to recipe\.weight"):
        parse_recipe({"weigh": "uniform"})
