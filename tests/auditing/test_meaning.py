"""The meaning of an audit's result is said in plain words, which follow from its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hush.auditing.meaning import in_words
from hush.auditing.run import AuditedRelease, AuditResult, examine
from hush.types import HushError
from tests.support.worst_case import worst_case


@pytest.fixture(scope="module")
def found() -> AuditResult:
    return examine(worst_case(), kind="two-datasets", runs=400, seed=1)


def test_what_an_attacker_gains_and_what_was_allowed(found: AuditResult) -> None:
    gain, guess, assumption, verdict, unseen = found.meaning
    assert gain.endswith(f"gains at least epsilon {found.epsilon_lower:.3g} about one row; you allowed 4.")
    assert f"right at least {100 * (found.accuracy_lower or 0):.1f} % of the time" in guess
    assert "the plan allows 72.8 %" in guess
    assert f"{found.noise_at_most:.2f} times the planned one" in assumption
    assert f"Without any assumption the attack shows at least epsilon {found.epsilon_lower_any:.3g}." in assumption
    assert verdict.startswith("Nothing contradicts what you allowed.") and "1 in 20 audits" in verdict
    assert unseen.startswith("Not looked at: ") and "side channels" in unseen


def test_what_was_not_looked_at_is_named(found: AuditResult) -> None:
    some = AuditedRelease(what="clip quantile", times=9, audited=4, epsilon_claimed=0.5, epsilon_lower=0.1)
    words = in_words(replace(found, releases=(*found.releases, some), not_audited=("impact factor",)))
    assert words[-1].startswith("Not looked at: impact factor; clip quantile in 5 of 9 rounds; the other clients")


def test_a_refuted_claim_names_the_release(found: AuditResult) -> None:
    bad = AuditedRelease(what="clip quantile", times=1, audited=1, epsilon_claimed=0.5, epsilon_lower=3.0)
    words = in_words(replace(found, refuted=True, confidence=0.999, releases=(bad,)))
    assert "The releases (clip quantile) are distinguished better than the plan allows" in words[3]
    assert "1 in 1000 audits" in words[3] and "Repeat it with another seed" in words[3]


def test_an_attack_that_found_nothing_says_so(found: AuditResult) -> None:
    weak = examine(worst_case(samples=40, batch=1, epsilon=0.1), kind="two-datasets", runs=8, seed=1)
    assert weak.noise_at_most is None and weak.epsilon_lower == 0.0
    assert "too weak for a bound" in weak.meaning[2]
    assert "right at least 50.0 %" in weak.meaning[1]


def test_guesses_about_many_rows() -> None:
    found = examine(worst_case(samples=60, batch=60), kind="one-run", canaries=40, runs=20, seed=1)
    assert found.accuracy_lower is None
    assert (
        f"it was right in {found.right} of its {found.guesses} surest guesses, of 800 possible ones" in found.meaning[1]
    )
    few = examine(worst_case(), kind="one-run", canaries=2, runs=1, seed=1)
    assert few.guesses == 0 and "too few planted rows" in few.meaning[1]


def test_a_client_is_audited_as_a_whole() -> None:
    found = examine(worst_case(unit="client", batch=4, rounds=2), runs=1000, seed=1)
    assert (found.unit, found.kind) == ("client", "two-datasets")
    assert 0.6 * found.epsilon_claimed < found.epsilon_lower <= found.epsilon_claimed
    assert "about one client; you allowed 4." in found.meaning[0]
    with pytest.raises(HushError, match="a client is one canary"):
        examine(worst_case(unit="client"), kind="one-run")
