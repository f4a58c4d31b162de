"""The round loop, a generator: it gives tasks and is sent updates, so any engine can drive it, or many runs at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.privacy.course import Outline
from hush.recipes.frame import Recipe, SlotStates
from hush.recipes.view import NOWHERE, Chance, RoundView, State
from hush.server.schedule import Schedule
from hush.server.validate import validate
from hush.types import Decline, Layout, Member, RoundRecord, Task, Update


@dataclass(frozen=True)
class Terms:
    """What is fixed before the first round: all of it public.

    Attributes:
        recipe: The algorithm.
        members: The clients, in order of their numbers.
        outline: What each round asks.
        planned_noise: By stage and client, the expected squared norm of the noise in an update.
        reach: By stage and client, steps times learning rate.
        layout: The model's.
        schedule: Who is invited when.
        chance: The server's random numbers of a round.
        quorum: The fewest updates that move a model.
        clip: As configured: where an adaptive clip begins.
        bounds: By stage and client, the norm that an honest update stays below; empty where nobody could lie.
    """

    recipe: Recipe
    members: tuple[Member, ...]
    outline: Outline
    planned_noise: tuple[tuple[float, ...], ...]
    reach: tuple[tuple[float, ...], ...]
    layout: Layout
    schedule: Schedule
    chance: Callable[[int], Chance]
    quorum: int = 1
    clip: float = 1.0
    bounds: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class ServerState:
    """All that the server needs to go on: the models it trains, those it would release, and each slot's memory."""

    round: int
    models: Tensor
    released: Tensor
    slots: SlotStates


Answer = Update | Decline
Keep = Callable[[ServerState, RoundRecord], None]


def start(terms: Terms, models: Tensor, told: State | None = None) -> ServerState:
    """The state before the first round; `models` is models x p, `told` is what enrolment brought."""
    recipe, clients = terms.recipe, len(terms.members)
    slots: dict[str, State] = {
        "protect": {**recipe.protect.start(terms.clip), **(told or {})},
        "step": recipe.step.start(models),
        "assign": recipe.assign.start(clients),
        "local": recipe.local.start(clients, models.shape[1]),
        "loop": {
            "gone": torch.zeros(0, dtype=torch.int64),
            "samples": torch.tensor([float(member.samples) for member in terms.members], dtype=torch.float64),
        },
    }
    return ServerState(0, models, models, slots)


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
    recipe, everyone = terms.recipe, range(len(terms.members))
    while state.round < len(terms.schedule) and short_of_quorum(terms, state) is None:
        number = state.round + 1
        ask, chance, slots = terms.outline.at(number), terms.chance(number), dict(state.slots)

        # 1. Invite the clients of this round that have budget left, each with the model it works on.
        gone = set(slots["loop"]["gone"].tolist())
        invited = _facts(terms, number, [c for c in terms.schedule[number - 1] if c not in gone])
        placed = dict(zip(invited.clients, recipe.assign.place(invited, slots["assign"], chance), strict=True))
        open_choice = ask.choose and recipe.assign.offers(number, slots["assign"])
        tasks = _tasks(terms, state, invited, None if open_choice else placed)

        # 2. Wait for what comes back.
        answers = yield tasks

        # 3. Let in what is valid, and note who leaves.
        updates = [answer for answer in answers if isinstance(answer, Update)]
        declines = [answer for answer in answers if isinstance(answer, Decline)]
        accepted, refused = gate(terms, tasks, updates)
        refused = {**refused, **{decline.client: decline.reason for decline in declines}}
        gone |= {decline.client for decline in declines if decline.final}
        slots["loop"] = {**slots["loop"], "gone": torch.tensor(sorted(gone), dtype=torch.int64)}
        move = torch.zeros_like(state.models)
        weights: dict[int, float] = {}
        noise: dict[int, float] = {}
        into: dict[int, int] = {}
        if accepted and len(accepted) >= terms.quorum:
            view = _view(terms, number, tasks, accepted)
            worked = [int(u.notes["choice"]) if open_choice else placed[u.client] for u in accepted]

            # 4. Assign: to which model each update is to be added.
            joined, slots["assign"] = recipe.assign.absorb(view, worked, slots["assign"], chance)
            into = dict(zip(view.clients, joined, strict=True))
            moved = replace(view, updates=view.updates + _moved(state.models, worked, joined))
            for model, rows in _by_model(joined):
                part = moved.rows(rows)

                # 5. Project.
                key = f"project-{model}"
                projected, slots[key] = recipe.project.project(part, slots.get(key, {}), chance)

                # 6. Weigh.
                key = f"weigh-{model}"
                weighing, slots[key] = recipe.weigh.weigh(part, slots.get(key, {}))
                move[model] = weighing.weights.to(move.dtype) @ projected
                weights.update(zip(part.clients, weighing.weights.tolist(), strict=True))
                if weighing.noise is not None:
                    noise.update(zip(part.clients, weighing.noise.tolist(), strict=True))
            # The homes of step 1: what clients were sent was computed with those.
            homes = recipe.assign.homes(everyone, state.slots["assign"])
            slots["protect"] = recipe.protect.absorb(view, slots["protect"])
            slots["local"] = recipe.local.absorb(view, worked, homes, slots["local"])

        # 7. Step, unless this round was only for listening.
        models = state.models
        if not ask.still:
            models, slots["step"] = recipe.step.step(models, move, slots["step"], chance)

        # 8. Record.
        released = recipe.step.released(models, slots["step"])
        state = ServerState(number, models, released, slots)
        keep(
            state,
            RoundRecord(
                round=number,
                weights=weights,
                noise_estimated=noise,
                noise_planned={c: terms.planned_noise[terms.outline.of[number]][c] for c in weights},
                refused=refused,
                charged=tuple(sorted({update.client for update in updates})),
                stage=terms.outline.of[number],
                placed=into if len(models) > 1 else {},
                bytes_up=sum(update.bytes for update in updates),
                bytes_down=sum(4 * (t.models.numel() + sum(n.numel() for n in t.notes.values())) for t in tasks),
            ),
        )
    return state


