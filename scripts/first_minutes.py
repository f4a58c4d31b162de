"""First minutes with Hush, Flower and NVFlare, side by side: docs/first-minutes.md from results/first-minutes.json.

`python -m scripts.first_minutes` writes the page. `--measure FOLDER` runs the three programs of docs/first_minutes
first, in turn and three times each, with the environments FOLDER/hush, FOLDER/flower and FOLDER/nvflare that the page
says how to make.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "first-minutes.md"
PROGRAMS = ROOT / "docs" / "first_minutes"
RESULTS = ROOT / "results" / "first-minutes.json"
REPEATS = 3
NAMES = {"hush": "Hush", "flower": "Flower + Opacus", "nvflare": "NVFlare + Opacus"}
INSTALL = {
    "hush": "pip install --constraint constraints.txt hush-*.whl",
    "flower": "pip install 'flwr[simulation]' opacus scikit-learn",
    "nvflare": "pip install nvflare torch opacus scikit-learn",
}
# The commands that run the program, in its folder. Those before the last one are needed once.
COMMANDS = {
    "hush": ["python train.py"],
    "flower": ["flwr federation simulation-config @none/default --num-supernodes 3", "flwr run . --stream"],
    "nvflare": ["python job.py"],
}
PACKAGES = {"hush": ["hush", "torch"], "flower": ["flwr", "ray", "opacus", "torch"],
            "nvflare": ["nvflare", "opacus", "torch"]}  # fmt: skip


def measured(folder: Path) -> dict[str, Any]:
    """Run all programs, in turn; the fastest run of each counts, because other work only slows down."""
    found: dict[str, Any] = {name: {"seconds": []} for name in NAMES}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        own = {"FLWR_HOME": "flwr", "RAY_TMPDIR": "ray", "HUSH_WITNESS": "witness"}
        environment = {**os.environ, **{key: f"{scratch}/{place}" for key, place in own.items()}, "NO_COLOR": "1"}
        Path(scratch, "ray").mkdir()
        for repeat in range(REPEATS):
            for name, entry in found.items():
                variables = {**environment, "PATH": f"{folder / name / 'bin'}{os.pathsep}{os.environ['PATH']}"}
                work = Path(scratch) / f"{repeat}_{name}"
                shutil.copytree(PROGRAMS / f"with_{name}", work)
                *before, last = COMMANDS[name]
                for command in before:
                    subprocess.run(command, shell=True, check=True, cwd=work, env=variables, capture_output=True)
                start = time.perf_counter()
                done = subprocess.run(
                    last, shell=True, check=True, cwd=work, env=variables, capture_output=True, text=True
                )
                entry["seconds"].append(round(time.perf_counter() - start, 1))
                entry["says"] = says(done.stdout + done.stderr)
                loads.append(os.getloadavg()[0])
        _end(f"FLWR_HOME={scratch}/flwr")
    for name, entry in found.items():
        listed = subprocess.run(
            [str(folder / name / "bin" / "pip"), "list", "--format=json"], check=True, capture_output=True, text=True
        )
        versions = {each["name"]: each["version"] for each in json.loads(listed.stdout)}
        entry["packages"] = len(versions) - len({"pip", "setuptools"} & set(versions))
        entry["versions"] = {package: versions[package] for package in PACKAGES[name]}
        (site,) = (folder / name / "lib").glob("python*/site-packages")
        entry["mib"] = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) >> 20
    load = [round(min(loads)), round(max(loads))]
    return {"machine": f"{os.cpu_count()} CPU cores, Linux", "load": load, "programs": found}


def _end(variable: str) -> None:
    """End what runs in the background with this environment: the SuperLink that `flwr run` starts."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGTERM)


def says(output: str) -> list[str]:
    """The last lines of an output that name an epsilon, without what precedes them in a log."""
    table = re.search(r"^client  epsilon_spent.*?(?=^\S*[A-Z])", output, re.MULTILINE | re.DOTALL)
    if table:
        return [" ".join(line.split()[:3]) for line in table[0].splitlines() if not line.startswith("-")]
    last = {found[1]: found[0] for found in re.finditer(r"client (\d): .*epsilon.*", output)}
    return [last[client] for client in sorted(last)]


def code_lines(name: str) -> dict[str, int]:
    """Lines that a person writes, by file: without blank lines, comments and docstrings of one line."""
    return {
        path.name: sum(
            not re.match(r'\s*(#.*|""".*""")?$', line) for line in path.read_text(encoding="utf-8").splitlines()
        )
        for path in sorted((PROGRAMS / f"with_{name}").iterdir())
        if path.suffix in (".py", ".toml")
    }


