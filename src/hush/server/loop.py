"""The round loop, a generator that yields tasks and receives updates, so that any engine can drive it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hush.privacy.schedule import RoundSpec, StageTable
from hush.privacy.side_release import ReleaseShape
from hush.recipes.context import DenseRows, RoundView, Rows, ServerRng, State
from hush.recipes.limits import NONE, Ceiling, InfluenceLimits
from hush.recipes.recipe import Recipe, SlotStates
from hush.recipes.round import aggregate, invite
from hush.recipes.secure_sums import Sum, SumPlan, SumTerms, aggregate_sums, excess, sum_plans, summed
from hush.server import evaluation
from hush.server.half_precision import rounded_models
from hush.server.participation import Participants
from hush.server.validation import validate
from hush.types import Decline, Layout, Member, RoundRecord, Task, Update


@dataclass(frozen=True, kw_only=True, eq=False)
class RunTerms:
    """The settings of a run that are fixed before its first round. All of them are public.

    Attributes:
        recipe: The algorithm.
        members: The clients, in order of their numbers.
        stage_table: What each round asks.
        planned_noise: The expected squared norm of the noise in an update, stages x clients, float64; where clients do
            not train, in the means over rows of what they release.
        reach: Steps times learning rate, stages x clients, float64.
        layout: The model's.
        participants: Who is invited in which round.
        rng: The server's random numbers of a round.
        quorum: The fewest updates that move a model.
        clip: As configured: where an adaptive clip begins.
        bounds: The norm that an honest update stays below, stages x clients, float64; None where nobody could lie.
        noise_bounds: The same of its noise alone; None where updates are not compared with each other.
        batch: The expected rows in a batch, stages x clients.
        shape: What the widths of side releases depend on.
        side_bounds: By stage and client, the norm that an honest side release stays below, by its name; empty where
            nobody could lie.
        evaluation_noise: The standard deviation of the noise in each entry of the clients' evaluations, by client; None
            if nothing is evaluated.
        ceiling: The largest share of a model's total pull that one client can have, by how many clients move it.
        sums: With secure aggregation, what the sums of updates depend on; else None.
        halves: Whether models, and updates unless they are masked, are sent as 16-bit numbers.
    """

    recipe: Recipe
    members: tuple[Member, ...]
    stage_table: StageTable
    planned_noise: Tensor
    reach: Tensor
    layout: Layout
    participants: Participants
    rng: Callable[[int], ServerRng]
    quorum: int = 1
    clip: float = 1.0
    bounds: Tensor | None = None
    noise_bounds: Tensor | None = None
    batch: Tensor | None = None
    shape: ReleaseShape = field(default_factory=lambda: ReleaseShape(inputs=(), classes=0, parameters=0))
    side_bounds: tuple[tuple[Mapping[str, float], ...], ...] = ()
    ceiling: Ceiling = NONE
    evaluation_noise: Tensor | None = None
    sums: SumTerms | None = None
    halves: bool = False

    def spec(self, number: int) -> RoundSpec:
        """Return what the round requests from its clients."""
        return self.stage_table.specs[self.stage_table.of[number]]


@dataclass(frozen=True)
class ServerState:
    """The complete state of the server: the models in training, the models to release, and the state of each slot."""

    round: int
    models: Tensor
    released: Tensor
    slots: SlotStates


CLUSTERS = "clusters"  # the model of each client, among the results of enrolment
Answer = Update | Decline


@dataclass(frozen=True, eq=False)
class StoredAnswers:
    """Answers whose vectors are stored elsewhere: `rows` has the decoded vector of each update among them, in order."""

    answers: Sequence[Answer]
    rows: Rows


@dataclass(frozen=True, eq=False)
class SummedAnswers:
    """Answers of which only sums of their vectors are known: secure aggregation between machines."""

    answers: Sequence[Answer]
    sums: Sequence[Sum]


Answers = Sequence[Answer] | StoredAnswers | SummedAnswers
SaveRound = Callable[[ServerState, RoundRecord], bool | None]


def start(terms: RunTerms, models: Tensor, enrolment: State | None = None) -> ServerState:
    """Return the state before the first round.

    `models` is models x p; `enrolment` holds the results of enrolment: what `protect` keeps, and the `CLUSTERS` that
    were found, each of which trains a model of its own.
    """
    recipe, clients = terms.recipe, len(terms.members)
    sent = dict(enrolment or {})
    assigned, clusters = recipe.assign.start(clients), sent.pop(CLUSTERS, None)
    if clusters is not None:
        assigned = recipe.assign.enrolled(clusters.tolist(), assigned)
        # As many models as clients were placed on, all alike at first.
        models = models[0].repeat(int(clusters.max()) + 1, 1) if len(models) == 1 else models
    slots: dict[str, State] = {
        "protect": {**recipe.protect.start(terms.clip), **sent},
        "step": recipe.step.start(models),
        "assign": assigned,
        "local": recipe.local.start(clients, models.shape[1]),
        "loop": {
            "gone": torch.zeros(0, dtype=torch.int64),
            "samples": torch.tensor([float(member.samples) for member in terms.members], dtype=torch.float64),
        },
        evaluation.SLOT: {},
    }
    for model in range(len(models)):
        slots[f"project-{model}"] = recipe.project.start(clients, models.shape[1])
        slots[f"weight-{model}"] = recipe.weight.start(clients)
    return ServerState(0, models, models, slots)


def short_of_quorum(terms: RunTerms, state: ServerState) -> str | None:
    """Return why the run must stop, if fewer clients than the quorum have budget left; else None."""
    left = len(terms.members) - len(state.slots["loop"]["gone"])
    if left >= terms.quorum:
        return None
    able = f"{left} of {len(terms.members)} clients have remaining budget"
    return f"after round {state.round}: {able}, quorum {terms.quorum}"


def ended_early(terms: RunTerms, state: ServerState) -> str | None:
    """Return why the run ends before its last round: fewer clients than the quorum, or early stopping; else None."""
    short, asked = short_of_quorum(terms, state), terms.recipe.evaluation
    return short if asked is None else short or evaluation.stops(asked, state.slots.get(evaluation.SLOT, {}))


def serve(terms: RunTerms, state: ServerState, keep: SaveRound) -> Generator[list[Task], Answers, ServerState]:
    """Run the remaining rounds. `keep` is called with the new state and the record after each round; it ends the run
    by returning True.

    A client that declines permanently is not invited again. The run ends when fewer clients than the quorum remain. A
    round in which fewer clients than the quorum answer leaves the models unchanged.
    """
    recipe = terms.recipe
    while state.round < len(terms.participants) and ended_early(terms, state) is None:
        number = state.round + 1
        spec, rng, slots = terms.spec(number), terms.rng(number), dict(state.slots)

        # 1. Invite the clients of this round that have budget left.
        gone = set(slots["loop"]["gone"].tolist())
        invited = _facts(terms, number, [c for c in terms.participants[number - 1] if c not in gone])
        shown = rounded_models(state.models) if terms.halves else state.models
        invitation = invite(recipe, invited, shown, slots, rng, choose=spec.choose)

        # 2. Wait for the answers.
        received = yield invitation.tasks
        answers = received.answers if isinstance(received, StoredAnswers | SummedAnswers) else received

        # 3. Accept valid updates, and record clients that leave.
        updates = [answer for answer in answers if isinstance(answer, Update)]
        traffic = _traffic(terms, updates, invitation.tasks)
        declines = [answer for answer in answers if isinstance(answer, Decline)]
        accepted, refused = usable_updates(terms, invitation.tasks, updates)
        refused = {**refused, **{decline.client: decline.reason for decline in declines}}
        gone |= {decline.client for decline in declines if decline.final}
        slots["loop"] = {**slots["loop"], "gone": torch.tensor(sorted(gone), dtype=torch.int64)}

        figures = _evaluated(terms, number, accepted)
        if recipe.evaluation is not None:
            before = slots.get(evaluation.SLOT, {})
            slots[evaluation.SLOT] = evaluation.absorbed(recipe.evaluation, before, figures, state.models)

        # 4. Aggregate: assign, project, weight, step.
        used = accepted if len(accepted) >= terms.quorum else []
        if terms.sums is None:
            facts, limits = _facts(terms, number, [update.client for update in used]), _limits(terms, number, used)
            stored = _stored_rows(received, updates, used)
            found = aggregate(
                recipe, facts, invitation, used, state.models, slots, rng,
                limits=limits, step=not spec.still, stored=stored,
            )  # fmt: skip
        else:
            sums, why = _sums(terms, invitation.tasks, received, updates, used)
            refused = {**refused, **why}
            facts = _facts(terms, number, sorted(client for each in sums for client in each.present))
            found = aggregate_sums(
                recipe, facts, sums, state.models, slots, rng,
                groups=len(terms.sums.groups), ceiling=terms.ceiling, step=not spec.still,
            )  # fmt: skip

        # 5. Record.
        state = ServerState(number, found.models, found.released, found.slots)
        record = RoundRecord(
            round=number,
            weights=found.weights,
            noise_estimated=found.noise,
            noise_planned={c: float(terms.planned_noise[terms.stage_table.of[number], c]) for c in found.weights},
            refused=refused,
            charged=tuple(sorted({update.client for update in updates})),
            stage=terms.stage_table.of[number],
            placed=found.joined if len(found.models) > 1 else {},
            bytes_up=traffic[0],
            bytes_down=traffic[1],
            warnings=found.warnings,
            evaluation=figures,
        )
        if keep(state, record):
            break
    return state


def _evaluated(terms: RunTerms, number: int, updates: Sequence[Update]) -> Mapping[str, Any]:
    """Return the figures of a round that evaluates, from the noised counts of valid answers."""
    if terms.recipe.evaluation is None or terms.evaluation_noise is None:
        return {}
    shape = terms.shape
    return evaluation.evaluated(
        terms.recipe.evaluation, number, updates, terms.evaluation_noise, shape.classes, shape.loss_clip
    )


def _stored_rows(received: Answers, updates: Sequence[Update], used: Sequence[Update]) -> Rows | None:
    """Return the rows of the updates that are used, if they are stored elsewhere."""
    if not isinstance(received, StoredAnswers) or not used:
        return None
    places = {id(update): row for row, update in enumerate(updates)}
    return received.rows.take(torch.tensor([places[id(update)] for update in used]))


def plans_of_sums(terms: RunTerms, number: int) -> list[SumPlan]:
    """Return the sums of a round, with secure aggregation. They follow from public facts alone."""
    if terms.sums is None:
        return []
    view, stage = _facts(terms, number, terms.participants[number - 1]), terms.stage_table.of[number]
    return sum_plans(terms.recipe, view, terms.sums, terms.sums.ranges[stage], terms.ceiling)


def _sums(
    terms: RunTerms, tasks: Sequence[Task], received: Answers, updates: Sequence[Update], used: Sequence[Update]
) -> tuple[Sequence[Sum], Mapping[int, str]]:
    """Return the sums of a round, and why updates are in none of them."""
    clients = [update.client for update in used]
    if isinstance(received, SummedAnswers):
        sums = [each for each in received.sums if set(each.present) <= set(clients)]
    elif used:
        rows = _stored_rows(received, updates, used) or DenseRows(torch.stack([update.vector for update in used]))
        sums = summed(plans_of_sums(terms, tasks[0].round), clients, rows)
    else:
        sums = []
    if sums and (fault := excess(sums, _bounds(terms, tasks[0].round, tasks))):
        return [], dict.fromkeys(clients, fault)
    inside = {client for each in sums for client in each.present}
    words = "secure aggregation: too few of the members of its sum were present to the end"
    return sums, {client: words for client in clients if client not in inside}


def _traffic(terms: RunTerms, updates: Sequence[Update], tasks: Sequence[Task]) -> tuple[int, int]:
    """Return the payload of a round in bytes, to the server and from it."""
    up, down = sum(map(bytes_of_update, updates)), sum(map(bytes_of_task, tasks))
    if terms.halves:
        down -= 2 * sum(task.models.numel() for task in tasks)
        up -= 0 if terms.sums else 2 * sum(update.layout.size for update in updates)
    return up, down


def bytes_of_update(update: Update) -> int:
    """Return the payload of an update in bytes: float32 for the vector, float64 for each additional number."""
    side = update.side
    numbers = int(side.choice is not None) + sum(answer.numel() for answer in side.releases.values())
    return 4 * (update.vector.numel() if update.vector_facts is None else update.vector_facts.size) + 8 * numbers


def bytes_of_task(task: Task) -> int:
    """Return the payload of a task in bytes: four per number."""
    extras = task.extras
    tensors = (task.models, extras.input_mean, extras.drift, *extras.slots.values())
    return 4 * (int(extras.clip is not None) + sum(tensor.numel() for tensor in tensors if tensor is not None))


def _limits(terms: RunTerms, number: int, updates: Sequence[Update]) -> InfluenceLimits:
    """Return the limits on one client's influence in a round; if all clients are trusted, only the weight ceiling."""
    bounds = terms.noise_bounds
    if bounds is not None:
        bounds = bounds[terms.stage_table.of[number], [update.client for update in updates]]
    return InfluenceLimits(ceiling=terms.ceiling, noise_bounds=bounds, clip=terms.clip)


