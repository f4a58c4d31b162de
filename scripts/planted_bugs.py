"""Audit correct training, plant every bug, and write docs/audit.md. Takes some minutes on one core.

Run it from the repository: `.venv/bin/python scripts/planted_bugs.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[1]
SEEDS = 20

HEAD = """\
# Auditing the promise

This page is written by `scripts/planted_bugs.py`. The tests check that it lists every planted bug.

The accountant says how much a run reveals *at most*, if the code does what the accountant thinks it does. An audit
looks from the other side: it attacks the code that is really there, and says how much it reveals *at least*. The
promise is refuted when that lower bound exceeds the claim.

    hush audit FILE.toml

audits the client with the largest budget. It trains as a run would (the same plan, the same training, the same source
of noise, drawn afresh for every repetition), but with rows of its own making, canaries, and then guesses from the
released updates which of them were there. It plays the server: it sees every update, knows the plan and all other
rows, and sends the client the same model every round, as the promise allows it to.

## How to read the result
- **Lower bound above the claim:** the claim is false, or one in twenty has happened (at a confidence of 0.95; in a
  thousand at 0.999). Repeat it with another seed at 0.999. If it stays, there is a bug.
- **Lower bound below the claim:** nothing was refuted. It is *not* a proof that the claim holds. How much it says
  depends on how near the claim it came: a bound of 0.1 against a claim of 8 says little, since the attack was weak
  there.
- **"If Gaussian"** is closer, but assumes normal scores. It shows small errors of scale that a bound without
  assumptions cannot see. It proves nothing, and may exceed a true claim a little more often than the confidence says.
- With n judging runs no bound exceeds about log(n / 4): a total failure of privacy looks like 6 or 7, not like
  infinity.

Two kinds:
- `two-datasets` repeats training thousands of times, with and without one canary, a row whose gradient fills the clip
  and is orthogonal to all others. A third of the runs chooses the score and its threshold; the rest judges it, by
  exact (Clopper and Pearson) bounds on both error rates. For small models.
- `one-run` plants many canaries, each in or out by a coin, and guesses at those with the most extreme scores; the
  bound is theorem 5.2 of Steinke, Nasr and Jagielski (2023), with its delta term. For models that are too large to
  repeat.

Neither assumes anything about the mechanism. Where a row is "removed" it is replaced by one that is not a number,
which adds nothing to a sum (a guarantee of its own, tested on its own).
"""

CORRECT = """
## Audits of correct training
Over {seeds} seeds each. The worst case is a linear model of two classes in which rows share no input (`worst_case` in
`engines/audit_target.py`): an audit that found little even there would prove nothing anywhere.

| setting | kind | confidence | claim | lower bound: least, mean, most | if Gaussian: mean | exceeds the claim |
|---|---|---|---|---|---|---|
"""

BUGS = """
## Planted bugs
Each of these was planted in the real pipeline (`tests/statistical/planted.py`) and must be caught by the checks that
are named (`tests/statistical/checks.py`): the test is `test_bug_is_caught[bug-check]` in
`tests/statistical/test_planted_bugs.py`. Without a bug every check passes. The first check named is the one that
keeps watch; where an audit sees the bug as well, it comes second. Audits here claim an epsilon of {claim:g} at delta
0.001, with {runs:,} runs on each dataset at a confidence of {confidence:g}: long enough to see halved noise for
{power:.1%} of seeds (on simulated Gaussian scores). Half as many runs would miss it for about one seed in six.

| bug | what it does | caught by | what is seen | without the bug |
|---|---|---|---|---|
"""

TAIL = """
What an audit cannot see, a check must: shuffled batches, a divisor that depends on the data or steps that are not
counted hardly move a bound, and are plain to see when looked at directly. What no check looks for, an audit may still
find. Hence both.
"""


def correct() -> list[str]:
    """A line for each setting that was audited."""
    from hush.config import load
    from hush.engines.audit import examine
    from hush.engines.audit_target import target, worst_case
    from hush.engines.federation import prepare

    full = worst_case()
    demo = target(prepare(load(ROOT / "src" / "hush" / "demo.toml")))
    settings = [
        ("worst case, one full batch", full, {"runs": 10_000}),
        ("worst case, one full batch", full, {"runs": 20_000, "confidence": 0.999}),
        ("a row replaced", worst_case(relation="replace-one"), {"runs": 10_000}),
        ("half batches, 2 rounds of 2 steps", worst_case(batch=4, rounds=2), {"runs": 5_000}),
        ("worst case of 1,000 rows, delta 1e-5", worst_case(samples=1000, batch=1000, delta=1e-5),
         {"kind": "one-run", "canaries": 1000}),
        (f"`hush demo`, client {demo.client}, {demo.plan.rounds * demo.plan.steps} steps", demo, {"kind": "one-run"}),
        ("one full batch, delta 0.01", worst_case(delta=1e-2), {"runs": 10_000, "confidence": 0.999}),
        ("a row replaced, delta 0.01", worst_case(delta=1e-2, relation="replace-one"),
         {"runs": 10_000, "confidence": 0.999}),
        ("half batches, 3 rounds of 2 steps, delta 0.01", worst_case(batch=4, rounds=3, delta=1e-2),
         {"runs": 2_000, "confidence": 0.999}),
        ("worst case of 1,000 rows, delta 1e-8", worst_case(epsilon=8.0, samples=1000, batch=1000, delta=1e-8),
         {"kind": "one-run", "canaries": 1000, "confidence": 0.999}),
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
    from checks import CHECKS
    from planted import BUGS as PLANTED

    sound = {name: check() for name, check in CHECKS.items()}
    if wrong := [name for name, found in sound.items() if not found.ok]:
        raise SystemExit(f"without any bug these checks fail: {', '.join(wrong)}")
    lines = []
    for bug in PLANTED:
        seen = []
        for name in bug.caught_by:
            with bug.plant():
                found = CHECKS[name]()
            if found.ok:
                raise SystemExit(f"{bug.name} is not caught by {name}: {found.figure}")
            seen.append(found.figure)
        keepers = ", ".join(f"`{name}`" for name in bug.caught_by)
        usual = "; ".join(sound[name].figure for name in bug.caught_by)
        lines.append(f"| `{bug.name}` | {bug.what} | {keepers} | {'; '.join(seen)} | {usual} |")
    return lines


def main() -> None:
    """Write the page."""
    sys.path.insert(0, str(ROOT / "tests" / "statistical"))
    from checks import CLAIM, CONFIDENCE, RUNS, power

    bugs = BUGS.format(claim=CLAIM, confidence=CONFIDENCE, runs=RUNS, power=power())
    parts = [HEAD, CORRECT.format(seeds=SEEDS), "\n".join(correct()), "\n", bugs, "\n".join(planted()), "\n", TAIL]
    (ROOT / "docs" / "audit.md").write_text("".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
