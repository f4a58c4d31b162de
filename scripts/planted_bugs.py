"""Plant every bug, apply every mutant, and write docs/audit.md, with the audits of results/audits.json. Takes minutes.

Run it from the repository: `.venv/bin/python -m scripts.planted_bugs [BUG ...] [mutants]`. With names, all other lines
stay as they are on the page; `page` names none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts import audits

ROOT = Path(__file__).parents[1]

HEAD = """\
# Privacy audits

This page is written by `scripts/planted_bugs.py`. The tests check that it lists every planted bug.

The accountant computes an *upper* bound on epsilon, under the assumption that the code implements the accounted
mechanism. An audit checks this empirically: it attacks the actual code and computes a *lower* bound on epsilon. If
the lower bound exceeds the claimed epsilon, the claim is refuted.

<!-- code: executed by tests/cli/test_main.py with fewer runs -->

    hush audit FILE.toml

audits the client with the largest budget. The client answers as in a run (the same plan, the same functions, the same
type of noise source, with fresh noise for every repetition), but its rows include canaries constructed by the audit.
From the releases, the audit guesses which canaries were present. The audit plays the role of the server: it sees
every release, knows the plan and all other rows, and sends the client the same model in every round, which the threat
model allows.

The audit covers every release that the claim covers: the updates of all stages, the clip quantile, the cluster choice
(for which it sends models between which a single row can change the choice), the evaluation on held-out rows (the
canary is held out as well), the mean of the inputs and the noisy count at enrolment, and side releases of your own.
The result lists each release with how often it occurs, how often it was audited, and what was found in it alone
(`releases`), and what was not audited (`not_audited`): releases that the claim does not cover, and releases of a type
that the audit does not support. With `privacy.unit = "person"` the canary is all rows of a person, with `"client"`
all rows of the client.

## Interpreting the result
The result says what it means in plain words (`meaning`, below the table in Python and in the terminal):

> An attacker who knows everything else and sees all that client 4 releases gains at least epsilon 3.6 about one
> row; you allowed 4. Guessing whether that row was used, such an attacker is right at least 70.4 % of the time;
> blind guesses are right 50 % of the time, and the plan allows 72.8 %.

There are two lower bounds:
- **`epsilon_lower`** compares the attack with everything that the accountant says: it knows a delta for every
  epsilon, and together they limit how well any test can distinguish two data sets. Where the attack exceeds this
  curve, the accounting does not hold for the code, and *that* needs no assumption. To state an epsilon, the noise of
  the whole plan is scaled: the bound is the epsilon of the planned releases with the most noise that the attack
  refutes (`noise_at_most` times the planned noise). As an epsilon it is therefore valid if the releases are the
  planned ones with another amount of noise. For a mechanism of another kind, such as randomised response, it is no
  statement about the epsilon at this delta.
- **`epsilon_lower_any`** assumes nothing: it is the largest epsilon that the attack refutes at the delta of the
  claim, whatever the mechanism. It is lower, since at a small delta only rare outcomes count, and few runs have them.

Both hold together with the stated confidence. The result is `refuted` if one of them exceeds the claim, or if a
single release is distinguished better than its own part of the plan allows.

- **Refuted:** the accounting does not hold for the code, or an event with probability 1 in 20 occurred (at a
  confidence of 0.95; 1 in 1,000 at 0.999). Repeat the audit with another seed at 0.999. If the result persists, there
  is a bug.
- **Not refuted:** this is *not* a proof that the claim holds. The result is informative only if the bound is close to
  the claim: a bound of 0.1 against a claim of 8 means that the attack was weak.
- **"If Gaussian"** is an estimate that assumes normally distributed scores. It is not a bound, and it can exceed a
  true claim slightly more often than the confidence level says.
- With n evaluation runs `epsilon_lower_any` does not exceed about log(n): a complete failure of privacy shows as 6 to
  8, not as infinity.
