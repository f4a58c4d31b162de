"""The preview of a run: what it asks of a member, computed by the member from its own policy and plan.

Only the purpose and the names of the other members are the coordinator's text; they are marked as such and escaped.
The digest covers everything in a preview, so that an approval holds for exactly what was shown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hush.config import Config
from hush.deploy.member.policy import MemberPolicy
from hush.deploy.shared.protocol import read_version
from hush.deploy.shared.run_spec import MemberSpec
from hush.engines.client_round import halves
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import totals
from hush.privacy.plan import UPDATE
from hush.privacy.unit import protects
from hush.recipes.slots.weight import COUNT
from hush.text import printable
from hush.types import HushError, Unit

LONGEST_PURPOSE = 500
_MOST_NAMES, _LONGEST_NAME = 10_000, 64
_SLACK = 1.01  # what planning from the roster may add to epsilon, in proportion, below the limit of the policy


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a run asks of a member.

    Attributes:
        purpose: The coordinator's description, unverified.
        members: Who is asked to take part, as the coordinator says; the run may go on with fewer of them.
        number: This member's place among them.
        config: The config, as offered.
        code: The coordinator's protocol version and the hash of its code.
        schema: The schema of the run's rows.
        recipe: The name of the recipe.
        rows: The number of rows that the run uses and learns; None if it learns a noisy number.
        rounds: The number of rounds in which this member takes part.
        steps: Noisy steps per round.
        noise: The noise multiplier of training.
        epsilon: The cost of the whole run.
        epsilon_round: The cost of one round alone.
        delta: For both.
        relation: For both.
        unit: What both protect.
        releases: What the run releases, and how often: the description of each kind of charged release.
        declared: What the member declares at enrolment without noise.
        uncovered: What the guarantee does not cover.
        model: The name of the model.
        parameters: The number of its parameters.
        download: Bytes per round from the coordinator.
        upload: Bytes per round to the coordinator.
        earlier: The number of runs with this content in which this member took part before.
    """

    purpose: str
    members: tuple[str, ...]
    number: int
    config: Mapping[str, Any]
    code: str
    schema: Mapping[str, Any]
    recipe: str
    rows: int | None
    rounds: int
    steps: int
    noise: float
    epsilon: float
    epsilon_round: float
    delta: float
    relation: str
    unit: Unit
    releases: tuple[str, ...]
    declared: tuple[str, ...]
    uncovered: tuple[str, ...]
    model: str
    parameters: int
    download: int
    upload: int
    earlier: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 of everything in the preview."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def limit(self) -> float:
        """The most epsilon that an approval of this preview permits."""
        return _SLACK * self.epsilon


def from_record(raw: Mapping[str, Any]) -> Preview:
    """Return a preview from its JSON record, or raise a `HushError`."""
    try:
        found: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
        return Preview(**found)
    except TypeError as error:
        raise HushError(f"a preview that was not written by this version of hush: {error}") from None


