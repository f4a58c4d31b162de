"""The round loop, a generator: it gives tasks and is sent updates, so any engine can drive it, or many runs at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.recipes.frame import Recipe, SlotStates
from hush.recipes.view import RoundView
from hush.server.schedule import Schedule
from hush.server.validate import validate
from hush.types import Layout, Member, RoundRecord, Task, Update


@dataclass(frozen=True)
class Terms:
    """What is fixed before the first round: all of it public."""

    recipe: Recipe
    members: tuple[Member, ...]
    planned_noise: tuple[float, ...]
    layout: Layout
    schedule: Schedule


@dataclass(frozen=True)
class ServerState:
    """All that the server needs to go on: the models it trains, those it would release, and each slot's memory."""

    round: int
    models: Tensor
    released: Tensor
    slots: SlotStates


Keep = Callable[[ServerState, RoundRecord], None]


def start(recipe: Recipe, vector: Tensor) -> ServerState:
    """The state before the first round."""
    models = vector.repeat(recipe.assign.models, 1)
    return ServerState(0, models, models, {"step": recipe.step.start(models)})


def serve(terms: Terms, state: ServerState, keep: Keep) -> Generator[list[Task], list[Update], ServerState]:
    """Run the rounds that are left. `keep` is called with the new state and the record after each of them."""
    recipe = terms.recipe
    while state.round < len(terms.schedule):
        number = state.round + 1
        slots = dict(state.slots)

        # 1. Invite the clients of this round, each with the model it works on.
        clients = terms.schedule[number - 1]
        placed = dict(zip(clients, recipe.assign.place(clients, slots.get("assign", {})), strict=True))
        tasks = [Task(c, number, state.models[placed[c]], terms.layout) for c in clients]

        # 2. Wait for what comes back.
        updates = yield tasks

        # 3. Let in what is valid.
        accepted, refused = validate(tasks, updates)
        move = torch.zeros_like(state.models)
        weights: dict[int, float] = {}
        noise: dict[int, float] = {}
        if accepted:
            view = _view(terms, number, accepted)

            # 4. Project.
            projected, slots["project"] = recipe.project.project(view, slots.get("project", {}))

            # 5. Weigh, within each model's clients.
            for model, rows in _by_model([placed[c] for c in view.clients]):
                part = view.rows(rows)
                weighing, slots["weigh"] = recipe.weigh.weigh(part, slots.get("weigh", {}))
                move[model] = weighing.weights.to(move.dtype) @ projected[rows]
                weights.update(zip(part.clients, weighing.weights.tolist(), strict=True))
                if weighing.noise is not None:
                    noise.update(zip(part.clients, weighing.noise.tolist(), strict=True))

        # 6. Step.
        models, slots["step"] = recipe.step.step(state.models, move, slots["step"])

        # 7. Record.
        released = recipe.step.released(models, slots["step"])
        state = ServerState(number, models, released, slots)
        planned = {c: terms.planned_noise[c] for c in weights}
        keep(state, RoundRecord(number, weights, noise, planned, refused))
    return state


def _view(terms: Terms, number: int, updates: Sequence[Update]) -> RoundView:
    members = [terms.members[update.client] for update in updates]

    def facts(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return RoundView(
        round=number,
        clients=tuple(update.client for update in updates),
        updates=torch.stack([update.vector for update in updates]),
        samples=facts([member.samples for member in members]),
        epsilon=facts([member.policy.epsilon for member in members]),
        planned_noise=facts([terms.planned_noise[update.client] for update in updates]),
    )


def _by_model(placed: Sequence[int]) -> list[tuple[int, Tensor]]:
    numbers = torch.tensor(placed)
    return [(model, (numbers == model).nonzero().flatten()) for model in sorted(set(placed))]