def gate(terms: Terms, tasks: Sequence[Task], updates: Sequence[Update]) -> tuple[list[Update], Mapping[int, str]]:
    """The updates that a round may use, and why not the others: also for an engine that waits for enough of them."""
    if not tasks:
        return [], {}
    number = tasks[0].round
    return validate(tasks, updates, terms.outline.at(number).choose, _bounds(terms, number, tasks))


def enrolled(terms: Terms) -> RoundView:
    """All that is known before the first update: the public facts of every client."""
    return _facts(terms, 1, [member.client for member in terms.members])


def _tasks(terms: Terms, state: ServerState, invited: RoundView, placed: Mapping[int, int] | None) -> list[Task]:
    """What each client is sent: the model it is placed on, or all of them where it is to choose."""
    recipe, slots = terms.recipe, state.slots
    homes = recipe.assign.homes(range(len(terms.members)), slots["assign"])
    drifts = recipe.local.drifts(invited.clients, homes, len(state.models), slots["local"])
    tasks = []
    for row, client in enumerate(invited.clients):
        model = placed[client] if placed is not None else 0
        shown = slice(None) if placed is None else slice(model, model + 1)
        memory = slots.get(f"project-{model}", {})
        notes = dict(recipe.project.notes(invited.rows(torch.tensor([row])), memory)[0])
        answer = recipe.project.answer(terms.layout, notes)
        notes.update(recipe.protect.notes(slots["protect"]))
        if drifts is not None:
            notes["drift"] = drifts[row, shown]
        tasks.append(Task(client, invited.round, state.models[shown], terms.layout, answer, notes))
    return tasks


def _bounds(terms: Terms, number: int, tasks: Sequence[Task]) -> dict[int, float]:
    """How long each answer can be, with the clip and the drift that its task brings."""
    if not terms.bounds:
        return {}
    stage, found = terms.outline.of[number], {}
    for task in tasks:
        scale = float(task.notes["clip"]) / terms.clip if "clip" in task.notes else 1.0
        drift = float(task.notes["drift"].norm(dim=-1).max()) if "drift" in task.notes else 0.0
        whole = scale * terms.bounds[stage][task.client] + terms.reach[stage][task.client] * drift
        found[task.client] = whole if task.answer == terms.layout else _projected(task, whole)
    return found


def _projected(task: Task, whole: float) -> float:
    """How long an answer can be that says how far an update goes in some directions."""
    if "basis" not in task.notes:
        return math.inf
    parts = task.notes["basis"].double().split(task.layout.sizes, dim=1)
    stretch = math.sqrt(max(float(torch.linalg.matrix_norm(part @ part.T, 2)) for part in parts))
    return stretch * (whole + float(task.notes["middle"].double().norm()))


def _view(terms: Terms, number: int, tasks: Sequence[Task], updates: Sequence[Update]) -> RoundView:
    sent = {task.client: task for task in tasks}
    decode = terms.recipe.project.decode
    vectors = [decode(update.vector, terms.layout, sent[update.client].notes) for update in updates]
    names = updates[0].notes
    notes = {name: torch.tensor([u.notes[name] for u in updates], dtype=torch.float64) for name in names}
    facts = _facts(terms, number, [update.client for update in updates])
    return replace(facts, updates=torch.stack(vectors), notes=notes)


def _facts(terms: Terms, number: int, clients: Sequence[int]) -> RoundView:
    members, stage = [terms.members[client] for client in clients], terms.outline.of[number]

    def facts(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return RoundView(
        round=number,
        clients=tuple(clients),
        updates=torch.zeros(len(clients), 0),
        samples=facts([member.samples for member in members]),
        epsilon=facts([member.policy.epsilon for member in members]),
        planned_noise=facts([terms.planned_noise[stage][client] for client in clients]),
        reach=facts([terms.reach[stage][client] for client in clients]),
        layout=terms.layout,
        budgets=facts([member.policy.epsilon for member in terms.members]),
        groups=torch.tensor([member.group for member in terms.members]),
        rounds=len(terms.schedule),
    )


def _moved(models: Tensor, worked: Sequence[int], joined: Sequence[int]) -> Tensor:
    """What to add to updates that were made on one model and go to another, so that they end where they ended."""
    to = [there if there != NOWHERE else here for here, there in zip(worked, joined, strict=True)]
    return models[list(worked)] - models[to]


def _by_model(placed: Sequence[int]) -> list[tuple[int, Tensor]]:
    numbers = torch.tensor(placed)
    return [(model, (numbers == model).nonzero().flatten()) for model in sorted(set(placed)) if model != NOWHERE]