def check_words(purpose: Any, members: Any, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the coordinator's texts, or raise a `HushError`: a short purpose, and names that include this member's."""
    if not isinstance(purpose, str) or len(purpose) > LONGEST_PURPOSE:
        raise HushError(f"propose: accepted: a purpose of at most {LONGEST_PURPOSE} characters")
    listed = isinstance(members, list) and 0 < len(members) <= _MOST_NAMES
    if not listed or not all(isinstance(each, str) and len(each) <= _LONGEST_NAME for each in members):
        raise HushError("propose: accepted: a list of members by name")
    if name not in members:
        raise HushError(f"propose: {name} is not among the members that are asked")
    return purpose, tuple(members)


def preview(
    spec: MemberSpec, policy: MemberPolicy, *, purpose: str, members: tuple[str, ...], config: Config, code: str,
    recipe: str, models: int,
) -> Preview:  # fmt: skip
    """Return the preview of a run from this member's own part in it.

    Args:
        spec: This member's part, planned with the other members unknown.
        policy: This member's policy.
        purpose: The coordinator's text.
        members: The members that are asked.
        config: The config, as offered.
        code: The protocol version and the hash of the coordinator's code.
        recipe: The name of the recipe.
        models: The number of models in a task.
    """
    one, accountant = policy.one_run, policy.budget.accountant
    first = next(stage for stage in spec.schedule.stages if stage.spec.train)
    size = spec.model.layout.size
    noised = {cost.what for cost in spec.disclosed}
    plan = spec.schedule.plan

    def epsilon(costs: tuple[Cost, ...]) -> float:
        return float(f"{totals.epsilon(totals.add_costs({}, costs), one, accountant):.6g}")

    shown = (("number of rows", COUNT), ("privacy budget", "privacy budget"), ("impact factor", "impact factor"))
    public = [words for words, what in shown if what not in noised and (what != "impact factor" or policy.enrol.factor)]
    return Preview(
        purpose=purpose,
        members=members,
        number=spec.client,
        config=after_json(config.model_dump()),
        code=code,
        schema=after_json(spec.schema.record()),
        recipe=recipe,
        rows=None if spec.noised else plan.samples,
        rounds=spec.schedule.rounds,
        steps=plan.steps,
        noise=float(f"{plan.noise_multiplier:.6g}"),
        epsilon=epsilon(spec.costs()),
        epsilon_round=epsilon(first.round_costs),
        delta=one.delta,
        relation=one.relation,
        unit=one.unit,
        releases=_releases(spec),
        declared=tuple(public),
        uncovered=tuple(sorted({f"{r.what}: {r.why}" for r in spec.recipe.releases() if not r.covered})),
        model=spec.config.model.name,
        parameters=size,
        download=(2 if config.engine.transport == "float16" else 4) * size * models,
        upload=(2 if halves(config) else 4) * size,
    )


def _releases(spec: MemberSpec) -> tuple[str, ...]:
    """The charged releases of a run in words, each kind once with how often it occurs."""
    times: dict[tuple[str, float], int] = {}
    for cost in spec.disclosed:
        times[cost.what, cost.noise] = 1
    for stage in spec.schedule.stages:
        for cost in stage.round_costs if stage.rounds and stage.spec.train else ():
            key = (cost.what, cost.noise)
            times[key] = times.get(key, 0) + stage.rounds
    return tuple(
        f"{what}: {count} time{'s' if count > 1 else ''}, with noise multiplier {noise:.4g}"
        + (" in every step" if what == UPDATE else "")
        for (what, noise), count in times.items()
    )


def after_json(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as it is after it was sent as JSON."""
    found: dict[str, Any] = json.loads(json.dumps(record))
    return found


def sentences(found: Preview, spent: float, life: float) -> list[str]:
    """Return a preview in plain language, a line each; `spent` and `life` are of the member's ledger and policy."""
    config, schema = found.config, found.schema
    columns = [column["name"] for column in schema.get("columns", ())]
    shown = ", ".join(printable(name, 40) for name in columns[:40]) + (" ..." if len(columns) > 40 else "")
    others = [printable(name, 64) for at, name in enumerate(found.members) if at != found.number]
    rows = (
        f"{found.rows} {found.unit}s, a number that the others learn"
        if found.rows
        else f"its {found.unit}s; others learn a noisy number"
    )
    purpose = printable(found.purpose, 2 * LONGEST_PURPOSE) or "none given"
    after = max(0.0, life - spent - found.epsilon)
    lines = [
        f"purpose (text of the coordinator, not verified): {purpose}",
        f"who takes part: this member and {len(others)} others at most: {', '.join(others[:30]) or 'nobody else'}"
        + (" ..." if len(others) > 30 else ""),
        f"data: {rows}; "
        + (f"{len(columns)} columns: {shown}; label: {printable(schema.get('label'), 40)}" if columns else
           f"inputs of shape {tuple(schema.get('shape', ()))}"),
        f"rounds: {found.rounds} of {config['rounds']}, {found.steps} noisy steps each",
        f"privacy: epsilon at most {found.epsilon:.4g} in total, {found.epsilon_round:.4g} for one round alone, delta "
        f"{found.delta:g} ({found.relation}, protects {protects(found.unit)}), recipe {printable(found.recipe, 80)}, "
        f"{printable(config['privacy']['noise'], 20)} noise",
        f"lifetime budget: {life:.4g}, of which {spent:.4g} is spent; at least {after:.4g} remains after the run",
    ]  # fmt: skip
    if found.earlier:
        lines.append(f"this member has taken part in {found.earlier} earlier runs with the same content")
    lines.append(
        "the coordinator sees sums over a majority of the members (secure aggregation), which lowers no epsilon"
        if config.get("secure_aggregation")
        else "the coordinator sees this member's noised updates (no secure aggregation)"
    )
    lines += [f"released and charged: {words}" for words in found.releases]
    lines.append(f"declared without noise: {', '.join(found.declared) or 'nothing'}")
    lines += [f"not covered by the guarantee: {printable(words)}" for words in found.uncovered]
    lines += [
        f"model: {printable(found.model, 80)}, {found.parameters:,} parameters; per round {_size(found.download)} are "
        f"received and about {_size(found.upload)} are sent",
        f"code of the coordinator: {read_version(found.code).words}",
    ]
    return lines


def _size(number: int) -> str:
    return f"{number / 2**20:.1f} MiB" if number >= 2**20 else f"{number / 2**10:.1f} KiB"
