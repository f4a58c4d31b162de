"""Execute the notebooks of docs/notebooks into build/notebooks, where the site finds them: `make notebooks`.

Each is written as a notebook, for download, and as a page of Markdown with its charts. A cell that fails is an error. A
notebook that was executed with the same code before is left as it is.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.site_hooks import NOTEBOOKS, ROOT, sources

SECONDS = 300  # for one cell


def fingerprint(source: Path) -> str:
    """The SHA-256 of a notebook and of the package that it uses."""
    found = hashlib.sha256(source.read_bytes())
    for path in sorted((ROOT / "src" / "hush").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def execute(source: Path, target: Path) -> None:
    """Run a notebook in an empty folder and write it with what it printed; an error of a cell is an error here."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # of the client and its messaging library
        import jupytext
        import nbclient
        import nbformat
        from traitlets.config import Config

        notebook = jupytext.read(source)
        setup = nbformat.v4.new_code_cell(SETUP, metadata={"tags": ["setup"]})
        notebook.cells.insert(0, setup)
        os.environ["IPYTHONDIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = folder
        # Commands of a notebook are those of this environment.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        os.environ["HUSH_WITNESS"] = str(Path(folder) / "witness")
        work = Path(folder) / "work"
        work.mkdir()
        settings = Config()
        # Sockets of files in the folder, which nobody else on the machine can reach.
        settings.KernelManager.transport, settings.KernelManager.ip = "ipc", str(Path(folder) / "kernel")
        client = nbclient.NotebookClient(
            notebook,
            config=settings,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(work)}},
        )
        client.execute()
        del notebook.cells[0]
        notebook.metadata["hush"] = {"fingerprint": fingerprint(source)}
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
        for path, text in as_page(notebook.cells, target.stem).items():
            (target.parent / path).write_text(text, encoding="utf-8")


def as_page(cells: Sequence[Any], stem: str) -> dict[str, str]:
    """Return the files of the page: STEM.md and its charts, STEM-N.svg."""
    charts: dict[str, str] = {}
    parts: list[str] = []
    for cell in cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                name = f"{stem}-{len(charts) + 1}.svg"
                charts[name] = data["image/svg+xml"]
                parts.append(f"![{_described(cell.source)}]({name}){{ .chart }}")
            elif "text/html" in data:
                if "<progress" not in data["text/html"]:
                    parts.append(f'<div class="output" markdown="0">\n{_unbroken(data["text/html"])}\n</div>')
            elif (text := output.get("text") or data.get("text/plain") or "").strip():
                parts.append(f"```text\n{text.rstrip()}\n```")
    first, *others = parts
    source = f"[Download this notebook]({stem}.ipynb)"
    return {f"{stem}.md": "\n\n".join([first, source, *others]) + "\n", **charts}


def _described(source: str) -> str:
    """What a chart shows in words, as its cell says: the first comment of the cell."""
    comment = next((line.lstrip("# ") for line in source.splitlines() if line.startswith("# ")), "")
    if not comment:
        raise SystemExit(f"a cell with a chart begins with a comment that says what it shows:\n{source}")
    return comment.replace("[", "(").replace("]", ")")


def _unbroken(html: str) -> str:
    """HTML without blank lines, at which Markdown would end it."""
    return "\n".join(line for line in html.splitlines() if line.strip())


# Charts as SVG, which scale on a page.
SETUP = """\
%config InlineBackend.figure_formats = ["svg"]
"""


def is_current(source: Path, target: Path) -> bool:
    """Whether a notebook has been executed with the code as it is."""
    import nbformat

    if not target.exists():
        return False
    notebook = nbformat.read(target, as_version=4)
    return bool(notebook.metadata.get("hush", {}).get("fingerprint") == fingerprint(source))


def main(arguments: Sequence[str]) -> None:
    """Execute all notebooks, or those whose names contain an argument."""
    known = {source.stem for source in sources()}
    for path in NOTEBOOKS.glob("*"):
        if path.stem.partition("-")[0] not in known:
            path.unlink()
    for source in sources():
        if arguments and not any(word in source.name for word in arguments):
            continue
        target = NOTEBOOKS / f"{source.stem}.ipynb"
        if is_current(source, target):
            print(f"{source.name}: executed before")
            continue
        start = time.perf_counter()
        execute(source, target)
        print(f"{source.name}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
