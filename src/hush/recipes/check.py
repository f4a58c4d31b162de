"""Check which choices go together: a recipe that makes no sense is refused before training, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hush.recipes.recipe import Recipe
from hush.recipes.slots.closed_form import ClosedForm
from hush.recipes.slots.clusters import ByLoss, GmmThenLoss, Oracle
from hush.recipes.slots.local import ControlVariates
from hush.recipes.slots.project import DelayedPublicSubspace, PublicSubspace, RandomSubspace, threshold
from hush.recipes.slots.protect import DpSgd, InputMean, OutputPerturbation
from hush.recipes.slots.step import TwoSided
from hush.recipes.slots.weight import Balanced, Epsilon, EstimatedNoise, Impact, SampleCount, Samples
from hush.types import HushError, Member

_LOOKED_AT = 1000  # rounds


def check(recipe: Recipe, members: Sequence[Member], rounds: int) -> None:
    """Raise a `HushError` for the first thing that does not fit."""
    for key, text in (*incompatible(recipe), *_side_releases(recipe, rounds), *_numbers(recipe, members, rounds)):
        raise HushError(f"recipe.{key}: {text}", f"recipe.{key}")


def incompatible(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield slot and reason for each choice that cannot be combined with another one, whatever the clients are."""
    open_protect = not recipe.protect.private
    if isinstance(recipe.project, DelayedPublicSubspace) and recipe.assign.models > 1:
        yield (
            "project",
            "delayed-public-subspace needs one model: the subspace belongs to a model that a client may leave",
        )
    if isinstance(recipe.project, DelayedPublicSubspace) and isinstance(recipe.weight, EstimatedNoise):
        yield "weight", "noise cannot be estimated from updates of which only a few coefficients are sent"
    if isinstance(recipe.project, DelayedPublicSubspace) and isinstance(recipe.local, ControlVariates):
        yield "local", "control variates need complete updates; delayed-public-subspace sends only a few coefficients"
    if open_protect and isinstance(recipe.weight, EstimatedNoise) and recipe.weight.estimator == "declared":
        yield (
            "weight.estimator",
            "declared noise cannot determine weights without noise; use another protect or weight",
        )
    if open_protect and isinstance(recipe.assign, GmmThenLoss | ByLoss) and recipe.assign.share > 0:
        yield (
            "assign.share",
            "a noisy choice requires a privacy budget, and this protect option has none; set share = 0",
        )
    if isinstance(recipe.protect, DpSgd) and recipe.protect.level == "user" and recipe.protect.noise is None:
        yield "protect.level", '"user" multiplies a given noise; accepted: "rows", or spread = "equal-noise" with noise'
    if isinstance(recipe.step, ClosedForm):
        yield from _closed_form(recipe)
    if isinstance(recipe.weight, Samples) and recipe.weight.counts == "noisy":
        if open_protect:
            yield (
                "weight.counts",
                'a noisy count requires a privacy budget, and this protect option has none; use counts = "public"',
            )
        if isinstance(recipe.local, ControlVariates):
            yield (
                "local",
                "control variates divide by the number of steps, which reveals the sample count that weight hides",
            )


