"""Audit correct training, plant every bug, apply every mutant, and write docs/audit.md. Takes a quarter of an hour.

Run it from the repository: `.venv/bin/python -m scripts.planted_bugs [audits] [bugs] [mutants]`. With names of
sections, the others stay as they are on the page.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
SEEDS = 20

HEAD = """\
# Privacy audits

This page is written by `scripts/planted_bugs.py`. The tests check that it lists every planted bug.

The accountant computes an *upper* bound on epsilon, under the assumption that the code implements the accounted
mechanism. An audit checks this empirically: it attacks the actual code and computes a *lower* bound on epsilon. If
the lower bound exceeds the claimed epsilon, the claim is refuted.

    hush audit FILE.toml

audits the client with the largest budget. The client answers as in a run (the same plan, the same functions, the same
type of noise source, with fresh noise for every repetition), but its rows include canaries constructed by the audit.
From the releases, the audit guesses which canaries were present. The audit plays the role of the server: it sees
every release, knows the plan and all other rows, and sends the client the same model in every round, which the threat
model allows.

The audit covers every release that the claim covers: the updates of all stages, the clip quantile, the cluster choice
(for which it sends models between which a single row can change the choice), and the mean of the inputs and the noisy
count at enrolment. The result lists each release with how often it occurs and how often it was audited (`releases`),
and what was not audited (`not_audited`): releases that the claim does not cover, and releases of a type that the
audit does not support.

## Interpreting the result
- **Lower bound above the claim:** the claim is false, or an event with probability 1 in 20 occurred (at a confidence
  of 0.95; 1 in 1,000 at 0.999). Repeat the audit with another seed at 0.999. If the result persists, there is a bug.
- **Lower bound below the claim:** the claim was not refuted. This is *not* a proof that the claim holds. The result
  is informative only if the bound is close to the claim: a bound of 0.1 against a claim of 8 means that the attack
  was weak.
- **"If Gaussian"** is a tighter estimate that assumes normally distributed scores. It reveals small errors of scale
  that a distribution-free bound cannot detect. It is not a bound, and it can exceed a true claim slightly more often
  than the confidence level says.
- With n evaluation runs no bound exceeds about log(n / 4): a complete failure of privacy shows as 6 or 7, not as
  infinity.

There are two kinds of audit:
- `two-datasets` repeats training thousands of times with and without one canary, a row whose gradient has the
  clipping norm and is orthogonal to all others. One third of the runs is used to choose the score and its threshold;
  the rest is used to evaluate it, with exact (Clopper-Pearson) bounds on both error rates. For small models.
- `one-run` inserts many canaries, each included with probability 1/2, and guesses those with the most extreme scores.
  The bound is theorem 5.2 of Steinke, Nasr and Jagielski (2023), with its delta term. For models that are too
  expensive to train repeatedly. Side releases are repeated nevertheless, a thousand times with and without one
  canary, for as many rounds as time permits. The confidence is divided between the two attacks, and the larger bound
  is reported.

In `two-datasets` the log-likelihoods of all releases of a run are added, so that the attack composes all parts of the
claim. In addition, a linear discriminant over all released numbers is tried, which finds a number without noise
regardless of the others.

Neither kind makes assumptions about the mechanism. To "remove" a row, the audit replaces it by NaN values, which add
nothing to a sum (this property is tested separately).
"""

CORRECT = """
## Audits of correct training
Over {seeds} seeds each. The worst case is a linear model with two classes in which rows share no inputs (`worst_case`
in `tests/support/worst_case.py`): an audit that finds little even there would not be informative anywhere.

| setting | kind | confidence | claim | lower bound: minimum, mean, maximum | if Gaussian: mean | exceeds the claim |
|---|---|---|---|---|---|---|
"""

BUGS = """
## Planted bugs
Each of these bugs was planted in the real pipeline (`tests/statistical/planted.py`) and must be detected by the named
checks (`tests/statistical/checks.py`, and for releases and noise sources `release_harness.py` and
`source_checks.py`). The test is `test_bug_is_caught[bug-check]` in `tests/statistical/test_planted_bugs.py`. Without
a bug every check passes. The first check in the list is the primary one; if an audit also detects the bug, it is
listed second. The audits here claim an epsilon of {claim:g} at delta 0.001, with {runs:,} runs on each dataset at a
confidence of {confidence:g}: enough to detect halved noise for {power:.1%} of seeds (on simulated Gaussian scores).
Half as many runs would miss it for about one seed in six. Side releases are audited with {repeats:,} runs: enough to
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


