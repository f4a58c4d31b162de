"""A member's `policy.toml`, which is authoritative for that member. An unknown key is an error."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hush.config import Config, located, unit_of
from hush.data import budgets
from hush.deploy.member import opening
from hush.deploy.shared.protocol import Version, code_hash, is_compatible, own
from hush.models.encoders import SCATTERING
from hush.privacy import limits
from hush.privacy.limits import Limits
from hush.recipes import RECIPES, Recipe, secure_sums
from hush.types import Accountant, HushError, Policy, Relation, Unit, unknown

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ANY, CUSTOM, MODIFIED = "any", "custom", " (modified)"
MIB = 1 << 20
_EXAMPLE = 16  # bytes per model parameter and example in training: the gradient and its factors
_STATE = 32  # bytes per model parameter: vectors, sums and noise
_COPIES = 6  # copies of a message while it is received and decoded
_HASH = re.compile("[0-9a-f]{64}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Budget(_Strict):
    """`[budget]`: the maximum epsilon of one run, and of all runs together (`lifetime`, as in the ledger).

    `unit` is what it protects; a run that protects anything else is refused.
    """

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    relation: Relation = "add-remove"
    unit: Unit = "row"
    accountant: Accountant = "pld"
    lifetime: Positive | None = None


class Bounds(_Strict):
    """`[limits]`: limits on a run, checked before anything is built or planned.

    Attributes:
        max_rate: The maximum sampling rate.
        max_steps: The maximum number of noisy steps per round.
        max_rounds: The maximum number of rounds of a run.
        min_noise: The minimum noise multiplier.
        min_clip: The minimum clipping norm.
        max_clip: The maximum clipping norm.
        max_members: The maximum number of members of a run.
        max_parameters: The maximum number of parameters of a model.
        max_memory: The maximum memory, in MiB, for messages and training in this process.
        max_message: The maximum size of a message, in MiB.
        max_cpu: The share of this machine's cores that the member may use, on average.
        runs_per_day: The maximum number of runs that begin within 24 hours.
        hours: The local hours in which the member takes part, such as `18:00-06:00`; empty: at any time.
    """

    max_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_steps: Annotated[int, Field(ge=1)] = 10_000
    max_rounds: Annotated[int, Field(ge=1)] = 2_000
    min_noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    min_clip: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    max_clip: Positive = 1e6
    max_members: Annotated[int, Field(ge=1)] = 200
    max_parameters: Annotated[int, Field(ge=1)] = 20_000_000
    max_memory: Annotated[int, Field(ge=1)] = 4096
    max_message: Annotated[int, Field(ge=1)] = 256
    max_cpu: Annotated[float, Field(gt=0, le=1)] = 1.0
    runs_per_day: Annotated[int, Field(ge=1)] = 10
    hours: str = ""


class Consent(_Strict):
    """`[consent]`: whether a person approves each run (`hush federation approve`), or these rules do.

    Attributes:
        auto_approve: Whether a run within the limits of the policy and the rules below starts without approval.
        max_epsilon: The largest epsilon of a run that is approved automatically; by default that of the budget.
        max_rounds: The most rounds of a run that is approved automatically; by default those of the limits.
    """

    auto_approve: bool = False
    max_epsilon: Positive | None = None
    max_rounds: Annotated[int, Field(ge=1)] | None = None

    @property
    def has_rules(self) -> bool:
        """Whether automatic approval depends on the run."""
        return self.max_epsilon is not None or self.max_rounds is not None


class Accept(_Strict):
    """`[accept]`: accepted recipes and code, and accepted weakenings, each of which is off by default.

    `code` has hashes, or "any" for all code of this member's protocol version.
    """

    recipes: Annotated[list[str], Field(min_length=1)]
    code: Annotated[list[str], Field(min_length=1)]
    models: list[str] = []
    seeded: bool = False
    uncovered: bool = False
    dry_runs: bool = True


class Enrol(_Strict):
    """`[enrol]`: what the member discloses about itself; each entry is public, or noised and charged.

    Attributes:
        samples: The number of rows.
        budget: The budget.
        impact: Whether the impact factor is public.
        factor: The impact factor, for recipes that weight by it.
        group: The true cluster, for recipes that assume it is known; always public.
        noise: The noise multiplier of noisy disclosures, relative to the change that one row can cause.
        budget_row: The change of the budget that one row can cause; by default all of it.
        factor_row: The change of the factor that one row can cause.
    """

    samples: Literal["public", "noised"] = "public"
    budget: Literal["public", "noised"] = "public"
    impact: Literal["public", "noised"] = "public"
    factor: Annotated[float, Field(ge=0, le=1)] | None = None
    group: Annotated[int, Field(ge=0)] | None = None
    noise: Positive = 10.0
    budget_row: Positive | None = None
    factor_row: Annotated[float, Field(gt=0, le=1)] = 1.0


class SecureAggregation(_Strict):
    """`[secure_aggregation]`: what the coordinator may see of updates.

    Attributes:
        required: Whether runs in which the coordinator sees this member's own updates are refused.
        min_sum: The fewest members of a sum that the coordinator may see.
        peers: The fingerprints of the other members' keys, by name. If any are given, runs with other members or keys
            are refused, so that a coordinator cannot take their place.
    """

    required: bool = False
    min_sum: Annotated[int, Field(ge=2)] = 2
    peers: dict[str, str] = {}


class Data(_Strict):
    """`[data]`: how the member's file is read.

    Attributes:
        label: The label column.
        loader: A custom function, as `module:function`.
        columns: The columns of the file that runs may use; others are left out when it is read. Empty: all columns.
        held_out: The fraction of the rows that is never trained on, and that runs may evaluate models on, with noise.
        person: The column with the key of each row's person, if the schema names none. It is no feature and stays here.
    """

    label: str = "label"
    loader: str | None = None
    columns: list[str] = []
    held_out: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    person: str | None = None


class MemberPolicy(_Strict):
    """The whole policy."""

    budget: Budget
    accept: Accept
    limits: Bounds = Bounds()
    consent: Consent = Consent()
    enrol: Enrol = Enrol()
    data: Data = Data()
    secure_aggregation: SecureAggregation = SecureAggregation()

    @property
    def one_run(self) -> Policy:
        """The privacy policy of one run."""
        return Policy(self.budget.epsilon, self.budget.delta, self.budget.relation, self.budget.unit)

    @property
    def for_life(self) -> Policy:
        """The privacy policy of all runs together."""
        lifetime = self.budget.lifetime or self.budget.epsilon
        return Policy(lifetime, self.budget.delta, self.budget.relation, self.budget.unit)

    @property
    def bounds(self) -> Limits:
        """The limits that apply to a plan."""
        return Limits(**{name: getattr(self.limits, name) for name in Limits.__dataclass_fields__})

    @property
    def message_cap(self) -> int:
        """The maximum size of a message, in bytes."""
        return self.limits.max_message * MIB

    def examples(self, parameters: int) -> int:
        """The number of examples of a model of that size that training may process at a time: at least 1."""
        room = self.limits.max_memory * MIB // 2 - _STATE * parameters
        return max(1, room // (_EXAMPLE * parameters))


def unattended(policy: MemberPolicy, *, always: bool = False) -> MemberPolicy:
    """Return the policy for a dry run, which costs nothing: without approval, and with `always` at any hour."""
    limits = policy.limits.model_copy(update={"hours": ""}) if always else policy.limits
    return policy.model_copy(update={"consent": Consent(auto_approve=True), "limits": limits})


def lifetime_warning(policy: MemberPolicy) -> str:
    """Return a warning if one run may spend the whole lifetime budget of these rows; otherwise an empty text."""
    one, life = policy.one_run.epsilon, policy.for_life.epsilon
    if one < life:
        return ""
    return (
        f"warning: one run may spend the whole lifetime budget (epsilon {one:g}, lifetime {life:g}), after which these "
        "rows can never be used again; set budget.lifetime above budget.epsilon for more than one run, and try a "
        "config with hush federation check, which costs nothing"
    )


def load(path: Path) -> MemberPolicy:
    """Read a policy, or raise a `HushError` with the key and line that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HushError(f"{path}: the policy cannot be read: {error}") from None
    try:
        found = MemberPolicy.model_validate(tomllib.loads(text))
        _check(found)
        return found
    except HushError as error:
        raise located(error, path) from None
    except tomllib.TOMLDecodeError as error:
        raise HushError(f"{path}: not valid TOML: {error}") from None
    except ValidationError as error:
        raise located(_explained(error), path) from None


