"""Setup: from a config to a federation that is ready to run, with data, model, members, plans, schedule and ledgers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from hush import models, recipes
from hush.config import Config, silent_settings, unit_of, with_noise, with_unit
from hush.data import ClientData, budgets, client_data, client_rows, datasets, transforms
from hush.engines import auto_lr, noisy_counts, run_ledgers
from hush.engines.client_config import member_names, with_clients
from hush.engines.client_unit import check_client_unit, uncovered_clients
from hush.engines.feature_cache import features_of
from hush.engines.objective import least_outputs, outputs_of, targets_of, task_of, with_objective
from hush.engines.persons import uncovered_persons
from hush.engines.row_budgets import check_row_budgets, row_groups, uncovered_budgets
from hush.engines.schedules import privacy_schedules, timetable, training
from hush.engines.server_rng import server_rng
from hush.engines.side_releases import release_shape
from hush.engines.third_party import third_party_view
from hush.models import Model
from hush.objective import Objective
from hush.privacy import noise
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import Ledger, MemoryLedger, Spending
from hush.privacy.ledger.fingerprints import Rows
from hush.privacy.persons import Persons
from hush.privacy.plan import UPDATE, PrivacyPlan
from hush.privacy.schedule import ENROLMENT, Output, PrivacySchedule, Stage, StageTable
from hush.privacy.side_release import ReleaseShape
from hush.privacy.unit import protects
from hush.privacy.update_bounds import largest_entry
from hush.privacy.weak_guarantees import gathered, warnings_of
from hush.recipes import Recipe, secure_sums
from hush.recipes.check import check
from hush.recipes.evaluation import EVALUATION
from hush.recipes.interfaces import ModelFacts
from hush.recipes.limits import fixed
from hush.recipes.secure_sums import SumTerms, majority, sum_groups
from hush.server.loop import RunTerms, enrolled, plans_of_sums
from hush.server.participation import Participants
from hush.training import augmentation, input_mean
from hush.types import Guarantee, HushError, Member, Policy, Unit

_log = logging.getLogger("hush")
Schedules = Sequence[tuple[Cost, ...]]
# What a client's plan and its ledger in memory take, measured; and a row of made data, while it is made.
_LEDGER_BYTES, _SETUP, _ROW_BYTES = 1 << 14, 3e-4, 640
_MANY = 10_000
_NOISED_BUDGET = (
    "its budget was declared with noise, so that no epsilon of it is known here; its own ledger has what it spent"
)
_AUTO_RATE = (
    "privacy plan: budget, batch size and sample count are treated as public at enrolment and determine the "
    "learning rate"
)


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Everything a run needs.

    Attributes:
        config: With a number for every setting that the file left open.
        recipe_name: As results show it.
        recipe: The algorithm.
        data: The clients' rows; in a deployment the public test set, and no client's rows.
        model: The model before the first round.
        members: The clients, with their true numbers of rows in a simulation.
        policies: What each client's ledger keeps.
        schedules: What each client releases, stage by stage.
        outputs: How each client noises its trained model, where the recipe has it do so.
        terms: What the server knows.
        device: Where a simulation trains.
        auto_rate: Whether the learning rate was left open, and was chosen from the public plans.
        offers: Where numbers of rows are noised, the schedules from which enrolment is charged.
        own_module: Whether the model is a module of the user's own.
        uncovered: What no accountant covers because of where the clients run.
        left_out: What of the recipe does not apply to the model.
        noised_budgets: Members that declared their budgets with noise, so that what they spend is not known here.
    """

    config: Config
    recipe_name: str
    recipe: Recipe
    data: client_rows.Clients
    model: Model
    members: tuple[Member, ...]
    policies: tuple[Policy, ...]
    schedules: tuple[PrivacySchedule, ...]
    outputs: tuple[Output | None, ...]
    terms: RunTerms
    device: torch.device
    auto_rate: bool = False
    offers: tuple[PrivacySchedule, ...] = ()
    own_module: bool = False
    uncovered: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    noised_budgets: frozenset[int] = frozenset()

    def stage(self, client: int, number: int) -> Stage:
        """What a client does in a round. Where its number of rows is noised, enrolment is planned without it."""
        schedules = self.offers if number == ENROLMENT and self.offers else self.schedules
        return schedules[client].stages[self.terms.stage_table.of[number]]

    def costs(self, client: int) -> tuple[Cost, ...]:
        """What a client releases in all of the run."""
        schedule = self.schedules[client]
        if not self.offers:
            return schedule.costs()
        return (*self.stage(client, ENROLMENT).round_costs, *training(schedule))

    def counted(self, counts: Sequence[int]) -> Federation:
        """The federation after enrolment: all training is planned from the numbers of rows that were disclosed."""
        disclosed = noisy_counts.with_disclosed_counts(self.terms.members, counts)
        if not self.offers:
            return replace(self, terms=replace(self.terms, members=disclosed))
        rounds = timetable(self.config, self.recipe, len(disclosed))
        schedules = noisy_counts.schedules_after_disclosure(
            self.config, self.recipe, self.members, disclosed, self.offers, rounds
        )
        terms = terms_of(
            self.config,
            self.recipe,
            disclosed,
            rounds.stage_table,
            schedules,
            self.model,
            rounds.participants,
            self.terms.shape,
        )
        return replace(self, schedules=schedules, terms=terms)

    def arrays(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs (behind the model's fixed features) and targets of all clients in a round, on the device."""
        model, data, places = self.model, self.data.dataset, self.data.places
        if model.features is None or places is None:
            x, y = self.data.arrays(number)
        else:
            # In the order of the dataset, and of all of it unless little is used, so that runs with other seeds find
            # what was computed before.
            rows, order = np.unique(places, return_inverse=True)
            whole = 2 * len(rows) >= len(data.x)
            x, y, order = (data.x if whole else data.x[rows]), data.y[places], (places if whole else order)
        targets = model.objective.scaled(torch.from_numpy(y)).to(self.device)
        if model.features is None:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.device), targets
        wanted = None if places is None else torch.from_numpy(order)
        return features_of(model.features, model.features_key, x, self.device, wanted).to(self.device), targets

    def persons(self, client: int) -> Persons | None:
        """Whose a client's training rows are, where the unit of privacy is a person."""
        if self.config.privacy.unit != "person" or not self.data.persons:
            return None
        return Persons(torch.from_numpy(self.data.persons[client]), self.config.privacy.rows_per_person)

    def data_key(self) -> object:
        """What the arrays of a run depend on: runs with equal keys can share them."""
        config = self.config
        return (
            config.data.model_dump_json(),
            config.seed,
            config.model.model_dump_json(),
            str(self.device),
            id(self.data.dataset),
            self.model.objective.bounds,
        )

    @cached_property
    def shared_draws(self) -> bool:
        """Whether all clients of a round draw the same batches and noise."""
        return self.recipe.protect.shared_draws

    @cached_property
    def pull(self) -> float:
        """How strongly local steps are drawn back to the model that was sent."""
        return self.recipe.local.pull()

    def starts(self) -> Tensor:
        """The models before the first round: alike, or each drawn anew where the recipe tells them apart by that."""
        number, config = self.recipe.assign.models, self.config
        if self.recipe.assign.alike:
            return self.model.start.repeat(number, 1)
        data = self.data.dataset
        shape, outputs = tuple(data.x.shape[1:]), self.model.objective.outputs or data.classes
        return torch.stack(
            [
                models.build_model(config.model, shape, outputs, config.seed + m, data.inputs).start
                for m in range(number)
            ]
        )

    @overload
    def ledgers(
        self, directory: None = None, warn: run_ledgers.Warn = ..., run: str = ..., whole: Schedules | None = ...
    ) -> list[MemoryLedger]: ...
    @overload
    def ledgers(
        self, directory: Path, warn: run_ledgers.Warn = ..., run: str = ..., whole: Schedules | None = ...
    ) -> list[Ledger]: ...
    def ledgers(
        self,
        directory: Path | None = None,
        warn: run_ledgers.Warn = run_ledgers.ignore,
        run: str = "",
        whole: Schedules | None = None,
    ) -> list[MemoryLedger] | list[Ledger]:
        """A ledger for each client, its schedule approved: fresh ones in memory, or the files of a directory.

        `warn` is called if a file is stricter or less strict than the config. `run` is its name. `whole` is
        what each client releases in all of it, where that is more than this training.
        """
        accountant = self.schedules[0].plan.accountant
        made: list[MemoryLedger] | list[Ledger]
        if directory is not None:
            names, data = [member.name for member in self.members], self.data.dataset
            lifetimes = _lifetimes(self.config, names)
            x = data.x if data.given is None else data.given
            keys = data.person if self.config.privacy.unit == "person" else None
            # What is released of held-out rows is charged to the same ledger, which therefore covers them as well.
            evaluated = self.recipe.evaluation is not None or whole is not None
            pairs = zip(self.data.train, self.data.test, strict=True)
            covered = [np.concatenate([train, test]) if evaluated else train for train, test in pairs]
            rows = [Rows(x[own], data.y[own], None if keys is None else keys[own]) for own in covered]
            try:
                made = run_ledgers.opened(directory, self.policies, lifetimes, accountant, rows, warn, names)
            except OSError as error:
                raise HushError(f"{directory}: cannot hold ledgers: {error.strerror or error}") from None
        else:
            made = [MemoryLedger(c, policy, accountant) for c, policy in enumerate(self.policies)]
        fixed = [self._fixed(member.client) if whole is None else (whole[member.client],) for member in self.members]
        run_ledgers.approve(made, fixed, run)
        return made

    def _fixed(self, client: int) -> tuple[tuple[Cost, ...], ...]:
        """What is fixed of a client's costs before its first release: with and without repeated rounds."""
        if self.offers:
            # Training is planned from the count that enrolment releases, and approved after it.
            return (self.stage(client, ENROLMENT).round_costs,)
        schedule = self.schedules[client]
        return (schedule.reserved(), schedule.costs())

    def not_covered(self) -> tuple[str, ...]:
        """What no accountant covers, in words."""
        named = [f"{r.what}: {r.why}" for r in self.recipe.releases() if not r.covered]
        if self.auto_rate:
            named.append(_AUTO_RATE)
        if self.config.privacy.noise == "seeded":
            named.append("the noise itself: reproducible from the seed, for experiments only, so nothing is private")
        return (
            *named,
            *uncovered_persons(self),
            *uncovered_clients(self.config),
            *uncovered_budgets(self.members),
            *self.data.dataset.not_covered,
            *self.uncovered,
        )

    def warned(self, client: int, own: Policy | None = None) -> tuple[str, ...]:
        """What to warn a client of: guarantees that are kept and mean little; `own` is the policy of its ledger."""
        if client in self.noised_budgets:
            return (_NOISED_BUDGET,)
        policy, plan = own or self.policies[client], self.schedules[client].plan
        number = len(self.members) if policy.unit == "client" else plan.counted
        return warnings_of(policy.epsilon, policy.delta, number, policy.unit) if plan.private else ()

    def warnings(self) -> tuple[str, ...]:
        """What of the recipe does not apply, and what to warn clients of, each text once."""
        named = gathered((member.name or member.client, self.warned(member.client)) for member in self.members)
        return (*self.left_out, *named, *self.silent_settings())

    def silent_settings(self) -> tuple[str, ...]:
        """Settings of the config that have no effect beside others, in words."""
        steps, local = self.recipe.protect.round_steps, self.config.local
        if steps is None:
            return silent_settings(self.config)
        given = [("epochs", local.epochs)] if local.epochs != 1 else []
        given += [("steps", local.steps)] if local.steps is not None else []
        return tuple(
            f"local.{name} = {value} has no effect, because the recipe takes {steps} steps a round"
            for name, value in given
        )

    def third_party(self, *, complete: bool = True) -> str:
        """What can be said toward someone who sees only the models; `complete`: all clients answer in every round."""
        config = self.config
        free = complete and self.terms.bounds is None and self.terms.ceiling(len(self.members)) >= 1
        return third_party_view(
            self.recipe, self.schedules, self.policies, enrolled(self.terms) if free else None, config.participation,
            config.rounds,
        )  # fmt: skip

    def server_view(self) -> str:
        """What the server sees with secure aggregation, and what that changes; an empty text without it."""
        sums = plans_of_sums(self.terms, 1)
        if not sums:
            return ""
        least, most = min(plan.threshold for plan in sums), min(len(plan.clients) for plan in sums)
        return (
            f"secure aggregation: between machines the server sees sums over at least {least} of {most} clients in "
            "place of their updates, as long as the clients' keys are their own and fewer than "
            f"{2 * least - most} of them help it; this lowers no epsilon, and hides neither what is released at "
            "enrolment nor noised counts; the server can then check the lengths of sums alone"
        )

    def guarantees(self, ledgers: Sequence[Spending], *, complete: bool = True) -> tuple[Guarantee, ...]:
        """The guarantee card of each client; `complete` as for `third_party`."""
        label = noise.SEEDED if self.config.privacy.noise == "seeded" else noise.SECURE
        view, named = self.third_party(complete=complete), self.not_covered()
        return tuple(
            self._card(member.client, ledger, label, view, named)
            for member, ledger in zip(self.members, ledgers, strict=True)
        )

    def budget(self, client: int, ledger: Spending) -> float:
        """What a client's spending is held against: its budget, or that of its ledger file for all runs."""
        policy = ledger.terms.policy
        return self.members[client].policy.epsilon if policy == self.policies[client] else policy.epsilon

    def _card(self, client: int, ledger: Spending, label: str, view: str, named: tuple[str, ...]) -> Guarantee:
        member, policy, schedule = self.members[client], self.policies[client], self.schedules[client]
        plan, spent, filtered = schedule.plan, ledger.spent(), ledger.filtered()
        terms, budget = ledger.terms, self.budget(client, ledger)
        if client in self.noised_budgets:
            budget = spent = filtered = math.inf
        return Guarantee(
            client=client,
            epsilon_budget=budget,
            epsilon_spent=spent,
            delta=terms.policy.delta,
            relation=terms.policy.relation,
            accountant=terms.accountant,
            sampler=plan.sampler,
            noise=label if plan.private else "none",
            not_covered=named,
            samples=plan.counted,
            batch_size=plan.batch,
            rounds=ledger.rounds,
            steps=sum(steps for (what, _), steps in ledger.released().items() if what == UPDATE),
            sample_rate=plan.rate,
            clip=plan.clip,
            noise_multiplier=plan.noise_multiplier,
            epsilon_left=None if client in self.noised_budgets else max(0.0, budget - filtered),
            epsilon_filter=filtered,
            epsilon_third_party=filtered,
            third_party=view,
            stages=tuple(tuple(asdict(cost) for cost in stage.round_costs) for stage in schedule.stages),
            warnings=self.warned(client, terms.policy),
            name=member.name,
            unit=policy.unit,
            protects=protects(policy.unit),
            server_view=self.server_view(),
            row_groups=row_groups(schedule, policy),
        )


def prepare(
    config: Config,
    *,
    root: str | None = None,
    dataset: ClientData | datasets.Dataset | None = None,
    module: nn.Module | Model | None = None,
    lasting: bool = False,
) -> Federation:
    """Build the federation that a config describes, or say what is wrong with it.

    `dataset` is the data in place of what the config names. Where clients have rows of their own, the config follows.
    `module` is the user's own, or the model that an earlier federation made of it, which saves isolating it again.
    `lasting` says that ledger files record what is spent: noise that the config leaves open is secure then.
    """
    config = with_noise(config, lasting=lasting)
    name, recipe = recipes.configured(config)
    # On Ray the workers train; this side only evaluates.
    device = torch.device("cpu") if config.engine.name == "ray" else device_named(config.engine.device)
    data = load(config, root) if dataset is None else dataset
    data = ClientData(data) if isinstance(data, datasets.Dataset) else data
    config = with_unit(with_clients(config, data), data.dataset.person is not None)
    _check_room(config)
    number, seed = config.data.clients, config.seed
    names = member_names(data, number)
    epsilons = budgets.budgets(config.privacy.budgets, number, seed, names)
    _lifetimes(config, names)
    batches = budgets.batch_sizes(config.local.batch_size, number, seed, names)
    deltas = budgets.deltas(config.privacy.delta, number, names)
    clients, unit = client_rows.divide(data.dataset, config.data, seed), unit_of(config)
    members = tuple(
        Member(
            client=c,
            policy=Policy(epsilons[c], deltas[c], config.privacy.relation, unit),
            samples=samples,
            batch=batches[c],
            group=share.group,
            name=names[c],
            row_groups=clients.groups[c] if clients.groups else (),
        )
        for c, (samples, share) in enumerate(zip(_units(clients, unit), clients.shares, strict=True))
    )
    _check_batches(members)
    if config.quorum > number:
        raise HushError(f"quorum: {config.quorum} is more than the {number} clients; accepted: 1 to {number}", "quorum")
    model = _model(config, module, clients.dataset)
    models.check_memory(model.layout.size, len(members) if recipe.local.remembers else 0)
    if module is not None and not recipe.assign.alike:
        raise HushError(
            "recipe.assign: requires models with different initial weights, which a custom module does not provide"
        )
    recipe, left_out = fitted(recipe, model, tuple(clients.dataset.x.shape[1:]))
    federation = build(
        config,
        name,
        recipe,
        members,
        model,
        clients,
        device=device,
        own_module=module is not None,
        uncovered=(_simulated(model.objective),),
        left_out=left_out,
        declared=_declared(config, recipe, members),
    )
    _check_grids([schedule.plan for schedule in federation.schedules], model.layout.size)
    return federation


def build(
    config: Config,
    name: str,
    recipe: Recipe,
    members: tuple[Member, ...],
    model: Model,
    data: client_rows.Clients,
    *,
    device: torch.device,
    disclosed: Sequence[Sequence[Cost]] | None = None,
    auto_rate: bool = False,
    own_module: bool = False,
    uncovered: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
    declared: tuple[Member, ...] | None = None,
) -> Federation:
    """Plan a run from public facts: who takes part when, each client's privacy schedule, and the server's terms.

    `declared` are the members as they declare themselves to the server, where that differs from what they do.
    `disclosed` is what each member was charged at enrolment; None while enrolment is still to come, as in a simulation.
    A learning rate that the config leaves open is chosen here. Raises a `HushError` where the recipe does not fit the
    members, or a policy cannot be kept.
    """
    check(recipe, declared or members, config.rounds)
    if config.secure_aggregation:
        _check_sums(recipe, members, config)
    _check_evaluation(recipe, config, model.objective)
    rounds = timetable(config, recipe, len(members))
    table, participants = rounds.stage_table, rounds.participants
    _check_choice(table, model.objective)
    if any(spec.copies > 1 for spec in table.specs):
        _check_copies(config, model.behind(tuple(data.dataset.x.shape[1:])))
    if unit_of(config) == "client":
        check_client_unit(recipe, table)
    if any(member.row_groups for member in members):
        check_row_budgets(config, recipe, table)
    shape = release_shape(config, model, tuple(data.dataset.x.shape[1:]), data.dataset.classes)
    offers: tuple[PrivacySchedule, ...] = ()
    if disclosed is None and noisy_counts.needs_noisy_counts(table):
        # Until the counts are disclosed, training is planned as if the true ones would be.
        offers = noisy_counts.schedules_before_disclosure(config, recipe, members, rounds)
        schedules = noisy_counts.schedules_after_disclosure(config, recipe, members, members, offers, rounds)
    else:
        charged = [()] * len(members) if disclosed is None else disclosed
        schedules = privacy_schedules(config, recipe, members, table, rounds.orders, charged)
    # What the server knows of each client, and the noise that it expects from it.
    public, expected = members, tuple(schedules)
    if declared is not None:
        nothing = [()] * len(members)
        public, expected = declared, privacy_schedules(config, recipe, declared, table, rounds.orders, nothing)
    if config.local.lr == "auto":
        auto_rate, config = recipe.protect.private, with_rate(config, 1.0)
        known = (noisy_counts.with_supposed_counts(members), offers) if offers else (public, expected)
        drawn = terms_of(config, recipe, known[0], table, known[1], model, participants, shape)
        inputs = math.prod(model.behind(tuple(data.dataset.x.shape[1:])))
        features = model.features is not None
        chosen = auto_lr.rate(drawn, config.participation, model.objective, inputs, features=features)
        if recipe.protect.private and unit_of(config) == "client":
            chosen = auto_lr.whole_update_rate(config.privacy.clip, [schedule.plan.steps for schedule in schedules])
        config = with_rate(config, chosen)
    return Federation(
        config=config,
        recipe_name=name,
        recipe=recipe,
        data=data,
        model=model,
        members=members,
        policies=tuple(recipe.protect.policies(members)),
        schedules=schedules,
        outputs=tuple(recipe.protect.output(members, config.rounds)),
        terms=terms_of(config, recipe, public, table, expected, model, participants, shape),
        device=device,
        auto_rate=auto_rate,
        offers=offers,
        own_module=own_module,
        uncovered=uncovered,
        left_out=left_out,
    )


def fitted(recipe: Recipe, model: Model, inputs: tuple[int, ...]) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe as it is used with a model of inputs of this shape, and what of it does not apply, in words."""
    first, objective = input_mean.applies(model, model.behind(inputs)), model.objective
    alone = first and sorted(map(len, model.layout.shapes)) == [1, 2]
    classifies = objective.task in ("binary", "multiclass") and objective.outputs == objective.classes
    facts = ModelFacts(name=model.name, linear_first=first, linear_classifier=alone and classifies)
    return recipe.fitted(facts), recipe.left_out(facts)


def with_rate(config: Config, lr: float) -> Config:
    """The config with this learning rate."""
    return config.model_copy(update={"local": config.local.model_copy(update={"lr": lr})})


def terms_of(
    config: Config, recipe: Recipe, members: tuple[Member, ...], stage_table: StageTable,
    schedules: Sequence[PrivacySchedule],
    model: Model, rounds: Participants, shape: ReleaseShape,
) -> RunTerms:  # fmt: skip
    """What the server knows, all of it public."""
    by_stage = [[schedule.stages[number].plan for schedule in schedules] for number in range(len(stage_table.specs))]
    idle = [spec.idle for spec in stage_table.specs]
    lr, size = config.local.lr, model.layout.size
    noised = recipe.protect.output(members, config.rounds)
    outputs = [0.0 if output is None else output.deviation**2 for output in noised]
    return RunTerms(
        recipe=recipe,
        members=members,
        stage_table=stage_table,
        planned_noise=_by_stage_and_client(
            [
                [_released_noise(schedule.stages[number], shape) for schedule in schedules]
                if idle[number]
                else [plan.update_noise(lr, size) + size * added for plan, added in zip(plans, outputs, strict=True)]
                for number, plans in enumerate(by_stage)
            ]
        ),
        reach=_by_stage_and_client(
            [[1.0 if idle[at] else plan.reach(lr) for plan in plans] for at, plans in enumerate(by_stage)]
        ),
        batch=_by_stage_and_client([[plan.batch for plan in plans] for plans in by_stage]),
        shape=shape,
        layout=model.layout,
        participants=rounds,
        evaluation_noise=_evaluation_noise(recipe, schedules, shape),
        rng=server_rng(config.seed, config.privacy.noise != "seeded"),
        quorum=max(config.quorum, _majority(config, recipe, rounds)),
        clip=config.privacy.clip,
        ceiling=fixed(config.max_weight),
        halves=config.engine.transport == "float16",
        sums=_sum_terms(config, recipe, members, by_stage, stage_table, size),
    )


def _released_noise(stage: Stage, shape: ReleaseShape) -> float:
    """The expected squared norm of the noise in the means over training rows of what a stage without training
    releases.
    """
    sent = [release for release in stage.spec.sent if not release.held_out]
    deviations = [release.bound(shape) * stage.noise_of(release.what) for release in sent]
    widths = [release.width(shape) for release in sent]
    return sum(w * s**2 for w, s in zip(widths, deviations, strict=True)) / stage.plan.counted**2


def _majority(config: Config, recipe: Recipe, rounds: Participants) -> int:
    """The fewest clients with which a sum of all can be formed; 0 without one."""
    summed = config.secure_aggregation and recipe.weight.public
    return majority(len(rounds[0])) if summed else 0


def _sum_terms(
    config: Config, recipe: Recipe, members: tuple[Member, ...], by_stage: Sequence[Sequence[PrivacyPlan]],
    stage_table: StageTable, size: int,
) -> SumTerms | None:  # fmt: skip
    """What secure sums depend on, if the config asks for them."""
    if not config.secure_aggregation:
        return None
    lr = config.local.lr
    ranges = [
        [largest_entry(plan, lr, size) if spec.train else 0.0 for plan in plans]
        for spec, plans in zip(stage_table.specs, by_stage, strict=True)
    ]
    return SumTerms(ranges=_by_stage_and_client(ranges), groups=sum_groups(recipe, members), quorum=config.quorum)


def _evaluation_noise(recipe: Recipe, schedules: Sequence[PrivacySchedule], shape: ReleaseShape) -> Tensor | None:
    """The standard deviation of the noise in each entry of the clients' evaluations."""
    if recipe.evaluation is None:
        return None
    bound = recipe.evaluation.release.bound(shape)
    stages = [[stage for stage in each.stages if EVALUATION in (r.what for r in stage.spec.sent)] for each in schedules]
    return torch.tensor([bound * each[0].noise_of(EVALUATION) for each in stages], dtype=torch.float64)


def _by_stage_and_client(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _declared(config: Config, recipe: Recipe, members: tuple[Member, ...]) -> tuple[Member, ...] | None:
    """Return the members with the budgets that they declare; None where they declare their own.

    A table may name some clients only: the others declare what they keep.
    """
    wanted = config.privacy.declared
    if wanted is None:
        return None
    if not recipe.protect.own_budgets:
        text = "under this recipe all clients train at a budget that follows from what they declare"
        raise HushError(f'privacy.declared: {text}; accepted: recipe.protect.budget = "own"', "privacy.declared")
    if noisy_counts.needs_noisy_counts(recipe.stage_table(config.rounds)):
        text = 'cannot be combined with noisy counts; accepted: recipe.weight.counts = "public"'
        raise HushError(f"privacy.declared: {text}", "privacy.declared")
    names = [member.name for member in members]
    if isinstance(wanted, Mapping):
        own = {member.name or str(member.client): member.policy.epsilon for member in members}
        wanted = {**own, **{str(name): epsilon for name, epsilon in wanted.items()}}
    epsilons = budgets.budgets(wanted, len(members), config.seed, names, "privacy.declared")
    return tuple(
        replace(member, policy=replace(member.policy, epsilon=epsilon))
        for member, epsilon in zip(members, epsilons, strict=True)
    )


def _lifetimes(config: Config, names: Sequence[str]) -> tuple[float, ...] | None:
    """The budgets for the life of the data that the config gives, for ledger files that outlive the run."""
    wanted = config.privacy.lifetime
    return None if wanted is None else budgets.budgets(wanted, len(names), config.seed, names, budgets.LIFETIME_KEY)


def load(config: Config, root: str | None = None) -> ClientData:
    """The data that a config names."""
    _check_room(config)
    data = config.data
    if data.files is not None:
        if data.name != "digits":
            raise HushError(f"data.files: given beside data.name = {data.name!r}; accepted: one of them", "data.files")
        found = own_data(data.files, config)
        # The config says where these rows are, so that a run can be repeated from it.
        title = data.files if isinstance(data.files, str) else f"{len(data.files)} files"
        return replace(found, dataset=replace(found.dataset, name=title, own=False))
    if ":" in data.name and data.part != "test":
        found = own_data(datasets.from_function(data.name), config)
        return replace(found, dataset=replace(found.dataset, name=data.name, own=False))
    for key in ("label", "client", "person", "schema"):
        if getattr(data, "table_schema" if key == "schema" else key) is not None:
            raise HushError(f"data.{key}: given for the dataset {data.name}; accepted: with data.files", f"data.{key}")
    options: dict[str, Any] = {}
    if data.name in datasets.SYNTHETIC:
        options = {"alpha": data.alpha, "beta": data.beta, "samples": data.samples}
    named = datasets.load(data.name, root=root, part=data.part, seed=config.seed, clients=data.clients, **options)
    return ClientData(shaped(named, config))


def own_data(given: object, config: Config) -> ClientData:
    """Data that the user gave (`hush.data.clients`) in place of what the config names, as the config wants its rows."""
    if isinstance(given, datasets.Dataset):
        return ClientData(shaped(datasets.as_own(given), config))
    data = config.data
    found = client_data.clients(
        given,
        label=data.label,
        client=data.client,
        person=data.person,
        row_budgets=config.privacy.row_budgets,
        schema=data.table_schema,
        targets=targets_of(config),
    )
    return replace(found, dataset=shaped(found.dataset, config))


def shaped(dataset: datasets.Dataset, config: Config) -> datasets.Dataset:
    """Rows as a config wants them: each by itself, so it costs nothing."""
    return transforms.unit_rows(dataset) if config.data.rows == "unit-norm" and dataset.inputs is None else dataset


def _model(config: Config, module: nn.Module | Model | None, dataset: datasets.Dataset) -> Model:
    shape, spec, task = tuple(dataset.x.shape[1:]), dataset.inputs, task_of(config, dataset)
    if isinstance(module, Model):
        model = module
    elif module is not None:
        if config.model.encoder is not None:
            text = "given beside a module of your own; accepted: model.name = logreg or mlp behind it"
            raise HushError(f"model.encoder: {text}", "model.encoder")
        least, adapters = least_outputs(task, dataset), models.adapters_of(config.model, config.seed)
        own = models.given_weights(module, config.model)
        model = models.from_user(own, shape, least, own_name(module), spec, key=None, adapters=adapters)
    else:
        outputs, least = outputs_of(task, dataset), least_outputs(task, dataset)
        model = models.build_model(config.model, shape, outputs, config.seed, spec, least=least)
    return with_objective(config, model, dataset, task)


def own_name(module: nn.Module) -> str:
    """What a module of the user's own is called in results."""
    return f"custom module ({getattr(type(module), '__name__', type(module))})"


def _simulated(objective: Objective) -> str:
    return f"test {objective.primary.label} per client: computed on held-out rows without noise, in simulations only"


def _check_choice(table: StageTable, objective: Objective) -> None:
    """Refuse the choice of a model by losses, cut to [0, privacy.loss_clip], that may be negative."""
    if any(spec.choose for spec in table.specs) and not objective.loss.non_negative:
        raise HushError(
            "recipe.assign: clients choose a model by losses that are cut to [0, privacy.loss_clip], and a loss of "
            f"your own ({objective.loss.name}) may be negative; accepted: a loss by name, or a recipe without choices",
            "recipe.assign",
        )


def _check_copies(config: Config, inputs: tuple[int, ...]) -> None:
    """Refuse copies of what is no image, and of the rows of persons."""
    if unit_of(config) == "person":
        raise HushError(
            f'{augmentation.KEY}: cannot be combined with privacy.unit = "person"; accepted: 1', augmentation.KEY
        )
    augmentation.check_images(inputs)


def _check_evaluation(recipe: Recipe, config: Config, objective: Objective) -> None:
    """Refuse an evaluation that counts what cannot be counted row by row in classes."""
    if recipe.evaluation is None:
        return
    if objective.task not in ("binary", "multiclass"):
        text = f'counts correct classes, and the task is "{objective.task}"'
        raise HushError(f"evaluation.share: evaluation {text}; accepted: 0", "evaluation.share")
    if config.privacy.unit == "person":
        text = "held-out rows are counted one by one, and the unit of privacy is a person"
        raise HushError(f"evaluation.share: {text}; accepted: 0", "evaluation.share")


def _check_sums(recipe: Recipe, members: Sequence[Member], config: Config) -> None:
    """Refuse what cannot be summed unseen: updates without a public range, or a recipe that needs more."""
    secure_sums.check(recipe, members, config.participation)
    if config.local.weight_decay and unit_of(config) != "client":
        raise HushError(
            f"{secure_sums.KEY}: local.weight_decay = {config.local.weight_decay:g} leaves updates without a bound, "
            "from which their range follows; accepted with it: 0",
            secure_sums.KEY,
        )


def _check_room(config: Config) -> None:
    """Refuse what memory has no room for, and say that many clients take a while to set up."""
    number, data, room = config.data.clients, config.data, models.memory()
    wanted = (
        ("data.clients", number, number * _LEDGER_BYTES, "the ledgers for this many clients"),
        ("rounds", config.rounds, config.rounds * (64 + 8 * number), "the schedules for this many rounds"),
        ("data.samples", data.samples, number * data.samples * _ROW_BYTES, "the generated rows for this many samples"),
    )
    for key, found, need, what in wanted[: 3 if data.name in datasets.SYNTHETIC else 2]:
        if need > room:
            raise HushError(
                f"{key}: found {found:,}; {what} take {models.gibibytes(need)}, this machine has "
                f"{models.gibibytes(room)}; accepted: at most {room * found // need:,}",
                key,
            )
    if number >= _MANY:
        size = models.gibibytes(number * _LEDGER_BYTES)
        _log.warning("setting up %s clients: about %.0f s and %s", f"{number:,}", number * _SETUP, size)


def _check_grids(plans: Sequence[PrivacyPlan], size: int) -> None:
    for client, plan in enumerate(plans):
        if plan.discrete and plan.clip <= 0.5 * plan.grid * math.sqrt(size):
            raise HushError(
                f"privacy.discrete: {size:,} parameters are too many for the noise of client {client} (multiplier "
                f"{plan.noise_multiplier:.3g}); use a smaller model, a larger budget, or discrete = false",
                "privacy.discrete",
            )


def _units(data: client_rows.Clients, unit: Unit) -> list[int]:
    """The number of training rows of each client, or of training persons where they are the unit of privacy."""
    return [len(sizes) for sizes in data.persons] if unit == "person" else data.train_counts


def _check_batches(members: Sequence[Member]) -> None:
    for member in members:
        if member.batch > member.samples:
            what = "persons to train on" if member.policy.unit == "person" else "training samples"
            raise HushError(
                f"local.batch_size: {member.batch} is more than the {member.samples} {what} of client "
                f"{member.name or member.client}; accepted: 1 to {member.samples}",
                "local.batch_size",
            )


def device_named(name: str) -> torch.device:
    """The device that a config names."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise HushError("engine.device: cuda is not available here; accepted: cpu, auto", "engine.device")
    return torch.device(name)
