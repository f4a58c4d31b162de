"""The target of an audit: one client's training as the run would do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from hush.auditing.trade_off import Planned
from hush.config import Config
from hush.engines.setup import Federation
from hush.models import Model
from hush.privacy.accounting import api
from hush.privacy.persons import Persons
from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import ENROLMENT, Stage
from hush.privacy.side_release import ReleaseShape
from hush.recipes import Recipe
from hush.types import HushError, unknown


@dataclass(frozen=True, kw_only=True)
class Target:
    """One client's training, as the run would do it.

    Attributes:
        client: The client number.
        model: The model that it trains.
        x: Its training rows, behind the model's fixed features.
        y: Their labels.
        plan: The plan of most of its rounds.
        lr: The learning rate.
        delta: The delta of its policy.
        claimed: The epsilon of the client's whole schedule, by the accountant.
        secure: Whether noise comes from the operating system.
        physical_batch: As in the run.
        starts: The models that the server sends, in turn.
        recipe: The recipe, which determines the side releases.
        config: The config of the run.
        shape: What the widths of side releases depend on.
        rounds: What each of its training rounds asks for, in the order of the recipe's stages.
        enrolment: What enrolment asks for, if anything.
        not_covered: What it releases that no epsilon covers: there is no claim to refute.
        persons: Whose its rows are, where the unit of privacy is a person: a canary is then all rows of a person.
        trained: Called with the number of training runs that were done, as they are.
    """

    client: int
    model: Model
    x: Tensor
    y: Tensor
    plan: PrivacyPlan
    lr: float
    delta: float
    claimed: float
    secure: bool
    physical_batch: int | None
    starts: Tensor
    recipe: Recipe
    config: Config
    shape: ReleaseShape
    rounds: tuple[Stage, ...]
    enrolment: Stage | None
    not_covered: tuple[str, ...]
    persons: Persons | None = None
    trained: Callable[[int], None] = lambda runs: None

    def rows_before(self, last: int) -> int:
        """The number of its rows without those of the last persons, or without the last rows."""
        persons = self.persons
        return self.plan.samples - last if persons is None else persons.only(self.plan.samples - last).rows

    def repeated(self, canaries: Tensor) -> Tensor:
        """Canaries in place of the last rows; in place of the last persons, each as often as that person has rows."""
        return canaries if self.persons is None else canaries.repeat_interleave(self.persons.sizes[-len(canaries) :], 0)

    @cached_property
    def planned(self) -> Planned:
        """What it is planned to release, at enrolment and in all rounds."""
        stages = (*(() if self.enrolment is None else (self.enrolment,)), *self.rounds)
        return Planned(
            costs=tuple(cost for stage in stages for cost in stage.round_costs),
            delta=self.delta,
            relation=self.plan.relation,
            accountant=self.plan.accountant,
        )

    @property
    def unit(self) -> str:
        """What is protected: a row, a person, or a client."""
        if self.plan.whole_update:
            return "client"
        return "row" if self.persons is None else "person"

    @property
    def idle(self) -> bool:
        """Whether no round trains, so that there are no updates to attack."""
        return all(stage.spec.idle for stage in self.rounds)

    @property
    def steps(self) -> int:
        """Noisy steps of training in all rounds."""
        return sum(stage.plan.steps for stage in self.rounds)


def target(federation: Federation, client: int | str | None = None) -> Target:
    """Return the audit target of one client; default: the client with the largest budget."""
    # With noisy counts, training is planned from the disclosed number; the audit uses the true one.
    federation = federation.counted([member.samples for member in federation.members])
    policies = federation.policies
    if client is None:
        client = max(range(len(policies)), key=lambda c: policies[c].epsilon)
    if isinstance(client, str):
        client = _number_of(client, federation)
    if not 0 <= client < len(policies):
        raise HushError(f"client: found {client}; accepted: 0 to {len(policies) - 1}")
    schedule, policy, model = federation.schedules[client], policies[client], federation.model
    plan = schedule.plan
    if not plan.private or plan.rounds == 0:
        raise HushError(f"audit: client {client} has no guarantee to audit: it adds no noise or takes part in no round")
    model.to(federation.device)
    x, y = federation.arrays(1)
    first = federation.data.bounds()[client][0]
    persons = federation.persons(client)
    rows = slice(first, first + (plan.samples if persons is None else persons.rows))
    asked = federation.config.engine.physical_batch
    enrolled = federation.terms.stage_table.of[ENROLMENT] >= 0
    costs = federation.costs(client)
    return Target(
        client=client,
        model=model,
        x=x[rows],
        y=y[rows],
        plan=plan,
        lr=federation.config.local.lr,
        delta=policy.delta,
        claimed=api.epsilon_of(costs, policy.delta, policy.relation, plan.accountant),
        secure=federation.config.privacy.noise != "seeded",
        physical_batch=None if asked == "auto" else asked,
        starts=model.start.to(federation.device)[None],
        recipe=federation.recipe,
        config=federation.config,
        shape=federation.terms.shape,
        rounds=tuple(stage for stage in schedule.stages if stage.spec.train for _ in range(stage.rounds)),
        enrolment=federation.stage(client, ENROLMENT) if enrolled else None,
        not_covered=tuple(release.what for release in federation.recipe.releases() if not release.covered),
        persons=persons,
    )


def _number_of(name: str, federation: Federation) -> int:
    names = [member.name or str(member.client) for member in federation.members]
    if name not in names:
        raise unknown("client", "client", name, names)
    return names.index(name)
