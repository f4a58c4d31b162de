"""From a config to a federation that is ready to run: data, model, members, plans, schedule, ledgers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hush import models, recipes
from hush.config import Config
from hush.data import budgets, clients, datasets, transforms
from hush.engines import books, pace
from hush.engines.chance import chance
from hush.engines.views import third_party_view
from hush.local import centre
from hush.models import Model
from hush.privacy import noise
from hush.privacy.course import Course, Outline, Output, Stage
from hush.privacy.ledger import Ledger
from hush.privacy.plan import UPDATE, PrivacyPlan
from hush.recipes import Recipe
from hush.recipes.check import check
from hush.recipes.view import State
from hush.server.loop import Terms
from hush.server.schedule import Schedule, schedule, stages_of
from hush.types import Guarantee, HushError, Member, Policy

_PACED = "privacy plan: budget, batch and samples are taken as public at enrolment, and set the learning rate"
_SIMULATED = "test accuracy per client: an un-noised count on held-out rows, shown by the simulation alone"


@dataclass(frozen=True)
class Federation:
    """Everything a run needs."""

    config: Config
    recipe_name: str
    recipe: Recipe
    data: clients.Clients
    model: Model
    members: tuple[Member, ...]
    policies: tuple[Policy, ...]
    courses: tuple[Course, ...]
    outputs: tuple[Output | None, ...]
    terms: Terms
    device: torch.device
    paced: bool = False

    def stage(self, client: int, number: int) -> Stage:
        """What a client does in a round."""
        return self.courses[client].stages[self.terms.outline.of[number]]

    def arrays(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs (behind the model's fixed features) and labels of all clients in a round, on the device."""
        x, y = self.data.arrays(number)
        inputs = torch.from_numpy(np.ascontiguousarray(x)).to(self.device)
        features = self.model.features
        return inputs if features is None else features(inputs), torch.from_numpy(y).to(self.device)

    def data_key(self) -> object:
        """What the arrays of a run depend on: runs with equal keys can share them."""
        config = self.config
        return (
            config.data.model_dump_json(),
            config.seed,
            config.model.model_dump_json(),
            str(self.device),
            id(self.data.dataset),
        )

    def plain(self, models: Tensor, told: State) -> Tensor:
        """Models, models x p, as they act on rows as they are: without the centre that enrolment may have brought."""
        if "centre" not in told:
            return models
        return centre.plain(centre.form_of(self.model), models, told["centre"])

    def starts(self) -> Tensor:
        """The models before the first round: alike, or each drawn anew where the recipe tells them apart by that."""
        number, config = self.recipe.assign.models, self.config
        if self.recipe.assign.alike:
            return self.model.start.repeat(number, 1)
        shape, classes = tuple(self.data.dataset.x.shape[1:]), self.data.dataset.classes
        return torch.stack([models.build(config.model, shape, classes, config.seed + m).start for m in range(number)])

    def ledgers(self, directory: Path | None = None) -> list[Ledger]:
        """A ledger for each client, its course approved: fresh ones in memory, or the files of a directory."""
        accountant = self.courses[0].plan.accountant
        if directory is not None:
            wanted = self.config.privacy.lifetime
            lifetimes = [policy.epsilon for policy in self.policies]
            if wanted is not None:
                lifetimes = list(budgets.budgets(wanted, len(self.members), self.config.seed))
            made = books.opened(directory, self.policies, lifetimes, accountant)
        else:
            made = [Ledger.in_memory(c, policy, accountant) for c, policy in enumerate(self.policies)]
        books.approve(made, [course.costs() for course in self.courses])
        return made

    def not_covered(self) -> tuple[str, ...]:
        """What no accountant covers, in words."""
        named = [f"{r.what}: {r.why}" for r in self.recipe.releases() if not r.covered]
        if self.paced:
            named.append(_PACED)
        if self.config.privacy.noise == "replayable":
            named.append("the noise itself: replayable from the seed, for experiments only, so nothing here is private")
        return (*named, _SIMULATED)

    def third_party(self) -> str:
        """What can be said toward someone who sees only the models."""
        config = self.config
        return third_party_view(self.recipe, self.courses, config.participation, config.rounds)

    def guarantees(self, ledgers: Sequence[Ledger]) -> tuple[Guarantee, ...]:
        """The guarantee card of each client."""
        secure = self.config.privacy.noise == "secure"
        label = noise.SECURE if secure else noise.REPLAYABLE
        view, named = self.third_party(), self.not_covered()
        return tuple(
            self._card(member.client, ledger, label, view, named)
            for member, ledger in zip(self.members, ledgers, strict=True)
        )

    def _card(self, client: int, ledger: Ledger, label: str, view: str, named: tuple[str, ...]) -> Guarantee:
        member, policy, course = self.members[client], self.policies[client], self.courses[client]
        plan, spent = course.plan, ledger.spent()
        return Guarantee(
            client=client,
            epsilon_budget=member.policy.epsilon,
            epsilon_spent=spent,
            delta=policy.delta,
            relation=policy.relation,
            accountant=plan.accountant,
            sampler=plan.sampler,
            noise=label if plan.private else "none",
            not_covered=named,
            samples=member.samples,
            batch_size=plan.batch,
            rounds=ledger.rounds,
            steps=sum(steps for (what, _), steps in ledger.released().items() if what == UPDATE),
            sample_rate=plan.rate,
            clip=plan.clip,
            noise_multiplier=plan.noise_multiplier,
            epsilon_left=max(0.0, member.policy.epsilon - spent),
            epsilon_third_party=spent,
            third_party=view,
            stages=tuple(tuple(asdict(cost) for cost in stage.costs()) for stage in course.stages),
        )


