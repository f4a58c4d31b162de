"""A policy to start from, and the hash of the code that it accepts. Light: nothing here needs PyTorch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path


@cache
def code_hash() -> str:
    """SHA-256 of the code that is installed: every Python file of Hush by name and content."""
    total = hashlib.sha256()
    root = Path(str(files("hush")))
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def template(
    epsilon: float, delta: float, relation: str, recipes: Sequence[str], *, accountant: str = "pld",
    replayable: bool = False, uncovered: bool = False, samples: str = "public", group: int | None = None,
) -> str:  # fmt: skip
    """A policy to start from."""
    cluster = "# group = 0" if group is None else f"group = {group}"
    names = ", ".join(f'"{name}"' for name in recipes)
    return f"""# The law at this member. Every key is optional unless it says otherwise; an unknown key is an error.
[budget]
epsilon = {epsilon!r}            # needed: what one run may spend
delta = {delta!r}                # needed
relation = "{relation}"          # or "replace-one"
accountant = "{accountant}"
# lifetime = {epsilon!r}         # what all runs together ever may spend; by default the same as epsilon

[limits]
max_rate = 1.0
max_steps = 10000                # a round
max_rounds = 100000
min_noise = 0.0
min_clip = 0.0
max_clip = 1000000.0

[accept]
recipes = [{names}]              # needed; "any" accepts all
code = ["{code_hash()}"]  # needed: hush federation code
replayable = {str(replayable).lower()}               # true: noise that a seed gives away, for experiments only
uncovered = {str(uncovered).lower()}                # true: recipes that release what no epsilon covers

[enrol]
samples = "{samples}"            # the number of rows; or "noised", which costs budget
budget = "public"                # the epsilon above; or "noised"
impact = "public"                # the impact factor; or "noised"
# factor = 0.5                   # for recipes that weigh by it, 0 to 1
{cluster:32} # the true cluster, for recipes that take it as known
noise = 10.0                     # of what is noised, in units of what one row can change in it
# budget_row = {epsilon!r}       # what one row can change in the budget, and in the factor
# factor_row = 1.0

[data]
label = "label"                  # the column with the labels, in CSV and Parquet
# loader = "module:function"     # your own: gets the path, gives x and y
"""
