"""The meaning of an audit's result, in sentences for somebody who has read no paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.auditing.run import AuditResult

_NEVER = (
    "the other clients, several clients together, other rows than the planted ones, side channels such as timing and "
    "memory, and the low-order bits of the noise"
)


def in_words(found: AuditResult) -> tuple[str, ...]:
    """Return what a result means: what an attacker gains, what was allowed, and what was not looked at."""
    return (_gain(found), _guess(found), _assumption(found), _verdict(found), _unseen(found))


def _gain(found: AuditResult) -> str:
    return (
        f"An attacker who knows everything else and sees all that client {found.client} releases gains at least "
        f"epsilon {found.epsilon_lower:.3g} about one {found.unit}; you allowed {found.epsilon_claimed:.3g}."
    )


def _guess(found: AuditResult) -> str:
    allowed = f"{100 * found.accuracy_allowed:.1f} %"
    if found.accuracy_lower is not None:
        return (
            f"Guessing whether that {found.unit} was used, such an attacker is right at least "
            f"{100 * max(0.5, found.accuracy_lower):.1f} % of the time; blind guesses are right 50 % of the time, and "
            f"the plan allows {allowed}."
        )
    if not found.guesses:
        return f"There were too few planted {found.unit}s to guess which of them were used."
    return (
        f"Guessing which of the planted {found.unit}s were used, it was right in {found.right} of its {found.guesses} "
        f"surest guesses, of {found.canaries * found.runs} possible ones; blind guesses are right half of the time. "
        f"About a single {found.unit} the plan allows {allowed}."
    )


def _assumption(found: AuditResult) -> str:
    any_mechanism = f"Without any assumption the attack shows at least epsilon {found.epsilon_lower_any:.3g}."
    if found.noise_at_most is None:
        return f"The attack was too weak for a bound. {any_mechanism}"
    return (
        "The first number assumes that the releases are the planned ones with another amount of noise, at most "
        f"{found.noise_at_most:.2f} times the planned one. {any_mechanism}"
    )


def _verdict(found: AuditResult) -> str:
    chance = f"1 in {1.0 / (1.0 - found.confidence):.0f}"
    if not found.refuted:
        return (
            "Nothing contradicts what you allowed. This is no proof: a better attack may find more. "
            f"By chance alone, bounds like these are too high in at most {chance} audits."
        )
    worst = [each.what for each in found.releases if each.epsilon_lower > each.epsilon_claimed]
    where = f" ({', '.join(worst)})" if worst else ""
    return (
        f"The releases{where} are distinguished better than the plan allows: the accounting does not hold for this "
        f"code, or this is one of at most {chance} audits that are wrong by chance. Repeat it with another seed and a "
        "confidence of 0.999; if it stays, there is a bug."
    )


def _unseen(found: AuditResult) -> str:
    own = "".join(f"{what}; " for what in found.not_audited)
    partly = "".join(
        f"{each.what} in {each.times - each.audited} of {each.times} rounds; "
        for each in found.releases
        if 0 < each.audited < each.times
    )
    return f"Not looked at: {own}{partly}{_NEVER}."
