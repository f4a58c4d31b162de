"""Code blocks of README and docs are executed here or elsewhere, or a note on the page says why not.

A block without a note is executed here: Python in one process for a page, a config as a file that is read, a command in
an empty folder. `<!-- code: executed by tests/FILE.py ... -->` before a block, or `<!-- code of this section: ... -->`
after a heading, names the test that executes it; `read by` is for one that is compared, and
`<!-- code: not executed: REASON -->` says why nothing executes it.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hush.config import parse
from tests.support.code_blocks import PAGES, Block, blocks
from tests.support.fork_server import command
from tests.support.paths import ROOT

ALL = [block for page in PAGES for block in blocks(page)]
FILE = """\
rounds = 2
[data]
name = "digits"
clients = 3
[model]
name = "logreg"
[privacy]
budgets = 2.0
"""
LANGUAGES = {"python", "toml", "shell", "yaml", "diff", "text"}
# Pages whose Python is executed together with assertions of their own.
ELSEWHERE = {"docs/extending.md": "tests/docs/test_extending.py", "docs/flower.md": "tests/docs/test_flower_page.py"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_with(language: str) -> list[Any]:
    """The pages that have a block of the language without a note."""
    found = [page for page in PAGES if any(b.language == language and not b.note for b in blocks(page))]
    return [pytest.param(page, id=name(page)) for page in found if language != "python" or name(page) not in ELSEWHERE]


def test_every_block_is_of_a_language_that_is_executed_or_has_a_note() -> None:
    assert {block.language for block in ALL} <= LANGUAGES
    assert [b.place for b in ALL if b.language in ("yaml", "diff") and not b.note] == []
    assert len(ALL) > 100


def test_every_note_names_a_test_or_a_reason() -> None:
    for block in ALL:
        if not block.note:
            continue
        kind, _, rest = block.note.partition(": " if block.note.startswith("not") else " by ")
        assert kind in ("executed", "read", "not executed"), block.place
        tests = re.findall(r"tests/[\w/]+\.py", block.note)
        assert all((ROOT / test).exists() for test in tests), block.place
        assert tests if kind != "not executed" else len(rest.split()) > 2, block.place
    for page, test in ELSEWHERE.items():
        assert f'"docs" / "{Path(page).name}"' in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("python"))
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "a_page"}
    with warnings.catch_warnings():
        # PyTorch's exporter warns of its own internals.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        for block in blocks(page):
            if block.language == "python" and not block.note:
                exec(compile(block.code, block.place, "exec"), names)


@pytest.mark.parametrize("page", pages_with("toml"))
def test_the_configs_of_a_page_are_accepted(page: Path) -> None:
    for block in blocks(page):
        if block.language == "toml" and not block.note:
            parse(tomllib.loads(block.code))


def lines(block: Block) -> Iterator[list[str]]:
    """The commands of a block, without comments."""
    for line in block.code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("shell"))
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """As they stand, with runs of two rounds and seeds."""
    execute(page, tmp_path, {"rounds": "2", "seeds": "2"})


@pytest.mark.soak
def test_the_commands_of_a_page_run_in_full(tmp_path: Path) -> None:
    execute(ROOT / "docs" / "quickstart.md", tmp_path, {})


def execute(page: Path, folder: Path, small: dict[str, str]) -> None:
    """Run the page's commands in order, in a folder with FILE.toml, the examples and the page's own config."""
    for path in (ROOT / "examples").glob("*.*"):
        shutil.copy(path, folder)
    (folder / "FILE.toml").write_text(FILE)
    for block in blocks(page):
        if block.language == "toml":
            first = next((word for each in blocks(page) for word in re.findall(r"\S+\.toml", each.code)), "")
            if first and not (folder / first).exists():
                (folder / first).write_text(block.code)
    for path in folder.glob("*.toml"):
        for key, value in small.items():
            path.write_text(re.sub(rf"^{key} = \d+", f"{key} = {value}", path.read_text(), flags=re.MULTILINE))
    for block in blocks(page):
        for words in lines(block) if block.language == "shell" and not block.note else ():
            if small and words[:2] == ["hush", "audit"]:
                continue  # half of the time of all; tests/cli/test_main.py executes a small one
            for key, value in small.items():
                words = [
                    value if before == f"--{key}" else word
                    for before, word in zip(["", *words[:-1]], words, strict=True)
                ]
            if words[0] == "python":
                done = subprocess.run([sys.executable, *words[1:]], cwd=folder, capture_output=True, text=True)
            else:
                assert words[0] == "hush", f"{block.place}: not a command of Hush; add a note"
                done = command(*words[1:], cwd=folder)
            assert done.returncode == 0, f"{block.place}: {words}: {done.stderr[-2000:]}"


def test_every_command_exists() -> None:
    """With a note or without: a command or an option that a page names and the program lacks is found."""
    shown = 0
    for block in ALL:
        if block.language == "shell":
            for words in lines(block):
                if "hush" in words:
                    shown += 1
                    unknown(words[words.index("hush") + 1 :], block.place)
                elif words[0] == "make":
                    assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), block.place
                elif "scripts" in " ".join(words):
                    module = next(word for word in words if word.startswith("scripts."))
                    assert (ROOT / f"{module.replace('.', '/')}.py").exists(), block.place
    assert shown > 50


def program() -> Any:
    """The commands as typer sees them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own libraries
        from typer.main import get_command

        from hush.cli.main import app
    return get_command(app)


def unknown(words: list[str], place: str) -> None:
    found = program()
    words = [word for word in words if word != "&"]
    while hasattr(found, "commands"):
        if words[0].startswith("--"):
            break
        assert words[0] in found.commands, f"{place}: {words[0]}"
        found, words = found.commands[words[0]], words[1:]
    options = {option for each in found.params for option in each.opts}
    assert {word for word in words if word.startswith("--")} - {"--help"} <= options, f"{place}: {words}"