- **Not looked at:** other clients and several clients together, other rows than the planted ones (which are as bad as
  rows can be), side channels such as timing and memory, the low-order bits of the noise, and everything in
  `not_audited`.

There are two kinds of audit:
- `two-datasets` repeats training thousands of times with and without one canary, a row whose gradient has the
  clipping norm and is orthogonal to all others. A quarter of the runs is used to choose the attacks; the rest is used
  to evaluate them. Two attacks are evaluated: the most accurate guess between the two data sets, with one exact bound
  over both (a sum of unequal trials is no more spread than one of equal trials: Hoeffding 1956), and a test far out
  in the tails, with exact (Clopper-Pearson) bounds on both error rates. Each has half of the failure probability. For
  small models.
- `one-run` inserts many canaries, each included with probability 1/2, and guesses those with the most extreme scores.
  That so many guesses are right has a limited probability under the curve of the accountant (theorem 16 of
  [proofs.md](proofs.md), after Mahloujifar, Melis and Chaudhuri 2024), and under an epsilon alone (theorem 5.2 of
  Steinke, Nasr and Jagielski 2023). The number of guesses is chosen beforehand from the plan; others share a fifth of
  the failure probability. If time permits, there are several runs, each with a new choice of canaries; of 16 and
  more, half of the failure probability is for the mean accuracy over runs. For models that are too expensive to train
  thousands of times. Side releases are repeated nevertheless, a thousand times with and without one canary, for as
  many rounds as time permits. The confidence is divided between all of these, and the larger bound is reported.

In `two-datasets` the log-likelihoods of all releases of a run are added, so that the attack composes all parts of the
claim. In addition, a linear discriminant over all released numbers is tried, which finds a number without noise
regardless of the others. If a client releases more than updates, half of the failure probability is for the bounds of
each release alone.

To "remove" a row, the audit replaces it by NaN values, which add nothing to a sum (this property is tested
separately).
"""

COLUMNS = (
    "setting",
    "kind",
    "runs",
    "claim",
    "`epsilon_lower` at 0.95: minimum, mean, maximum",
    "mean over claim",
    "`epsilon_lower_any` at 0.95: mean",
    "`epsilon_lower` at 0.999: mean, maximum",
    "refuted at 0.999",
)
CORRECT = """
## Audits of correct training
Over {seeds} seeds each (`scripts/audits.py`, `results/audits.json`). The worst case is a linear model with two classes
in which rows share no inputs (`worst_case` in `tests/support/worst_case.py`): an audit that finds little even there
would not be informative anywhere. The number of runs is that of each data set. The bounds at both confidences are from
the same runs.

| {columns} |
|{rule}
"""

ALONE = """
### Each release alone
In the settings above in which a client releases more than updates: the epsilon that the accountant has for the release
alone, and the mean lower bound on it at 0.95. A quarter of the failure probability is for each of the two.

| setting | release | claim | lower bound |
|---|---|---|---|
"""

BUGS = """
## Planted bugs
Each of these bugs was planted in the real pipeline (`tests/statistical/planted.py`) and must be detected by the named
checks (`tests/statistical/checks.py`, and for releases and noise sources `release_harness.py` and
`source_checks.py`). The test is `test_bug_is_caught[bug-check]` in `tests/statistical/test_planted_bugs.py`. Without
a bug every check passes. The first check in the list is the primary one; if an audit also detects the bug, it is
listed second. The audits here claim an epsilon of {claim:g} at delta 0.001, with {runs:,} runs on each dataset at a
confidence of {confidence:g}: enough to detect halved noise for {power:.1%} of seeds (on simulated Gaussian scores).
A fifth of the runs would miss it for about one seed in four. Side releases are audited with {repeats:,} runs: enough to
detect missing noise.

| bug | effect | detected by | observed | without the bug |
|---|---|---|---|---|
"""

MUTANTS = """
## Mutants
Each mutant changes one or two lines of the source into an incorrect version (`tests/statistical/mutants.py`). The
named test is part of the regular test suite and fails on the mutant; `tests/statistical/test_source_mutants.py`
applies each mutant to a copy of the source and runs the test (`make soak`).

