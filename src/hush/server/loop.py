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
from hush.types import Decline, Layout, Member, RoundRecord, Task, Update


@dataclass(frozen=True)
class Terms:
    """What is fixed before the first round: all of it public."""

    recipe: Recipe
    members: tuple[Member, ...]
    planned_noise: tuple[float, ...]
    layout: Layout
    schedule: Schedule
    quorum: int = 1


@dataclass(frozen=True)
class ServerState:
    """All that the server needs to go on: the models it trains, those it would release, and each slot's memory."""

    round: int
    models: Tensor
    released: Tensor
    slots: SlotStates


Answer = Update | Decline
Keep = Callable[[ServerState, RoundRecord], None]


def start(recipe: Recipe, vector: Tensor) -> ServerState:
    """The state before the first round."""
    models = vector.repeat(recipe.assign.models, 1)
    return ServerState(
        0, models, models, {"step": recipe.step.start(models), "loop": {"gone": torch.zeros(0, dtype=torch.int64)}}
    )


def short_of_quorum(terms: Terms, state: ServerState) -> str | None:
    """Why the run cannot go on, if too few clients have budget left."""
    left = len(terms.members) - len(state.slots["loop"]["gone"])
    if left >= terms.quorum:
        return None
    return f"after round {state.round}: {left} of {len(terms.members)} clients have budget left, quorum {terms.quorum}"


def serve(terms: Terms, state: ServerState, keep: Keep) -> Generator[list[Task], list[Answer], ServerState]:
    """Run the rounds that are left. `keep` is called with the new state and the record after each of them.

    A client that declines for good is not asked again. When fewer than the quorum are left, the run ends; a round in
    which fewer than the quorum happen to answer moves nothing.
    """
    recipe = terms.recipe
    while state.round < len(terms.schedule) and short_of_quorum(terms, state) is None:
        number = state.round + 1
        slots = dict(state.slots)

        # 1. Invite the clients of this round that have budget left, each with the model it works on.
        gone = set(state.slots["loop"]["gone"].tolist())
        clients = [client for client in terms.schedule[number - 1] if client not in gone]
        placed = dict(zip(clients, recipe.assign.place(clients, slots.get("assign", {})), strict=True))
        tasks = [Task(c, number, state.models[placed[c]], terms.layout) for c in clients]

        # 2. Wait for what comes back.
        answers = yield tasks

        # 3. Let in what is valid, and note who leaves.
        updates = [answer for answer in answers if isinstance(answer, Update)]
        declines = [answer for answer in answers if isinstance(answer, Decline)]
        accepted, refused = validate(tasks, updates)
        refused = {**refused, **{decline.client: decline.reason for decline in declines}}
        gone |= {decline.client for decline in declines if decline.final}
        slots["loop"] = {"gone": torch.tensor(sorted(gone), dtype=torch.int64)}
        move = torch.zeros_like(state.models)
        weights: dict[int, float] = {}
        noise: dict[int, float] = {}
        if len(accepted) >= terms.quorum:
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
        charged = tuple(sorted({update.client for update in updates}))
        keep(state, RoundRecord(number, weights, noise, planned, refused, charged))
    return state


def enrolled(terms: Terms) -> RoundView:
    """All that is known before the first update: the public facts of every client."""
    return _facts(terms, 0, [member.client for member in terms.members], torch.zeros(len(terms.members), 0))


def _view(terms: Terms, number: int, updates: Sequence[Update]) -> RoundView:
    vectors = torch.stack([update.vector for update in updates])
    return _facts(terms, number, [update.client for update in updates], vectors)


def _facts(terms: Terms, number: int, clients: Sequence[int], vectors: Tensor) -> RoundView:
    members = [terms.members[client] for client in clients]

    def facts(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return RoundView(
        round=number,
        clients=tuple(clients),
        updates=vectors,
        samples=facts([member.samples for member in members]),
        epsilon=facts([member.policy.epsilon for member in members]),
        planned_noise=facts([terms.planned_noise[client] for client in clients]),
    )


def _by_model(placed: Sequence[int]) -> list[tuple[int, Tensor]]:
    numbers = torch.tensor(placed)
    return [(model, (numbers == model).nonzero().flatten()) for model in sorted(set(placed))]