def usable_updates(
    terms: RunTerms, tasks: Sequence[Task], updates: Sequence[Update]
) -> tuple[list[Update], Mapping[int, str]]:
    """Return the updates that a round may use, and why the others are rejected; also used to count towards a quorum."""
    if not tasks:
        return [], {}
    number = tasks[0].round
    side = dict(enumerate(terms.side_bounds[terms.stage_table.of[number]])) if terms.side_bounds else None
    return validate(tasks, updates, terms.spec(number), terms.shape, _bounds(terms, number, tasks), side)


def enrolled(terms: RunTerms) -> RoundView:
    """Return the public facts of every client, known before the first update."""
    return _facts(terms, 1, [member.client for member in terms.members])


def _bounds(terms: RunTerms, number: int, tasks: Sequence[Task]) -> dict[int, float]:
    """Return the maximum norm of each client's update, given the clipping norm and the drift in its task."""
    if terms.bounds is None:
        return {}
    stage, found = terms.stage_table.of[number], {}
    for task in tasks:
        drift = 0.0 if task.extras.drift is None else float(task.extras.drift.norm(dim=-1).max())
        whole = _clip_scale(terms, task) * float(terms.bounds[stage, task.client])
        whole += float(terms.reach[stage, task.client]) * drift
        found[task.client] = terms.recipe.project.answer_bound(whole, terms.layout, task.extras)
    return found


def _clip_scale(terms: RunTerms, task: Task) -> float:
    return 1.0 if task.extras.clip is None else task.extras.clip / terms.clip


def _facts(terms: RunTerms, number: int, clients: Sequence[int]) -> RoundView:
    members, stage = [terms.members[client] for client in clients], terms.stage_table.of[number]

    def facts(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return RoundView(
        round=number,
        clients=tuple(clients),
        updates=torch.zeros(len(clients), 0),
        samples=facts([member.samples for member in members]),
        epsilon=facts([member.policy.epsilon for member in members]),
        planned_noise=terms.planned_noise[stage, list(clients)],
        reach=terms.reach[stage, list(clients)],
        batch=torch.ones(0) if terms.batch is None else terms.batch[stage, list(clients)],
        layout=terms.layout,
        budgets=facts([member.policy.epsilon for member in terms.members]),
        groups=torch.tensor([member.group for member in terms.members]),
        rounds=len(terms.participants),
    )