def _check(policy: MemberPolicy) -> None:
    """Raise a `HushError` for settings that contradict each other, or that no run could satisfy."""
    bounds, budget = policy.limits, policy.budget
    if bounds.min_clip > bounds.max_clip:
        raise HushError(
            f"limits.min_clip: {bounds.min_clip:g} is more than max_clip {bounds.max_clip:g}", "limits.min_clip"
        )
    if _COPIES * bounds.max_message > bounds.max_memory:
        raise HushError(
            f"limits.max_message: {bounds.max_message} MiB is more than max_memory {bounds.max_memory} MiB has room "
            f"for; accepted: up to {bounds.max_memory // _COPIES}",
            "limits.max_message",
        )
    if _STATE * bounds.max_parameters > bounds.max_memory * MIB // 2:
        raise HushError(
            f"limits.max_parameters: {bounds.max_parameters} do not fit max_memory {bounds.max_memory} MiB; accepted: "
            f"up to {bounds.max_memory * MIB // (2 * _STATE)}",
            "limits.max_parameters",
        )
    opening.parse(bounds.hours)
    if policy.data.label in policy.data.columns:
        raise HushError(
            f"data.columns: contains the label column {policy.data.label!r:.80}; accepted: features only",
            "data.columns",
        )
    if budget.lifetime is not None and budget.lifetime < budget.epsilon:
        raise HushError(
            f"budget.lifetime: {budget.lifetime:g} is less than the {budget.epsilon:g} of one run (epsilon); "
            "accepted: as much, or more",
            "budget.lifetime",
        )
    for name in policy.accept.recipes:
        if name.removesuffix(MODIFIED) not in (ANY, CUSTOM, *RECIPES):
            raise unknown("accept.recipes", "recipe", name, [ANY, CUSTOM, *RECIPES])
    for name, key in policy.secure_aggregation.peers.items():
        if not _HASH.fullmatch(key):
            raise HushError(
                f"secure_aggregation.peers: {name[:40]} has {key[:80]!r}; accepted: a fingerprint of 64 digits and "
                "letters a to f (hush federation fingerprint)",
                "secure_aggregation.peers",
            )
    for name in policy.accept.code:
        if name != ANY and not _HASH.fullmatch(name):
            raise HushError(
                f"accept.code: found {name[:80]!r}; accepted: 64 digits and letters a to f (hush federation code), "
                'or "any"',
                "accept.code",
            )