def prepare(
    config: Config,
    *,
    root: str | None = None,
    dataset: datasets.Dataset | None = None,
    module: nn.Module | None = None,
) -> Federation:
    """Build the federation that a config describes, or say what is wrong with it."""
    name, recipe = recipes.parse(config.recipe, config.mode)
    device = _device(config.engine.device)
    number, seed = config.data.clients, config.seed
    epsilons = budgets.budgets(config.privacy.budgets, number, seed)
    batches = budgets.batch_sizes(config.local.batch_size, number, seed)
    deltas = _per_client(config.privacy.delta, number, "privacy.delta")
    held = clients.divide(dataset or load(config, root), config.data, seed)
    members = tuple(
        Member(c, Policy(epsilons[c], deltas[c], config.privacy.relation), samples, batches[c], share.group)
        for c, (samples, share) in enumerate(zip(held.train_counts, held.shares, strict=True))
    )
    _check_batches(members)
    if config.quorum > number:
        raise HushError(f"quorum: {config.quorum} is more than the {number} clients; accepted: 1 to {number}", "quorum")
    shape = tuple(held.dataset.x.shape[1:])
    model = models.adopt(module, shape) if module else models.build(config.model, shape, held.dataset.classes, seed)
    if module is not None and not recipe.assign.alike:
        raise HushError("recipe.assign: needs models that start apart, and a module of your own starts one way only")
    if getattr(recipe.protect, "centre", 0.0) > 0:
        centre.form_of(model)
    rounds = schedule(seed, number, config.rounds, config.participation, recipe.shared)
    check(recipe, members, config.rounds)
    outline = recipe.outline(config.rounds)
    orders = stages_of(outline, rounds, number)
    policies = tuple(recipe.protect.policies(members))
    courses = tuple(recipe.protect.courses(members, outline, orders, config))
    _check_grids([course.plan for course in courses], model.layout.size)
    outputs = tuple(recipe.protect.output(members, config.rounds))
    paced = config.local.lr == "auto"
    if paced:
        config = with_rate(config, 1.0)
        drawn = terms_of(config, recipe, members, outline, courses, model, rounds)
        config = with_rate(config, pace.rate(drawn, config.participation))
    terms = terms_of(config, recipe, members, outline, courses, model, rounds)
    return Federation(config, name, recipe, held, model, members, policies, courses, outputs, terms, device, paced)


def with_rate(config: Config, lr: float) -> Config:
    """The config with this learning rate."""
    return config.model_copy(update={"local": config.local.model_copy(update={"lr": lr})})


def terms_of(
    config: Config, recipe: Recipe, members: tuple[Member, ...], outline: Outline, courses: Sequence[Course],
    model: Model, rounds: Schedule,
) -> Terms:  # fmt: skip
    """What the server knows, all of it public."""
    by_stage = [[course.stages[number].plan for course in courses] for number in range(len(outline.asks))]
    lr, size = config.local.lr, model.layout.size
    return Terms(
        recipe=recipe,
        members=members,
        outline=outline,
        planned_noise=tuple(tuple(plan.update_noise(lr, size) for plan in plans) for plans in by_stage),
        reach=tuple(tuple(lr * plan.steps for plan in plans) for plans in by_stage),
        layout=model.layout,
        schedule=rounds,
        chance=chance(config.seed, config.privacy.noise == "secure"),
        quorum=config.quorum,
        clip=config.privacy.clip,
    )


def load(config: Config, root: str | None = None) -> datasets.Dataset:
    """The dataset that a config names."""
    data = config.data
    options: dict[str, Any] = {}
    if data.name in datasets.MADE:
        options = {"alpha": data.alpha, "beta": data.beta, "samples": data.samples}
    found = datasets.load(data.name, root=root, part=data.part, seed=config.seed, clients=data.clients, **options)
    return transforms.unit_rows(found) if data.rows == "unit-norm" else found


def _per_client(value: Any, clients_number: int, key: str) -> list[float]:
    if not isinstance(value, list):
        return [float(value)] * clients_number
    if len(value) != clients_number:
        raise HushError(f"{key}: a list of {len(value)} numbers for {clients_number} clients", key)
    return [float(v) for v in value]


def _check_grids(plans: Sequence[PrivacyPlan], size: int) -> None:
    for client, plan in enumerate(plans):
        if plan.discrete and plan.clip <= 0.5 * plan.grid * math.sqrt(size):
            raise HushError(
                f"privacy.discrete: {size:,} parameters are too many for the noise of client {client} (multiplier "
                f"{plan.noise_multiplier:.3g}); use a smaller model, a larger budget, or discrete = false",
                "privacy.discrete",
            )


def _check_batches(members: Sequence[Member]) -> None:
    for member in members:
        if member.batch > member.samples:
            raise HushError(
                f"local.batch_size: {member.batch} is more than the {member.samples} training samples of client "
                f"{member.client}; accepted: 1 to {member.samples}",
                "local.batch_size",
            )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise HushError("engine.device: cuda is not available here; accepted: cpu, auto", "engine.device")
    return torch.device(name)
