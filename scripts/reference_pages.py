"""Reference pages of the config and of the command line, written from the code: docs/reference/config.md and cli.md.

Run it from the repository: `.venv/bin/python -m scripts.reference_pages`; `make docs` does. The tests check that the
pages are up to date.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"

CONFIG_HEAD = """\
# Config reference

This page is written by `scripts/reference_pages.py` from the code; the tests check that it is up to date.

Every key of a config file, as `hush run FILE.toml` and `hush.Simulation(config=...)` read it. An unknown key, a wrong
type or an invalid value is an error with key and line. On the command line, `--set key=value` overrides a key; in
Python, [arguments and `settings`](../python.md#settings) do. The [quickstart](../quickstart.md) has a whole file.
"""
CLI_HEAD = """\
# Command-line reference

This page is written by `scripts/reference_pages.py` from the code; the tests check that it is up to date.

Every command prints this as `--help`. `--json` prints one JSON document to standard output, and everything else goes to
standard error. `hush --install-completion` sets up completion in the shell, and `hush explain WORD` explains recipes,
config keys and terms. Colours are left out where `NO_COLOR` is set or output is no terminal.

| exit status | meaning |
|---|---|
| 0 | success |
| 1 | `hush federation check`: a member would refuse the run; `hush ledger check`: a figure differs; output cut off |
| 2 | a mistake in what was given, or nothing could be trained: one line on standard error says which |
| 130 | stopped by Ctrl-C or on request (a live page, a `stop` file): resume with `--resume` |
"""


def config_page() -> str:
    """The page of the config: a table for each section."""
    from hush.config_keys import ConfigKey, config_keys

    sections: dict[str, list[ConfigKey]] = {}
    for key in config_keys():
        sections.setdefault(key.name.rpartition(".")[0], []).append(key)
    lines = [CONFIG_HEAD]
    for section, keys in sections.items():
        lines += [f"## [{section}]" if section else "## Keys of the run", ""]
        lines += ["| key | accepts | default | meaning |", "|---|---|---|---|"]
        for key in keys:
            name, default = key.name.rpartition(".")[2], key.default if key.default == "not set" else f"`{key.default}`"
            lines.append(f"| `{name}` | {_cell(key.accepts)} | {_cell(default)} | {_cell(key.meaning)} |")
        lines.append("")
    lines += ["[Recipes](../recipes.md#all-options) lists the options of the slots in `recipe`, with their settings."]
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """The page of the command line: a section for each command."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # typer's own, when it is imported
        import typer.main

        from hush.cli.main import app

        command = typer.main.get_command(app)
    return "\n".join([CLI_HEAD, *_commands(command, "hush")]).rstrip() + "\n"


def _commands(command: Any, path: str) -> Iterator[str]:
    inside: dict[str, Any] = getattr(command, "commands", {})
    yield f"## {path}" if path.count(" ") < 2 else f"### {path}"
    yield ""
    yield _sentence(command.help or "")
    yield ""
    shown = [each for each in command.params if not each.hidden and each.name != "help"]
    usage = " ".join(_usage(each) for each in shown)
    yield f"```text\n{path}{' COMMAND' if inside else ''}{' ' + usage if usage else ''}\n```"
    yield ""
    if shown:
        yield "| argument | meaning | default |"
        yield "|---|---|---|"
        for each in shown:
            yield f"| {_name(each)} | {_cell(_sentence(_help(each)))} | {_default(each)} |"
        yield ""
    for name in sorted(inside):
        yield from _commands(inside[name], f"{path} {name}")


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def _usage(param: Any) -> str:
    if not _is_option(param):
        return str(param.metavar or param.name.upper())
    text = param.opts[-1] + ("" if param.is_flag else f" {_metavar(param)}")
    return text if param.required else f"[{text}]"


def _metavar(param: Any) -> str:
    return str(param.metavar or param.type.name.upper())


def _name(param: Any) -> str:
    if not _is_option(param):
        return f"`{param.metavar or param.name.upper()}`"
    words = [*param.opts, *param.secondary_opts]
    return ", ".join(f"`{word}{'' if param.is_flag else ' ' + _metavar(param)}`" for word in words)


def _help(param: Any) -> str:
    return re.sub(r"\s*\[default: [^\]]*\]$", "", str(getattr(param, "help", "") or ""))


def _default(param: Any) -> str:
    noted = re.search(r"\[default: ([^\]]*)\]$", str(getattr(param, "help", "") or ""))
    if param.required:
        return "required"
    if noted:
        return f"`{noted[1]}`"
    return "" if param.default in (None, False, (), []) or param.is_flag is True else f"`{param.default}`"


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def pages() -> dict[Path, str]:
    """The text of each page."""
    return {FOLDER / "config.md": config_page(), FOLDER / "cli.md": cli_page()}


def main() -> None:
    """Write."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
