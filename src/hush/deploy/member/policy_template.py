"""A policy template to start from. This file does not import PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence


def template(
    epsilon: float, delta: float, relation: str, recipes: Sequence[str], *, accountant: str = "pld",
    seeded: bool = False, uncovered: bool = False, samples: str = "public", group: int | None = None,
    auto_approve: bool = False, max_cpu: float = 0.5, runs_per_day: int = 10, lifetime: float | None = None,
    label: str = "label", columns: Sequence[str] = (), hours: str = "", max_memory: int = 4096,
    held_out: float = 0.1,
) -> str:  # fmt: skip
    """Return a policy to start from, with the meaning of each value."""
    cluster = "# group = 0" if group is None else f"group = {group}"
    names = ", ".join(map(quoted, recipes))
    life = f"# lifetime = {epsilon!r}" if lifetime is None else f"lifetime = {lifetime!r}"
    message = min(256, max_memory // 6)
    parameters = min(20_000_000, (max_memory << 20) // 64)
    return f"""# The policy of this member: what a run may do here. This machine enforces it.
# Keys are optional unless marked as required; an unknown key is an error.
# hush federation policy KIT --check explains this file in sentences.

[budget]                         # how much the runs may reveal about one row (a smaller epsilon reveals less)
epsilon = {epsilon!r}            # required: maximum epsilon of one run. Sensible: 0.1 to 5; above 10 protects little
delta = {delta!r}                # required: the probability that the guarantee fails; well below 1 / number of rows
relation = "{relation}"          # what changes between the datasets compared: one row added, or "replace-one"
# unit = "person"                # what is protected: one row (default), or one person with all rows; see data.person
accountant = "{accountant}"
# Maximum epsilon of all runs together on these rows. Default: equal to epsilon, so that ONE run, even a first
# trial, can spend all of it permanently. Use `hush federation check` for a dry run, which charges nothing.
{life}

[consent]                        # who decides whether a run takes place
auto_approve = {str(auto_approve).lower()}             # false: a person approves each run
# max_epsilon = {epsilon!r}      # with auto_approve: runs that cost more wait for a person
# max_rounds = 100               # with auto_approve: runs with more rounds wait for a person

[limits]                         # a run that exceeds one of these is refused, and costs nothing
max_rate = 1.0                   # maximum part of the rows in one training step, on average
max_steps = 10000                # training steps per round
max_rounds = 2000                # rounds of a run. Sensible: 10 to 200
min_noise = 0.0                  # minimum noise multiplier
min_clip = 0.0
max_clip = 1000000.0             # maximum clipping norm of one row
max_members = 200                # members of a run
max_parameters = {parameters:<14} # model size, in parameters of 4 bytes each
max_memory = {max_memory:<16}    # MiB, for messages and training together
max_message = {message:<15}    # MiB that one message may have
max_cpu = {max_cpu:<18}     # share of this machine's cores, on average. Sensible: 0.25 to 1.0
runs_per_day = {runs_per_day:<14}    # runs that may begin within 24 hours
hours = {quoted(hours):<24} # local time in which the member takes part, such as "18:00-06:00"; empty: always

[accept]
recipes = [{names}]              # required; algorithms that are accepted; "any" accepts all
code = ["any"]                   # required; "any": all code of this protocol version; or hashes (hush federation code)
models = []                      # code of other packages that may be imported, as "module:name"
seeded = {str(seeded).lower()}               # true: accept seeded noise, which is not private; for experiments only
uncovered = {str(uncovered).lower()}                # true: accept recipes with releases that are not covered
dry_runs = true                  # dry runs on synthetic rows, which cost nothing and need no approval

[enrol]                          # what the others learn about this member before training
samples = "{samples}"            # number of rows; or "noised", which consumes budget
budget = "public"                # the epsilon above; or "noised"
impact = "public"                # the impact factor; or "noised"
# factor = 0.5                   # between 0 and 1, for recipes that weight by it
{cluster:32} # true cluster, for recipes that assume it is known
noise = 10.0                     # noise multiplier of noised declarations, relative to the change caused by one row
# budget_row = {epsilon!r}       # change of the budget, and of the factor, caused by one row
# factor_row = 1.0

[secure_aggregation]             # what the coordinator sees of this member's updates
required = false                 # true: refuse runs in which it sees more than sums over members
min_sum = 2                      # fewest members of such a sum
# The other members' keys (hush federation fingerprint), so that a coordinator cannot take their place:
# peers = {{ berlin = "64 digits and letters a to f" }}

[data]                           # how the file with the rows is read
label = {quoted(label):<24} # label column of CSV and Parquet files
# The column with the key of each row's person, such as "patient", for unit = "person". It is no feature and stays here.
# person = "patient"
# The columns that runs may use, such as ["age", "sex"]; others are not read. Empty: all columns of the file.
columns = [{", ".join(map(quoted, columns))}]
# The fraction of the rows that is never trained on, for evaluation; fixed when the member first joins.
held_out = {held_out}
# loader = "module:function"     # custom loader: receives the path, returns x and y
"""


def quoted(text: str) -> str:
    """Return a text as a TOML string."""
    return json.dumps(text, ensure_ascii=False)