def _closed_form(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What a step that solves for the model from statistics cannot be combined with: all that is about training."""
    protect = recipe.protect
    if not isinstance(protect, DpSgd) or protect.centres_inputs or protect.clip == "adaptive":
        text = 'the closed form has neither inputs that are centred nor a clip that adapts; accepted: rule = "dp-sgd"'
        yield "protect", text
    if isinstance(recipe.local, ControlVariates):
        yield "local", "control variates correct training, and the closed form has none"
    if recipe.assign.models > 1:
        yield "assign", f"the closed form solves for one model, found {recipe.assign.models}"
    if isinstance(recipe.weight, EstimatedNoise | Balanced):
        yield "weight", "noise cannot be estimated from updates where clients do not train; accepted: precision"
    if isinstance(recipe.project, PublicSubspace | DelayedPublicSubspace):
        yield "project", "there are no updates to project where clients do not train"


def _side_releases(recipe: Recipe, rounds: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the releases that options ask for beside the update."""
    for slot, option in recipe.options.items():
        asked = [option.round_spec(number, rounds).side_releases for number in range(min(rounds, _LOOKED_AT) + 1)]
        if any(asked) and not recipe.protect.private:
            yield slot, "a side release has no budget where protect guarantees nothing; use another protect"
        if any(not isinstance(release, SampleCount | InputMean) for release in asked[0]):
            yield slot, "enrolment releases counts and input means alone; ask for others in rounds, from 1 on"
    for spec in recipe.stage_table(rounds).specs:
        names = [release.what for release in spec.side_releases]
        if len(set(names)) < len(names):
            yield "name", f"two side releases of one round have the same name; found: {', '.join(sorted(names))}"


def _numbers(recipe: Recipe, members: Sequence[Member], rounds: int) -> Iterator[tuple[str, str]]:
    clients, groups = len(members), max(member.group for member in members) + 1
    yield from _revelations(recipe, rounds)
    models = recipe.assign.models
    if recipe.assign.number_given and models > clients:
        yield "assign.clusters", f"{models} is more than the {clients} clients; accepted: 1 to {clients}"
    if isinstance(recipe.assign, Oracle) and models < groups:
        yield "assign.clusters", f"{models} models for {groups} true clusters; accepted: {groups} or more"
    if isinstance(recipe.assign, GmmThenLoss) and recipe.assign.switch > 0 and recipe.assign.switch + 1 >= rounds > 1:
        accepted = f"2 to {rounds - 2}, or 0" if rounds > 3 else "0"
        yield (
            "assign.switch",
            f"{recipe.assign.switch} leaves no round in which clients choose; accepted: {accepted}",
        )
    if isinstance(recipe.local, ControlVariates) and recipe.local.warm_rounds >= rounds:
        yield (
            "local.warm",
            f"{recipe.local.warm_rounds} of {rounds} rounds leave none for training; accepted: 0 to {rounds - 1}",
        )
    if isinstance(recipe.project, PublicSubspace) and not isinstance(recipe.project, RandomSubspace):
        least = threshold(tuple(member.policy.epsilon for member in members), recipe.project.public)
        public = sum(member.policy.epsilon >= least for member in members)
        rank = max(1, public - 1)
        if recipe.project.k > rank:
            yield "project.k", f"{recipe.project.k} is above the rank of {public} public updates; accepted: 1 to {rank}"
    if isinstance(recipe.weight, Impact):
        for listed in (recipe.weight.factors, *recipe.weight.changes.values()):
            yield from _factors(listed, members, groups)
    if isinstance(recipe.weight, Epsilon) and isinstance(recipe.protect, DpSgd) and recipe.protect.budget != "own":
        yield (
            "weight",
            f"weights by declared budget have no effect if all clients use the {recipe.protect.budget} budget",
        )


def _revelations(recipe: Recipe, rounds: int) -> Iterator[tuple[str, str]]:
    clients = recipe.protect.revelations if isinstance(recipe.protect, OutputPerturbation) else None
    if clients is not None and clients > rounds:
        yield "protect.revelations", f"{clients} of {rounds} rounds; accepted: 1 to {rounds}"
    if clients is not None and isinstance(recipe.step, TwoSided) and recipe.step.revelations != clients:
        yield (
            "step.revelations",
            f"{recipe.step.revelations}, and the clients' noise is for {clients}; accepted: the number of "
            "recipe.protect.revelations",
        )


def _factors(listed: Sequence[float], members: Sequence[Member], groups: int) -> Iterator[tuple[str, str]]:
    clients = len(members)
    if not listed:
        return
    if len(listed) not in (clients, groups):
        accepted = f"{clients} (one per client)" + (f" or {groups} (one per group)" if groups > 1 else "")
        yield "weight.factors", f"{len(listed)} numbers; accepted: {accepted}"
        return
    each = listed if len(listed) == clients else [listed[member.group] for member in members]
    if abs(sum(each) - 1) > 1e-6:
        yield "weight.factors", f"impact factors sum to {sum(each):.6g} over all clients; accepted: a sum of 1"
