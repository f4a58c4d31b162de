"""A member's policy in words: what it permits and what follows from it, a sentence each."""

from __future__ import annotations

import math

from hush.deploy.member.policy import ANY, MemberPolicy, lifetime_warning
from hush.deploy.shared.protocol import PROTOCOL, code_hash

_WEAK = 10.0


def explained(policy: MemberPolicy) -> list[str]:
    """Return what a policy permits, in sentences, with a warning for each value that is unusual."""
    budget, limits, accept, enrol = policy.budget, policy.limits, policy.accept, policy.enrol
    consent, life = policy.consent, policy.for_life.epsilon
    runs = int(life / budget.epsilon + 1e-9)
    found = [
        f"One run may spend epsilon {budget.epsilon:g} at delta {budget.delta:g}: whoever sees all that is sent can "
        f"change the odds of a guess about one row by a factor of at most {_factor(budget.epsilon)}.",
        f"All runs together may spend epsilon {life:g}: about {runs} such run{'s' if runs != 1 else ''}, more if they "
        "cost less. What is spent never comes back.",
        _consent(policy),
        f"Accepted algorithms: {'all' if ANY in accept.recipes else ', '.join(accept.recipes)}. Accepted code: "
        + (f"all of protocol version {PROTOCOL}" if ANY in accept.code else f"{len(accept.code)} version(s), "
           f"{'with' if code_hash() in accept.code else 'WITHOUT'} the one installed here")
        + f". Code of other packages: {', '.join(accept.models) or 'none'}.",
        f"A run has at most {limits.max_rounds} rounds of {limits.max_steps} steps and {limits.max_members} members, "
        f"and a model of at most {limits.max_parameters:,} parameters ({4 * limits.max_parameters / 2**20:.0f} MiB).",
        f"It uses at most {limits.max_memory} MiB of memory, {limits.max_cpu:.0%} of the cores on average, and "
        f"messages of {limits.max_message} MiB; at most {limits.runs_per_day} runs begin within 24 hours, "
        + (f"and the member answers from {limits.hours} local time only." if limits.hours else "at any hour."),
        f"Columns that runs may use: {', '.join(policy.data.columns) or 'all of the file'}; the label is "
        f"{policy.data.label!r}.",
        f"{policy.data.held_out:.0%} of the rows are held out of training, for evaluation with noise."
        if policy.data.held_out else "No rows are held out of training: runs that evaluate models here are refused.",
        _sums(policy),
        f"Before training the others learn the number of rows ({_disclosure(enrol.samples)}) and the budget "
        f"({_disclosure(enrol.budget)}).",
    ]  # fmt: skip
    warnings = [lifetime_warning(policy).removeprefix("warning: ")] if lifetime_warning(policy) else []
    if budget.epsilon > _WEAK:
        warnings.append(f"epsilon {budget.epsilon:g} protects little; sensible: 0.1 to 5")
    if accept.seeded:
        warnings.append("accept.seeded: seeded noise is not private at all; for experiments only")
    if accept.uncovered:
        warnings.append("accept.uncovered: recipes may release what the guarantee does not cover")
    if consent.auto_approve and consent.max_epsilon is None:
        warnings.append("consent.auto_approve without max_epsilon: a run may spend the whole epsilon without a person")
    return [*found, *(f"Warning: {text}" for text in warnings)]


def _consent(policy: MemberPolicy) -> str:
    rules = policy.consent
    if not rules.auto_approve:
        return "A person approves each run (hush federation preview, approve, decline); without approval it is refused."
    bounds = [f"epsilon up to {rules.max_epsilon:g}"] if rules.max_epsilon is not None else []
    bounds += [f"up to {rules.max_rounds} rounds"] if rules.max_rounds is not None else []
    inside = f" with {' and '.join(bounds)}" if bounds else ""
    return f"Runs within this policy{inside} start without a person; others wait for approval."


def _sums(policy: MemberPolicy) -> str:
    rules = policy.secure_aggregation
    keys = f"; the keys of {len(rules.peers)} other members are known here" if rules.peers else ""
    if not rules.required:
        return (
            "The coordinator sees this member's noised updates; with secure aggregation it sees sums of "
            f"{rules.min_sum} members or more{keys}."
        )
    return f"The coordinator sees nothing of this member's updates but sums of {rules.min_sum} members or more{keys}."


def _disclosure(choice: str) -> str:
    return "noised, which consumes budget" if choice == "noised" else "as it is"


def _factor(epsilon: float) -> str:
    return f"{math.exp(epsilon):.3g}" if epsilon < 50 else "more than 10^20"
