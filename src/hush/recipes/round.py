"""One round of a recipe: the tasks that its options make, and the next models from the updates that come back.

Pure functions: the round loop (`hush.server.loop`) decides who is invited and which updates are valid, and stores the
state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.recipes.context import NO_MODEL, RoundView, Rows, ServerRng, State, Weights
from hush.recipes.interfaces import Projected
from hush.recipes.limits import InfluenceLimits, capped, norm_limits
from hush.recipes.recipe import Recipe, SlotStates
from hush.types import Layout, Task, TaskExtras, Update

_DECIDERS = 3  # clients below which one malicious client may decide for all


@dataclass(frozen=True)
class Invitation:
    """The tasks of a round, the model index of each client, and whether clients choose among all models."""

    tasks: list[Task]
    placed: Mapping[int, int]
    open_choice: bool


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """The result of aggregating a round.

    Attributes:
        models: The models to train next, models x p.
        released: The models to release, where they differ from those.
        slots: The state of each slot.
        weights: The weight of each client whose update was aggregated.
        noise: The estimated noise energy of each update, if the recipe estimates it.
        joined: The model index to which each update was added.
        warnings: Clients whose weight was limited, and why.
    """

    models: Tensor
    released: Tensor
    slots: SlotStates
    weights: Mapping[int, float]
    noise: Mapping[int, float]
    joined: Mapping[int, int]
    warnings: Mapping[int, str]


def invite(
    recipe: Recipe, invited: RoundView, models: Tensor, slots: SlotStates, rng: ServerRng, *, choose: bool
) -> Invitation:
    """Return the tasks of the invited clients. With `choose`, clients are asked which model fits best."""
    everyone = range(len(invited.budgets))
    placed = dict(zip(invited.clients, recipe.assign.place(invited, slots["assign"], rng), strict=True))
    open_choice = choose and recipe.assign.offers(invited.round, slots["assign"])
    assignments = recipe.assign.assignments(everyone, slots["assign"])
    drifts = recipe.local.drifts(invited.clients, assignments, len(models), slots["local"])
    clip, input_mean = recipe.protect.round_clip(slots["protect"]), recipe.protect.input_mean(slots["protect"])
    sent: dict[int, list[Mapping[str, Tensor]]] = {}
    tasks = []
    for row, client in enumerate(invited.clients):
        model = 0 if open_choice else placed[client]
        shown = slice(None) if open_choice else slice(model, model + 1)
        if model not in sent:
            sent[model] = recipe.project.sends(invited, slots.get(f"project-{model}", {}))
        extras = TaskExtras(
            clip=clip,
            input_mean=input_mean,
            drift=None if drifts is None else drifts[row, shown],
            slots=sent[model][row],
        )
        tasks.append(
            Task(
                client=client,
                round=invited.round,
                models=models[shown],
                layout=invited.layout,
                answer=recipe.project.answer(invited.layout, extras),
                extras=extras,
            )
        )
    return Invitation(tasks, placed, open_choice)


def aggregate(
    recipe: Recipe,
    facts: RoundView,
    invitation: Invitation,
    updates: Sequence[Update],
    models: Tensor,
    slots: SlotStates,
    rng: ServerRng,
    *,
    limits: InfluenceLimits,
    step: bool,
    stored: Rows | None = None,
) -> Aggregate:
    """Return the next models and states.

    Args:
        recipe: The algorithm.
        facts: The public facts of the clients whose updates are used, in the same order.
        invitation: The invitation of the round.
        updates: Valid updates; empty if fewer than the quorum answered, which leaves the models unchanged.
        models: The current models, models x p.
        slots: The current state of each slot.
        rng: The server's random numbers of the round.
        limits: Limits on one client's influence.
        step: Whether this round changes the models.
        stored: The decoded updates, in the same order, where they are stored elsewhere.
    """
    new: dict[str, State] = dict(slots)
    move = torch.zeros_like(models)
    weights: dict[int, float] = {}
    noise: dict[int, float] = {}
    into: dict[int, int] = {}
    warnings: dict[int, str] = {}
    if updates:
        view, warnings = _norm_limited(
            _view(recipe, facts, invitation.tasks, updates, stored), invitation.tasks, limits
        )
        worked = [_worked_on(invitation, update) for update in updates]

        # Assign: the model to which each update is added.
        joined, new["assign"] = recipe.assign.absorb(view, worked, slots["assign"], rng)
        into = dict(zip(view.clients, joined, strict=True))
        rebased = _rebased(view, models, worked, joined)
        for model, rows in _by_model(joined):
            part = rebased if len(rows) == len(view.clients) else rebased.rows(rows)

            # Project, unless one or two clients alone determine the projection and the ceiling forbids that much
            # influence.
            key, share = f"project-{model}", limits.ceiling(len(part.clients))
            few = _few(recipe.project.deciders(part), share)
            projected: Projected = part.matrix
            if not few:
                projected, new[key] = recipe.project.project(part, slots.get(key, {}), rng)

            # Weight.
            key = f"weight-{model}"
            weighting, new[key] = recipe.weight.weight(part, slots.get(key, {}))
            limited = weighting.weights if share >= 1 else capped(weighting.weights, part.reach, share)
            move[model] = _weighted_sum(limited, projected).to(move.dtype)
            weights.update(zip(part.clients, limited.tolist(), strict=True))
            warnings = _joined(warnings, _warned(part, weighting, limited, share), _undecided(part, few))
            if weighting.noise is not None:
                noise.update(zip(part.clients, weighting.noise.tolist(), strict=True))
        # The model indices with which the tasks were made.
        assignments = recipe.assign.assignments(range(len(facts.budgets)), slots["assign"])
        new["protect"] = recipe.protect.absorb(view, slots["protect"])
        new["local"] = recipe.local.absorb(view, worked, assignments, slots["local"])
        counted = torch.tensor([weights.get(client, 0.0) for client in view.clients], dtype=torch.float64)
        new["step"] = recipe.step.observe(view, counted, slots["step"])
    if step:
        models, new["step"] = recipe.step.step(models, move, new["step"], rng)
    return Aggregate(
        models=models,
        released=recipe.step.released(models, new["step"]),
        slots=new,
        weights=weights,
        noise=noise,
        joined=into,
        warnings=warnings,
    )


def _view(
    recipe: Recipe, facts: RoundView, tasks: Sequence[Task], updates: Sequence[Update], stored: Rows | None
) -> RoundView:
    """Return the facts with the decoded updates and the side releases."""
    if stored is not None:
        answers = {what: torch.stack([u.side.releases[what] for u in updates]) for what in updates[0].side.releases}
        if all(option.blockwise for option in recipe.options.values()):
            return replace(facts, stored=stored, answers=answers)
        return replace(facts, updates=stored.whole(), answers=answers)
    sent = {task.client: task for task in tasks}
    vectors = [recipe.project.decode(u.vector, facts.layout, sent[u.client].extras) for u in updates]
    answers = {what: torch.stack([u.side.releases[what] for u in updates]) for what in updates[0].side.releases}
    return replace(facts, updates=torch.stack(vectors), answers=answers)


def _worked_on(invitation: Invitation, update: Update) -> int:
    chosen = update.side.choice
    return invitation.placed[update.client] if chosen is None or not invitation.open_choice else chosen


def _rebased(view: RoundView, models: Tensor, worked: Sequence[int], joined: Sequence[int]) -> RoundView:
    """Return the view with updates of the models that they are added to, in place of those they were computed on."""
    to = [there if there != NO_MODEL else here for here, there in zip(worked, joined, strict=True)]
    if list(worked) == to:
        # Nothing to add: no copy of all updates is made.
        return view
    if view.stored is not None:
        return replace(view, stored=view.stored.rebased(models, worked, to))
    return replace(view, updates=view.updates + (models[list(worked)] - models[to]))


def _weighted_sum(weights: Tensor, projected: Projected) -> Tensor:
    if isinstance(projected, Tensor):
        return weights.to(projected.dtype) @ projected
    return projected.combined(weights)


def _by_model(joined: Sequence[int]) -> list[tuple[int, Tensor]]:
    numbers = torch.tensor(joined)
    return [(model, (numbers == model).nonzero().flatten()) for model in sorted(set(joined)) if model != NO_MODEL]


def _norm_limited(view: RoundView, tasks: Sequence[Task], limits: InfluenceLimits) -> tuple[RoundView, dict[int, str]]:
    """Scale down updates whose norm is far above the others of the round, and return which ones were scaled.

    This does not apply if updates contain more than a signal and the planned noise: a drift, or encoded updates.
    """
    if limits.noise_bounds is None or any(_is_more_than_signal(task, view.layout) for task in tasks):
        return view, {}
    clip = tasks[0].extras.clip
    scale = 1.0 if clip is None else clip / limits.clip
    most = norm_limits(replace(view, planned_noise=scale**2 * view.planned_noise), scale * limits.noise_bounds)
    norms = view.matrix.norms()
    long = norms > most
    if not bool(long.any()):
        return view, {}
    factors = torch.where(long, most / norms, 1.0)
    words = {
        view.clients[row]: f"its update has norm {norms[row]:.3g}, far above the others of the round, and is scaled to "
        f"{most[row]:.3g} (max_weight = 1.0 in the run's config turns this off)"
        for row in long.nonzero().flatten().tolist()
    }
    if view.stored is not None:
        return replace(view, stored=view.stored.scaled(factors)), words
    return replace(view, updates=view.updates * factors[:, None].to(view.updates.dtype)), words


def _is_more_than_signal(task: Task, layout: Layout) -> bool:
    return task.answer != layout or task.extras.drift is not None


def _few(deciders: Tensor | None, share: float) -> tuple[int, ...]:
    """Return the deciding clients if there are fewer than three and each has more than the allowed influence."""
    rows = () if deciders is None else tuple(deciders.nonzero().flatten().tolist())
    return rows if 0 < len(rows) < _DECIDERS and share * len(rows) < 1 - 1e-9 else ()


def _undecided(part: RoundView, few: Sequence[int]) -> dict[int, str]:
    words = (
        f"it is one of {len(few)} whose declared budgets let them choose what is kept of all updates, fewer than "
        "three: nothing is projected (if they are trusted, set max_weight = 1.0 in the run's config)"
    )
    return {part.clients[row]: words for row in few}


def _warned(part: RoundView, weighting: Weights, limited: Tensor, share: float) -> dict[int, str]:
    """Return the clients whose weight or update was limited, and why."""
    quiet = [False] * len(part.clients) if weighting.quiet is None else weighting.quiet.tolist()
    found = {}
    rows = zip(part.clients, quiet, weighting.weights.tolist(), limited.tolist(), strict=True)
    for client, little, before, now in rows:
        words = (
            ["its update contains less noise than planned and is weighted as if it contained the planned noise"]
            if little
            else []
        )
        if now < before * (1 - 1e-6):
            words.append(
                f"weight {before:.3g} is limited to {now:.3g}: max_weight lets one of {len(part.clients)} have "
                f"{share:.3g} of what a round moves, which among few members also limits honest ones with little "
                "noise or many rows; if it is trusted, set a larger max_weight in the run's config (1.0: no limit)"
            )
        if words:
            found[client] = "; ".join(words)
    return found


def _joined(*found: Mapping[int, str]) -> dict[int, str]:
    clients = dict.fromkeys(client for each in found for client in each)
    return {client: "; ".join(each[client] for each in found if client in each) for client in clients}
