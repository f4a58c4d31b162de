"""Which choices go together. A recipe that makes no sense is refused before anything is trained, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hush.recipes.clusters import GmmThenLoss, Oracle
from hush.recipes.frame import Recipe
from hush.recipes.local import ControlVariates
from hush.recipes.project import DelayedPublicSubspace, PublicSubspace, RandomSubspace, threshold
from hush.recipes.protect import DpSgd, Nothing
from hush.recipes.weigh import Epsilon, EstimatedNoise, Impact, Samples
from hush.types import HushError, Member


def check(recipe: Recipe, members: Sequence[Member], rounds: int) -> None:
    """Raise a `HushError` for the first thing that does not fit."""
    for key, text in (*_pairs(recipe), *_numbers(recipe, members, rounds)):
        raise HushError(f"recipe.{key}: {text}", f"recipe.{key}")


def clash(recipe: Recipe) -> str | None:
    """Why the choices of a recipe do not go together, whoever the clients are, or None."""
    return next((text for _, text in _pairs(recipe)), None)


def _pairs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    open_protect = isinstance(recipe.protect, Nothing)
    if isinstance(recipe.project, DelayedPublicSubspace) and recipe.assign.models > 1:
        yield "project", "delayed-public-subspace needs one model: directions belong to a model that a client may leave"
    if isinstance(recipe.project, DelayedPublicSubspace) and isinstance(recipe.weigh, EstimatedNoise):
        yield "weigh", "noise cannot be estimated in updates of which only a few directions are sent"
    if isinstance(recipe.project, DelayedPublicSubspace) and isinstance(recipe.local, ControlVariates):
        yield "local", "control variates need whole updates; delayed-public-subspace sends a few directions of them"
    if open_protect and isinstance(recipe.weigh, EstimatedNoise) and recipe.weigh.estimator == "declared":
        yield "weigh.estimator", "declared noise makes no weights where there is no noise; use another protect or weigh"
    if open_protect and getattr(recipe.assign, "share", 0.0) > 0:
        yield "assign.share", "a noisy choice has no budget where protect promises nothing; set share = 0"
    if isinstance(recipe.weigh, Samples) and recipe.weigh.counts == "noisy":
        if open_protect:
            yield "weigh.counts", 'a noisy count has no budget where protect promises nothing; use counts = "public"'
        if isinstance(recipe.local, ControlVariates):
            yield "local", "control variates divide by the number of steps, which tells the count that weigh hides"


def _numbers(recipe: Recipe, members: Sequence[Member], rounds: int) -> Iterator[tuple[str, str]]:
    clients, groups = len(members), max(member.group for member in members) + 1
    models = recipe.assign.models
    named = getattr(recipe.assign, "clusters", 1)
    if named and models > clients:
        yield "assign.clusters", f"{models} is more than the {clients} clients; accepted: 1 to {clients}"
    if isinstance(recipe.assign, Oracle) and models < groups:
        yield "assign.clusters", f"{models} models for {groups} true clusters; accepted: {groups} or more"
    if isinstance(recipe.assign, GmmThenLoss) and recipe.assign.switch >= rounds > 1:
        yield "assign.switch", f"{recipe.assign.switch} leaves no round to choose in; accepted: 2 to {rounds - 1}, or 0"
    if isinstance(recipe.local, ControlVariates) and recipe.local.warm >= rounds:
        yield (
            "local.warm",
            f"{recipe.local.warm} of {rounds} rounds leave none to train; accepted: 0 to {rounds - 1}",
        )
    if isinstance(recipe.project, PublicSubspace) and not isinstance(recipe.project, RandomSubspace):
        least = threshold(tuple(member.policy.epsilon for member in members), recipe.project.public)
        public = sum(member.policy.epsilon >= least for member in members)
        rank = max(1, public - 1)
        if recipe.project.k > rank:
            yield "project.k", f"{recipe.project.k} is above the rank of {public} public updates; accepted: 1 to {rank}"
    if isinstance(recipe.weigh, Impact):
        for listed in (recipe.weigh.factors, *recipe.weigh.changes.values()):
            yield from _factors(listed, members, groups)
    if isinstance(recipe.weigh, Epsilon) and isinstance(recipe.protect, DpSgd) and recipe.protect.budget != "own":
        yield "weigh", f"weights by declared budget mean nothing where all train at the {recipe.protect.budget} one"


def _factors(listed: Sequence[float], members: Sequence[Member], groups: int) -> Iterator[tuple[str, str]]:
    clients = len(members)
    if not listed:
        return
    if len(listed) not in (clients, groups):
        accepted = f"{clients} (one a client)" + (f" or {groups} (one a group)" if groups > 1 else "")
        yield "weigh.factors", f"{len(listed)} numbers; accepted: {accepted}"
        return
    each = listed if len(listed) == clients else [listed[member.group] for member in members]
    if abs(sum(each) - 1) > 1e-6:
        yield "weigh.factors", f"impact factors sum to {sum(each):.6g} over all clients; accepted: a sum of 1"