def _explained(error: ValidationError) -> HushError:
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]
    key = ".".join(parts)
    if first["type"] == "extra_forbidden":
        model: Any = MemberPolicy
        for part in parts[:-1]:
            model = model.model_fields[part].annotation
        return unknown(key, "key", parts[-1], sorted(model.model_fields))
    words = first["msg"].replace("Input should be", "expected")
    return HushError(f"{key}: {words[0].lower()}{words[1:]}, found {first['input']!r}"[:300], key)


def check_imports(policy: MemberPolicy, config: Config) -> None:
    """Raise a `HushError` if a config would import code that the member's policy does not list.

    Must run before any other use of the config, because parsing a recipe imports what it names.
    """
    for found in _texts([config.recipe, config.model.name, config.data.name]):
        if ":" in found and found not in policy.accept.models:
            raise HushError(f"{found[:80]}: not accepted by this member; add it to accept.models to accept it")
    # An encoder may also be a file with code.
    encoder = config.model.encoder
    if encoder is not None and encoder != SCATTERING and encoder not in policy.accept.models:
        raise HushError(f"{encoder[:80]}: not accepted by this member; add it to accept.models to accept it")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from _texts(item)


def check_size(policy: MemberPolicy, config: Config) -> None:
    """Raise a `HushError` if a run is longer or larger than the limits. Nothing is planned or built."""
    bounds, local = policy.limits, config.local
    for what, found, most in (
        ("rounds", config.rounds, bounds.max_rounds),
        ("members", config.data.clients, bounds.max_members),
        ("steps per round", max(local.steps or 1, local.epochs), bounds.max_steps),
    ):
        if found > most:
            raise HushError(f"task: {what} {found} exceeds this client's limits; accepted: at most {most}")