| mutant | effect | detected by | |
|---|---|---|---|
"""

TAIL = """
## Checks and audits
Checks and audits complement each other. Shuffled batches, a divisor that depends on the data or uncounted steps
hardly change the lower bound of an audit, but direct checks detect them easily. Conversely, an audit can find a bug
for which there is no check.
"""


def planted(names: Sequence[str], kept: Sequence[str]) -> list[str]:
    """A line for each bug; of bugs that are not named the one that is there."""
    from tests.statistical.checks import EVERY
    from tests.statistical.planted import BUGS as PLANTED

    known = {line.split("`")[1]: line for line in kept}
    planned = [bug for bug in PLANTED if bug.name in names or bug.name not in known]
    sound = {name: EVERY[name]() for name in dict.fromkeys(name for bug in planned for name in bug.caught_by)}
    if wrong := [name for name, found in sound.items() if not found.ok]:
        raise SystemExit(f"without any bug these checks fail: {', '.join(wrong)}")
    for bug in planned:
        seen = []
        for name in bug.caught_by:
            with bug.plant():
                found = EVERY[name]()
            if found.ok:
                raise SystemExit(f"{bug.name} is not caught by {name}: {found.figure}")
            seen.append(found.figure)
        keepers = ", ".join(f"`{name}`" for name in bug.caught_by)
        usual = "; ".join(sound[name].figure for name in bug.caught_by)
        known[bug.name] = f"| `{bug.name}` | {bug.what} | {keepers} | {'; '.join(seen)} | {usual} |"
    return [known[bug.name] for bug in PLANTED]


def mutants() -> list[str]:
    """A line for each mutant, once its tests have failed on it."""
    from tests.statistical.mutants import MUTANTS as APPLIED
    from tests.statistical.mutants import failing_tests

    lines = []
    for mutant in APPLIED:
        with TemporaryDirectory() as directory:
            if failing_tests(mutant, Path(directory), mutant.caught_by) != set(mutant.caught_by):
                raise SystemExit(f"{mutant.name} is not caught by {', '.join(mutant.caught_by)}")
        keepers = ", ".join(f"`{test}`" for test in mutant.caught_by)
        lines.append(f"| `{mutant.name}` | {mutant.what} | {keepers} | |")
    return lines


def main() -> None:
    """Write the page."""
    from tests.statistical.checks import CLAIM, CONFIDENCE, REPEATS, RUNS, power
    from tests.statistical.planted import BUGS as PLANTED

    page = ROOT / "docs" / "audit.md"
    kept = page.read_text(encoding="utf-8")
    wanted = sys.argv[1:] or ["mutants", *(bug.name for bug in PLANTED)]
    stored = json.loads(audits.RESULTS.read_text(encoding="utf-8"))
    columns, rule = " | ".join(COLUMNS), "---|" * len(COLUMNS)
    bugs = BUGS.format(claim=CLAIM, confidence=CONFIDENCE, runs=RUNS, repeats=REPEATS, power=power())
    parts = [
        HEAD,
        CORRECT.format(seeds=audits.SEEDS, columns=columns, rule=rule),
        "\n".join(audits.table(stored)),
        "\n",
        ALONE,
        "\n".join(audits.lines_by_release(stored)),
        "\n",
        bugs,
        "\n".join(planted(wanted, rows_under(bugs, kept))),
        "\n",
        MUTANTS,
        "\n".join(mutants() if "mutants" in wanted else rows_under(MUTANTS, kept)),
        "\n",
        TAIL,
    ]
    page.write_text("".join(parts), encoding="utf-8")


def rows_under(head: str, page: str) -> list[str]:
    """The lines of the table under a heading."""
    section = page.partition(head.strip().splitlines()[0])[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


if __name__ == "__main__":
    main()