def correct() -> list[str]:
    """A line for each setting that was audited."""
    from hush.auditing.run import examine
    from hush.auditing.target import target
    from hush.config import load
    from hush.engines.setup import prepare
    from tests.statistical.checks import BESIDE, releasing
    from tests.support.worst_case import worst_case

    full = worst_case()
    mixed = target(prepare(load(ROOT / "scripts" / "mixed_budgets.toml")))
    settings: list[tuple[str, Any, dict[str, Any]]] = [
        ("worst case, one full batch", full, {"runs": 10_000}),
        ("worst case, one full batch", full, {"runs": 20_000, "confidence": 0.999}),
        ("a row replaced", worst_case(relation="replace-one"), {"runs": 10_000}),
        ("half batches, 2 rounds of 2 steps", worst_case(batch=4, rounds=2), {"runs": 5_000}),
        ("worst case of 1,000 rows, delta 1e-5", worst_case(samples=1000, batch=1000, delta=1e-5),
         {"kind": "one-run", "canaries": 1000}),
        (f"digits, mixed budgets, client {mixed.client}, {mixed.plan.rounds * mixed.plan.steps} steps", mixed,
         {"kind": "one-run"}),
        ("one full batch, delta 0.01", worst_case(delta=1e-2), {"runs": 10_000, "confidence": 0.999}),
        ("a row replaced, delta 0.01", worst_case(delta=1e-2, relation="replace-one"),
         {"runs": 10_000, "confidence": 0.999}),
        ("half batches, 3 rounds of 2 steps, delta 0.01", worst_case(batch=4, rounds=3, delta=1e-2),
         {"runs": 2_000, "confidence": 0.999}),
        ("worst case of 1,000 rows, delta 1e-8", worst_case(epsilon=8.0, samples=1000, batch=1000, delta=1e-8),
         {"kind": "one-run", "canaries": 1000, "confidence": 0.999}),
        *((f"one full batch with {name}", releasing(recipe), {"kind": "two-datasets", "runs": 2_000})
          for name, recipe in BESIDE.items()),
    ]  # fmt: skip
    lines = []
    for number, (name, held, options) in enumerate(settings):
        # Seeds of its own for each setting: equal ones would draw equal noise, and show the same thing twice.
        found = [examine(held, seed=number * SEEDS + seed, **options) for seed in range(SEEDS)]
        lower = [one.epsilon_lower for one in found]
        estimate = mean(one.epsilon_if_gaussian for one in found)
        lines.append(
            f"| {name} | `{found[0].kind}` | {found[0].confidence:g} | {held.claimed:.2f} "
            f"| {min(lower):.2f}, {mean(lower):.2f}, {max(lower):.2f} | {estimate:.2f} "
            f"| {sum(one.refuted for one in found)} of {SEEDS} |"
        )
    return lines


def planted() -> list[str]:
    """A line for each bug."""
    from tests.statistical.checks import EVERY
    from tests.statistical.planted import BUGS as PLANTED

    sound = {name: EVERY[name]() for name in dict.fromkeys(name for bug in PLANTED for name in bug.caught_by)}
    if wrong := [name for name, found in sound.items() if not found.ok]:
        raise SystemExit(f"without any bug these checks fail: {', '.join(wrong)}")
    lines = []
    for bug in PLANTED:
        seen = []
        for name in bug.caught_by:
            with bug.plant():
                found = EVERY[name]()
            if found.ok:
                raise SystemExit(f"{bug.name} is not caught by {name}: {found.figure}")
            seen.append(found.figure)
        keepers = ", ".join(f"`{name}`" for name in bug.caught_by)
        usual = "; ".join(sound[name].figure for name in bug.caught_by)
        lines.append(f"| `{bug.name}` | {bug.what} | {keepers} | {'; '.join(seen)} | {usual} |")
    return lines


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

    page = ROOT / "docs" / "audit.md"
    kept = page.read_text(encoding="utf-8")
    wanted = sys.argv[1:] or ["audits", "bugs", "mutants"]
    heads = {
        "audits": CORRECT.format(seeds=SEEDS),
        "bugs": BUGS.format(claim=CLAIM, confidence=CONFIDENCE, runs=RUNS, repeats=REPEATS, power=power()),
        "mutants": MUTANTS,
    }
    makers = {"audits": correct, "bugs": planted, "mutants": mutants}
    parts = [HEAD]
    for name, head in heads.items():
        if name in wanted:
            rows = makers[name]()
        else:
            section = kept.partition(head.strip().splitlines()[0])[2].partition("\n## ")[0]
            rows = [line for line in section.splitlines() if line.startswith("|")][2:]
        parts += [head, "\n".join(rows), "\n"]
    page.write_text("".join([*parts, TAIL]), encoding="utf-8")


if __name__ == "__main__":
    main()
