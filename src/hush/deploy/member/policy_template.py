"""A policy template, and the hash of the code that it accepts. This file does not import PyTorch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path


@cache
def code_hash() -> str:
    """SHA-256 of the installed code: the name and content of every Python file of Hush."""
    total = hashlib.sha256()
    root = Path(str(files("hush")))
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def template(
    epsilon: float, delta: float, relation: str, recipes: Sequence[str], *, accountant: str = "pld",
    seeded: bool = False, uncovered: bool = False, samples: str = "public", group: int | None = None,
) -> str:  # fmt: skip
    """Return a policy to start from."""
    cluster = "# group = 0" if group is None else f"group = {group}"
    names = ", ".join(f'"{name}"' for name in recipes)
    return f"""# The policy of this member. Keys are optional unless marked as required; an unknown key is an error.
[budget]
epsilon = {epsilon!r}            # required: maximum epsilon of one run
delta = {delta!r}                # required
relation = "{relation}"          # or "replace-one"
accountant = "{accountant}"
# Maximum epsilon of all runs together on these rows. Default: equal to epsilon, so that ONE run, even a first
# trial, can spend all of it permanently. Use `hush federation check` for a dry run, which charges nothing.
# lifetime = {epsilon!r}

[limits]
max_rate = 1.0
max_steps = 10000                # per round
max_rounds = 2000
min_noise = 0.0
min_clip = 0.0
max_clip = 1000000.0
max_members = 200
max_parameters = 20000000
max_memory = 4096                # MiB, for messages and training together
max_message = 256                # MiB

[accept]
recipes = [{names}]              # required; "any" accepts all
code = ["{code_hash()}"]  # required: hush federation code
seeded = {str(seeded).lower()}               # true: accept seeded noise, which is not private; for experiments only
uncovered = {str(uncovered).lower()}                # true: accept recipes with releases that are not covered

[enrol]
samples = "{samples}"            # number of rows; or "noised", which consumes budget
budget = "public"                # the epsilon above; or "noised"
impact = "public"                # the impact factor; or "noised"
# factor = 0.5                   # between 0 and 1, for recipes that weight by it
{cluster:32} # true cluster, for recipes that assume it is known
noise = 10.0                     # noise multiplier of noised declarations, relative to the change caused by one row
# budget_row = {epsilon!r}       # change of the budget, and of the factor, caused by one row
# factor_row = 1.0

[data]
label = "label"                  # label column of CSV and Parquet files
# loader = "module:function"     # custom loader: receives the path, returns x and y
"""
