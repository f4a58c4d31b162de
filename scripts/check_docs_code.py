"""Check the code in the documentation: format, lint and types of every Python block of README.md and docs/.

A block without imports continues the block before it.

Run it from the repository: `.venv/bin/python -m scripts.check_docs_code`; `make check` does. Prints what the tools
find, with the page and line of each block, and exits with status 1 if they find anything.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "pyproject.toml"
TOOLS = (
    ("ruff", "format", "--check", "--quiet", "--config", str(SETTINGS)),
    # A block of a page is no module: it needs neither docstrings nor types of its own, may print, and may show a value.
    ("ruff", "check", "--quiet", "--config", str(SETTINGS), "--ignore", "D1,T201,B018"),
    # Together with the files that mypy checks by itself, and with the settings that pyproject.toml has for the package
    # of the blocks: other options, or other files, would discard the cache of `mypy`, and `mypy` that of this call.
    ("mypy", "--no-error-summary", *tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["tool"]["mypy"]["files"]),
)
PACKAGE = "docs_code"
# Pages that show whole programs for other libraries, which are not installed here.
OTHERS = ("first-minutes.md",)
_IMPORT = re.compile(r"^(import|from) ", re.MULTILINE)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """The pages whose code is checked."""
    found = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.name not in OTHERS]


def blocks(page: Path) -> dict[int, str]:
    """The Python blocks of a page, by the line on which their code begins."""
    text = page.read_text(encoding="utf-8")
    return {text.count("\n", 0, found.start(1)) + 1: found[1] for found in _BLOCK.finditer(text)}


def extract(listed: Sequence[Path], directory: Path) -> list[Path]:
    """Write each block, with those that continue it, to a file named after page and line, and return the files."""
    files: list[Path] = []
    for page in listed:
        first = True
        for line, code in blocks(page).items():
            if first or _IMPORT.search(code):
                files.append(directory / f"{page.stem.lower().replace('-', '_')}_line_{line}.py")
                files[-1].write_text(code, encoding="utf-8")
            else:
                with files[-1].open("a", encoding="utf-8") as file:
                    file.write(f"\n\n{code}")
            first = False
    return files


def check(files: Sequence[Path]) -> bool:
    """Run the tools on the files; false if one of them finds something."""
    tools = Path(sys.executable).parent
    found = [subprocess.run([str(tools / name), *words, *map(str, files)], cwd=ROOT) for name, *words in TOOLS]
    return all(done.returncode == 0 for done in found)


def main() -> None:
    """Extract and check."""
    with TemporaryDirectory() as folder:
        package = Path(folder) / PACKAGE
        package.mkdir()
        (package / "__init__.py").touch()
        files = extract(pages(), package)
        if not check(files):
            raise SystemExit("the code of the documentation has faults; files are named PAGE_line_LINE.py")
    print(f"{len(files)} code blocks of the documentation are fine")


if __name__ == "__main__":
    main()