def page(results: dict[str, Any]) -> str:
    """The page."""
    programs = results["programs"]

    def row(what: str, cells: Sequence[str]) -> str:
        return f"| {what} | {' | '.join(cells)} |"

    lines = {name: code_lines(name) for name in NAMES}
    fastest = {name: min(programs[name]["seconds"]) for name in NAMES}
    table = [
        row("", list(NAMES.values())),
        "|---|---|---|---|",
        row("install", [f"`{INSTALL[name]}`" for name in NAMES]),
        row("packages, on disk", [f"{programs[n]['packages']}, {programs[n]['mib']:,} MiB" for n in NAMES]),
        row("versions", [", ".join(f"{k} {v}" for k, v in programs[n]["versions"].items()) for n in NAMES]),
        row(
            "lines of code",
            [f"**{sum(lines[n].values())}**: " + ", ".join(f"`{k}` {v}" for k, v in lines[n].items()) for n in NAMES],
        ),
        row("files to write, commands to run", [f"{len(lines[n])}, {len(COMMANDS[n])}" for n in NAMES]),
        row("run", ["<br>".join(f"`{command}`" for command in COMMANDS[name]) for name in NAMES]),
        row("seconds to the result, fastest of 3 runs (see below)", [f"{fastest[n]:.0f}" for n in NAMES]),
        row("the same, relative to Hush", [f"{fastest[n] / fastest['hush']:.1f}" for n in NAMES]),
        *(row(what, cells) for what, cells in FACTS),
    ]
    shown = "\n\n".join(
        f"{title} says:\n\n```text\n" + "\n".join(programs[name]["says"]) + "\n```" for name, title in NAMES.items()
    )
    low, high = results["load"]
    code = "\n\n".join(_listing(name) for name in NAMES)
    return TEXT.format(table="\n".join(table), shown=shown, code=code, machine=results["machine"], low=low, high=high)


def _listing(name: str) -> str:
    parts = [f"### {NAMES[name]}"]
    for file in code_lines(name):
        path = PROGRAMS / f"with_{name}" / file
        kind, code = "toml" if path.suffix == ".toml" else "python", path.read_text(encoding="utf-8").rstrip()
        other = PROGRAMS / "with_flower" / file
        if name == "nvflare" and other.exists() and code == other.read_text(encoding="utf-8").rstrip():
            parts.append(f"`{file}` is the same as Flower's.")
            continue
        note = "<!-- code: read by tests/docs/test_first_minutes.py -->"
        parts.append(f"`{file}`:\n\n{note}\n\n```{kind}\n{code}\n```")
    return "\n\n".join(parts)


# What the programs do, as their code says. Every cell holds for the versions above.
FACTS = (
    ("noise for a budget", (
        "computed from budget, rows, batch size and rounds",
        "`get_noise_multiplier` of Opacus, called by the client's code",
        "`get_noise_multiplier` of Opacus, called by the client's code")),
    ("epsilon over several rounds", (
        "a ledger for each client, which charges before a round is computed",
        "a new `PrivacyEngine` in each round; the client's code carries its history in `context.state`",
        "one `PrivacyEngine` as long as the client's process lives; a new process starts at 0")),
    ("a second run on the same rows", (
        "refused: the ledger has the budget as spent",
        "starts at 0, unless the code stores the history elsewhere",
        "starts at 0, unless the code stores the history elsewhere")),
    ("random bits of the noise", (
        "secure, since there are ledgers",
        "PyTorch's generator; `secure_mode=True` needs `torchcsprng`",
        "PyTorch's generator; `secure_mode=True` needs `torchcsprng`")),
    ("epsilon in the end", (
        "one table: spent, budget, delta, relation, unit, steps, noise; saved with the model",
        "what the client's code prints, in its log",
        "what the client's code prints, in its log")),
    ("what it does not cover", (
        "listed with every result",
        "not said",
        "not said")),
)  # fmt: skip

TEXT = """\
# The first ten minutes, beside Flower and NVFlare

The same task in three ways: three clients share scikit-learn's handwritten digits and train logistic regression for
10 rounds, one epoch each, batches of 32, with DP-SGD. They allow epsilon 1, 2 and 4 at delta 1e-4 for everything.
Each program is the shortest that we found which does this with the means of its library and prints the epsilon of
each client.

[Flower](https://flower.ai) and [NVFlare](https://nvflare.readthedocs.io) are frameworks for any federated training.
Each has privacy of its own: Flower's `DifferentialPrivacyServerSideFixedClipping` adds noise at the server and
counts epsilon for a whole client, and NVFlare's `SVTPrivacy` adds noise to updates and logs a sum. Neither keeps a
budget for the rows of a client, which DP-SGD at the client does, so that both run it with
[Opacus](https://opacus.ai) here. [Inside Flower](flower.md), Hush's trainer and ledger take the place of Opacus.

{table}

Measured on {machine}, under other work (load average {low} to {high}): only the relation of the times means
something. The programs alternated. Learning rates are Hush's automatic one and 0.5, not tuned, so that accuracies
are not compared here. Flower's time has the start of Ray in it, and NVFlare's that of three client processes.
`flwr` starts a SuperLink in the background, which stays.

## What is known in the end

{shown}

## The programs

{code}

## To repeat it
This page is written by `python -m scripts.first_minutes` from `results/first-minutes.json` and the programs in
`docs/first_minutes`. Make the environments and measure:

<!-- code: not executed: three environments from a package index -->

    python3.11 -m venv compared/hush && compared/hush/bin/pip install --constraint constraints.txt .
    python3.11 -m venv compared/flower && compared/flower/bin/pip install 'flwr[simulation]' opacus scikit-learn
    python3.11 -m venv compared/nvflare && compared/nvflare/bin/pip install nvflare torch opacus scikit-learn
    .venv/bin/python -m scripts.first_minutes --measure compared
"""


def main() -> None:
    """Measure if asked, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", type=Path, metavar="FOLDER")
    folder = parser.parse_args().measure
    if folder:
        RESULTS.write_text(json.dumps(measured(folder.resolve()), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
