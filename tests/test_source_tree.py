"""Rules of the source tree that no linter checks."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import hush
from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "hush"
FILES = sorted(SOURCE.rglob("*.py"))
_MOST_POSITIONAL = 5
# Endings that a word may have in a sentence and not in the name of a file, or the other way round.
ENDINGS = re.compile(
    r"(at(e|es|ed|ing|ion|ions|ors?)|ions?|ings?|ments?|ity|ities|ances?|ers?|ors?|ables?|ed|ies|es|s|e|y)$"
)


def stem(word: str) -> str:
    """A word without its inflection: "calibrate" and "calibration" have the same one."""
    short = ENDINGS.sub("", word.lower())
    return short if len(short) >= 3 else word.lower()


def unsaid(path: Path) -> list[str]:
    """The words of a file's name that the first sentence of its docstring does not use."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = re.split(r"\.(?:\s|$)|\n\n", text, maxsplit=1)[0]
    said = {stem(word) for word in re.findall(r"[A-Za-z0-9]+", sentence)}
    return [word for word in path.stem.split("_") if not any(each.startswith(stem(word)) for each in said)]


def private_imports(path: Path) -> Iterator[str]:
    """Names with a leading underscore that a file takes from another package, by import or as an attribute."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ".".join(path.relative_to(SOURCE.parent).parent.parts)
    modules = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("hush"):
            continue
        origin = str(node.module)
        for name in node.names:
            if _is_module(f"{origin}.{name.name}"):
                modules[name.asname or name.name] = origin
            elif name.name.startswith("_") and not name.name.startswith("__") and _package(origin) != package:
                yield f"{path.relative_to(SOURCE)}: {origin}.{name.name}"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and re.match(r"_[^_]", node.attr)
            and modules.get(node.value.id, package) != package
        ):
            yield f"{path.relative_to(SOURCE)}: {node.value.id}.{node.attr}"


def _is_module(name: str) -> bool:
    place = SOURCE.parent.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").exists()


def _package(module: str) -> str:
    return module if SOURCE.parent.joinpath(*module.split(".")).is_dir() else module.rpartition(".")[0]


def test_docstrings_begin_with_the_words_of_the_files_name() -> None:
    found = {str(path.relative_to(SOURCE)): unsaid(path) for path in FILES if path.name != "__init__.py"}
    assert {name: words for name, words in found.items() if words} == {}


def test_words_are_compared_without_inflection() -> None:
    assert stem("calibrate") == stem("calibration")
    assert stem("budgets") == stem("budget")
    assert stem("partition") == stem("partitions")
    assert stem("noise") != stem("norm")


def test_no_private_name_crosses_packages() -> None:
    assert [name for path in FILES for name in private_imports(path)] == []


def _positional_records(path: Path) -> Iterator[str]:
    """Dataclasses with more than five fields that accept them by position."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef):
            continue
        decorators = [ast.unparse(each) for each in node.decorator_list]
        if not any(
            re.match(r"(dataclasses\.)?dataclass\b", each) and "kw_only=True" not in each for each in decorators
        ):
            continue
        annotated = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        fields = [
            each
            for each in annotated
            if not ast.unparse(each.annotation).startswith("ClassVar")
            and (each.value is None or "init=False" not in ast.unparse(each.value))
        ]
        if len(fields) > _MOST_POSITIONAL:
            yield f"{path.name}: {node.name} has {len(fields)} fields"


def test_records_with_more_than_five_fields_are_keyword_only() -> None:
    assert [name for path in FILES for name in _positional_records(path)] == []


def test_a_positional_record_is_found(tmp_path: Path) -> None:
    fields = "\n".join(f"    {name}: int" for name in "abcdef")
    path = tmp_path / "record.py"
    path.write_text(f"@dataclass(frozen=True)\nclass Record:\n{fields}\n    g: ClassVar[int] = 0\n", encoding="utf-8")
    assert list(_positional_records(path)) == ["record.py: Record has 6 fields"]
    path.write_text(f"@dataclass(frozen=True, kw_only=True)\nclass Record:\n{fields}\n", encoding="utf-8")
    assert list(_positional_records(path)) == []


def test_only_the_ledger_makes_receipts() -> None:
    makers = {path.name for path in FILES if re.search(r"(?<!class )\bReceipt\(", path.read_text())}
    assert makers == {"ledger.py", "memory.py"}


def test_noise_is_drawn_in_one_file() -> None:
    drawing = re.compile(
        r"\.normal_\(|\.uniform_\(|\.bernoulli_\(|\.random_\(|torch\.(bernoulli|multinomial|poisson)\("
    )
    assert {path.name for path in FILES if drawing.search(path.read_text())} <= {"noise.py"}


def test_the_version_is_written_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert project["dynamic"] == ["version"]
    assert f"\nversion: {hush.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_pre_commit_runs_the_commands_of_make_check() -> None:
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    hooks = re.findall(r"^ +entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert hooks == commands


def test_no_folder_has_the_name_of_a_public_function() -> None:
    """Importing a package below `hush` would put the package in the function's place."""
    assert not {path.stem for path in SOURCE.iterdir()} & set(hush.__all__)


def test_a_tagged_commit_has_the_version_of_its_tag() -> None:
    """Versions are those of tags: a release whose tag and version differ fails here."""
    command = ["git", "-C", str(ROOT), "tag", "--points-at", "HEAD", "--list", "v[0-9]*"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a clone")
    tags = done.stdout.split()
    assert tags in ([], [f"v{hush.__version__}"])


def test_the_conda_recipe_has_the_version_and_requirements_of_the_package() -> None:
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f'\n  version: "{hush.__version__}"\n' in recipe
    run = recipe.split("\n  run:\n")[1].split("\n\n")[0]
    listed = dict(re.findall(r"^    - ([\w-]+) (\S+)$", run, re.MULTILINE))
    wanted = dict(re.findall(r"^([\w-]+)(\S*)$", "\n".join(project["dependencies"]), re.MULTILINE))
    wanted = {"pytorch" if name == "torch" else name: bounds for name, bounds in wanted.items()}
    assert listed == {"python": project["requires-python"], **wanted}
    assert f"hush = {project['scripts']['hush']}" in recipe