def check_model(policy: MemberPolicy, parameters: int) -> None:
    """Raise a `HushError` if a model has more parameters than the limits allow."""
    if parameters > policy.limits.max_parameters:
        raise HushError(f"a model of {parameters} parameters; accepted: at most {policy.limits.max_parameters}")


def check_steps(policy: MemberPolicy, config: Config, recipe: Recipe, samples: Sequence[int]) -> None:
    """Raise a `HushError` if members with these row counts would take more steps per round than the limits allow.

    Runs before any planning. A member's schedule may depend on those of the others, so it has to plan theirs as well.
    """
    most = policy.limits.max_steps
    batches = budgets.batch_sizes(config.local.batch_size, len(samples), config.seed)
    fixed = recipe.protect.round_steps or config.local.steps
    for rows, batch in zip(samples, batches, strict=True):
        if type(rows) is not int or not 0 < rows < 1 << 53:
            raise HushError(f"roster: {rows!r:.40} rows for a member; accepted: a positive integer")
        steps = fixed or config.local.epochs * -(-rows // batch)
        if steps > most:
            raise HushError(f"task: steps per round {steps} exceeds this client's limits; accepted: at most {most}")


def check_code(policy: MemberPolicy, theirs: Version) -> None:
    """Raise a `HushError` unless the policy accepts the code of both sides."""
    accept, own = policy.accept, code_hash()
    for what, found in (("this member's code", own), ("the coordinator's code", theirs.code)):
        if ANY not in accept.code and found not in accept.code:
            raise HushError(f"{what} has hash {found[:16]}; accepted: {', '.join(h[:16] for h in accept.code)}")


def check_protocol(theirs: Version) -> None:
    """Raise a `HushError` unless the coordinator's version and this member's can take part in one run."""
    if not is_compatible(own(), theirs):
        raise HushError(
            f"the coordinator has {theirs.words}, this member {own().words}; accepted: the same protocol version on "
            "both sides (docs/operations.md)"
        )


def check_offer(policy: MemberPolicy, config: Config, name: str, recipe: Recipe) -> None:
    """Raise a `HushError` unless the policy accepts this config."""
    accept = policy.accept
    if ANY not in accept.recipes and name not in accept.recipes:
        raise HushError(f"recipe {name}: not accepted by this member; accepted: {', '.join(accept.recipes)}")
    if config.secure_aggregation:
        secure_sums.check_recipe(recipe)
    elif policy.secure_aggregation.required:
        raise HushError(
            "the run lets the coordinator see each member's updates, and this member accepts secure aggregation alone "
            "(secure_aggregation.required)"
        )
    if config.privacy.noise == "seeded" and not accept.seeded:
        raise HushError("seeded noise provides no privacy: not accepted by this member (accept.seeded)")
    if config.evaluation.share > 0 and policy.data.held_out == 0:
        raise HushError("the run evaluates models on held-out rows, and this member holds out none (data.held_out)")
    if config.evaluation.share > 0 and policy.budget.unit == "person":
        raise HushError("the run counts held-out rows one by one, and this member's unit of privacy is a person")
    if config.privacy.relation != policy.budget.relation:
        raise HushError(
            f"relation {config.privacy.relation}: not accepted by this member; accepted: {policy.budget.relation}"
        )
    if unit_of(config) != policy.budget.unit:
        raise HushError(
            f"privacy.unit {unit_of(config)}: not accepted by this member; accepted: {policy.budget.unit} (budget.unit)"
        )
    declared = {"number of training samples", "privacy budget", "privacy plan", "impact factor"}
    declared |= {"true cluster"} if policy.enrol.group is not None else set()
    gaps = [release.what for release in recipe.releases() if not release.covered and release.what not in declared]
    if gaps and not accept.uncovered:
        raise HushError(
            f"recipe {name} makes releases that the guarantee does not cover ({'; '.join(gaps)}): not accepted by "
            "this member"
        )


def check_plans(policy: MemberPolicy, schedule: Any) -> None:
    """Raise a `HushError` if any stage of the member's schedule exceeds its limits."""
    for stage in schedule.stages:
        if stage.rounds and stage.spec.train:
            limits.check(stage.plan, policy.bounds)
