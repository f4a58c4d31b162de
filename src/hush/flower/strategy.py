"""The strategy of a Flower server: Flower's rounds, with the weights, projection and step of one of Hush's recipes.

The members are those that answer the first round; their facts (`hush.flower.facts`) are fixed then. From there the
round loop of a federation (`hush.server.loop`) checks and aggregates what they send.

Guarantees:
    - A reply with other arrays, shapes or types, with numbers that are not finite, or longer than its plan allows, is
      left out with the reason, and never ends the run.
    - A share of a round above `max_weight` is limited: members declare their own facts.

Edge cases:
    - Arrays that fewer than half of the first replies change are not trained, and stay as they are.
    - A node that joins after the first round is not a member, and is sent nothing.
    - A recipe that needs more than weights from clients is refused: clusters, control variates, side releases.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor

from hush import recipes
from hush.config import Config, parse
from hush.deploy.shared.roster import RosterEntry, weighted
from hush.deploy.shared.update_limits import update_limits
from hush.engines.schedules import timetable
from hush.engines.server_rng import server_rng
from hush.flower.facts import checked_facts
from hush.privacy.ledger.ledger import claimed_receipt
from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import PrivacySchedule, RoundSpec, Stage
from hush.recipes import Recipe, as_table
from hush.recipes.interfaces import TaskShape
from hush.recipes.limits import fixed, twice_even
from hush.recipes.slots.weight import Impact
from hush.server.loop import Answer, RunTerms, ServerState, serve, start
from hush.text import printable
from hush.types import Decline, HushError, Layout, Member, Policy, RoundRecord, Task, Update

_SHORTEST = "its arrays are not those that were sent"


class HushStrategy(FedAvg):  # type: ignore[misc]
    """Aggregates by a recipe of Hush in an existing ServerApp, for members that reply with `hush.flower.train_reply`.

    Args:
        recipe: A name, a mapping of slots, or a `hush.Recipe`; its weight, project and step are used. How clients
            protect their rows is theirs to say.
        max_weight: The largest share of one member in a round; by default twice an equal one.
        quorum: The fewest usable replies that move the model.
        min_train_nodes: As for Flower's FedAvg.
        min_available_nodes: As for Flower's FedAvg.
        arrayrecord_key: As for Flower's FedAvg.
        configrecord_key: As for Flower's FedAvg.
    """

    def __init__(
        self,
        recipe: Recipe | Mapping[str, Any] | str = "robust-hdp",
        *,
        max_weight: float | None = None,
        quorum: int = 1,
        min_train_nodes: int = 2,
        min_available_nodes: int = 2,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        super().__init__(
            fraction_evaluate=0.0,
            min_train_nodes=min_train_nodes,
            min_available_nodes=min_available_nodes,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
        )
        self.config = parse(
            {"quorum": quorum, "recipe": as_table(recipe), **({} if max_weight is None else {"max_weight": max_weight})}
        )
        self.recipe_name, self.recipe = recipes.parse(self.config.recipe, self.config.mode)
        _check(self.recipe)
        self.records: list[RoundRecord] = []
        self._rounds: int | None = None
        self._sent: ArrayRecord | None = None
        self._members: dict[int, int] = {}
        self._facts: list[dict[str, float]] = []
        self._names: tuple[str, ...] = ()
        self._loop: Generator[list[Task], list[Answer], ServerState] | None = None
        self._tasks: list[Task] = []
        self._state: ServerState | None = None

    def not_covered(self) -> tuple[str, ...]:
        """What the recipe uses that no accountant covers, in words."""
        facts = "facts of the members' plans (rows, batch, budget, noise): taken as public, as members declare them"
        return (facts, *(f"{each.what}: {each.why}" for each in self.recipe.releases() if not each.covered))

    def summary(self) -> None:
        """Log the settings."""
        super().summary()
        log(INFO, "\t└──> Hush: recipe %s, quorum %d", self.recipe_name, self.config.quorum)

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 3600,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:  # fmt: skip
        """As Flower's; the result has the model that the recipe releases, which may differ from the one in training."""
        self._rounds = num_rounds

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            return None if evaluate_fn is None else evaluate_fn(number, self._released(arrays))

        result = super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config,
            None if evaluate_fn is None else evaluate,
        )  # fmt: skip
        result.arrays = self._released(result.arrays)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to all nodes in the first round, and to the members afterwards."""
        self._sent = arrays
        if self._loop is None:
            first: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
            return first
        asked = {task.client for task in self._tasks}
        here = [node for node in grid.get_node_ids() if self._members.get(node) in asked]
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content=record, message_type=MessageType.TRAIN, dst_node_id=node) for node in here]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, and aggregate those that can be used."""
        if self._sent is None:
            raise HushError("strategy: no model was sent; accepted: configure_train before aggregate_train")
        usable: dict[int, tuple[dict[str, np.ndarray], dict[str, float]]] = {}
        refused: dict[int, str] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if node in usable:
                    raise HushError("reply: a second one in the same round")
                usable[node] = self._read(reply)
            except HushError as error:
                refused[node] = printable(error, 200)
        if self._loop is None and usable:
            self._begin({node: facts for node, (_, facts) in usable.items()}, [each for each, _ in usable.values()])
        if self._loop is None or not self._tasks:
            self._log_refused(server_round, refused)
            return None, None
        number = self._tasks[0].round
        answers: list[Answer] = []
        for node, (arrays, facts) in usable.items():
            client = self._members.get(node)
            if client is None:
                refused[node] = "it joined after the first round"
            elif facts != self._facts[client]:
                refused[node] = "its facts differ from those of the first round"
            else:
                answers.append(self._update(client, number, arrays))
        known = {self._members[node]: text for node, text in refused.items() if node in self._members}
        answers += [Decline(client, number, text) for client, text in known.items()]
        try:
            self._tasks = self._loop.send(answers)
        except StopIteration:
            self._tasks = []
        record = self.records[-1]
        nodes = {client: node for node, client in self._members.items()}
        self._log_refused(server_round, {**refused, **{nodes[c]: text for c, text in record.refused.items()}})
        for client, text in record.warnings.items():
            log(WARNING, "node %s: %s", nodes[client], text)
        assert self._state is not None
        metrics: dict[str, float] = {"members": len(record.weights)}
        metrics |= {f"weight-{nodes[client]}": weight for client, weight in record.weights.items()}
        return self._record(self._state.models[0]), MetricRecord(metrics)

    def _read(self, reply: Message) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """The arrays of a reply and its facts, or a `HushError`."""
        if reply.has_error():
            raise HushError(reply.error.reason or "an error without a reason")
        assert self._sent is not None
        found = reply.content.array_records.get(self.arrayrecord_key)
        if found is None or list(found) != list(self._sent):
            raise HushError(f"reply: {_SHORTEST}")
        arrays = {}
        for name, sent in self._sent.items():
            if found[name].dtype != sent.dtype or tuple(found[name].shape) != tuple(sent.shape):
                raise HushError(f"reply: {_SHORTEST} ({printable(name, 60)})")
            try:
                arrays[name] = found[name].numpy()
            except Exception:
                raise HushError(f"reply: {printable(name, 60)} cannot be read") from None
        facts = {name: value for record in reply.content.metric_records.values() for name, value in record.items()}
        return arrays, checked_facts(facts)

    def _begin(self, facts: Mapping[int, dict[str, float]], arrays: list[dict[str, np.ndarray]]) -> None:
        """Fix the members, their facts, and the arrays that are trained."""
        if self._rounds is None:
            raise HushError("strategy: the number of rounds is unknown; accepted: strategy.start(grid, arrays, rounds)")
        assert self._sent is not None
        before = {name: array.numpy() for name, array in self._sent.items()}
        self._names = tuple(
            name
            for name, value in before.items()
            if np.issubdtype(value.dtype, np.floating)
            and 2 * sum(not np.array_equal(each[name], value) for each in arrays) > len(arrays)
        )
        if not self._names:
            log(WARNING, "no reply changes the model; nothing is aggregated")
            return
        self._members = {node: client for client, node in enumerate(sorted(facts))}
        self._facts = [facts[node] for node in sorted(facts)]
        layout = Layout(self._names, tuple(tuple(before[name].shape) for name in self._names))
        terms = _terms(self.config, self.recipe, self._facts, layout, self._rounds)
        self._state = start(terms, self._flat(before)[None])
        self._loop = serve(terms, self._state, self._keep)
        self._tasks = next(self._loop)

    def _keep(self, state: ServerState, record: RoundRecord) -> None:
        self._state = state
        self.records.append(record)

    def _flat(self, arrays: Mapping[str, np.ndarray]) -> Tensor:
        parts = [torch.from_numpy(np.array(arrays[name], dtype=np.float32)).flatten() for name in self._names]
        return torch.cat(parts)

    def _update(self, client: int, number: int, arrays: Mapping[str, np.ndarray]) -> Update:
        assert self._sent is not None
        task = next(each for each in self._tasks if each.client == client)
        before = {name: array.numpy() for name, array in self._sent.items()}
        same = all(np.array_equal(arrays[name], before[name]) for name in before if name not in self._names)
        vector = self._flat(arrays) - self._flat(before)
        receipt = claimed_receipt(client, number, number, "", "")
        # An array that is not trained and differs anyway is no part of the layout that was asked for.
        return Update(
            client=client, round=number, vector=vector, layout=task.answer if same else Layout((), ()), receipt=receipt
        )

    def _record(self, vector: Tensor) -> ArrayRecord:
        """The model as Flower sends it; arrays that are not trained are those that were sent."""
        assert self._sent is not None
        sizes = [int(np.prod(self._sent[name].shape)) for name in self._names]
        parts = dict(zip(self._names, vector.split(sizes), strict=True))
        made = {}
        for name, sent in self._sent.items():
            if name in parts:
                made[name] = Array(parts[name].reshape(tuple(sent.shape)).numpy().astype(sent.dtype))
            else:
                made[name] = sent
        return ArrayRecord(made)

    def _released(self, arrays: ArrayRecord) -> ArrayRecord:
        return arrays if self._state is None or not self.records else self._record(self._state.released[0])

    def _log_refused(self, number: int, refused: Mapping[int, str]) -> None:
        for node, text in refused.items():
            log(WARNING, "round %s: the reply of node %s is not used: %s", number, node, text)


def _check(recipe: Recipe) -> None:
    """Refuse a recipe that asks more of clients than their weights, with the reason."""
    shape = TaskShape(size=1, models=1)
    protect = recipe.protect
    reasons = {
        "assign": (recipe.assign.models != 1, "trains several models, one for each cluster"),
        "local": (recipe.local.pull() > 0, "changes the local steps, which are the trainer's"),
        "project": (recipe.project.encodes, "has clients encode their updates"),
        "weight": (isinstance(recipe.weight, Impact), "needs impact factors, which replies do not declare"),
        "protect": (
            not protect.private or not protect.own_budgets or not protect.spreads_budget or protect.shared_draws
            or protect.fixed_batches or protect.round_steps is not None,
            "says how clients protect their rows, which is for each hush.PrivateTrainer to say",
        ),
    }  # fmt: skip
    for slot, (wrong, why) in reasons.items():
        if wrong:
            raise _refusal(slot, why)
    if names := list(recipe.extras(shape)):
        raise _refusal("recipe", f"sends clients more than the model ({', '.join(names)})")
    if recipe.stage_table(3).specs != (RoundSpec(),):
        raise _refusal("recipe", "asks clients for more than their weights (side releases, or rounds of another kind)")


def _refusal(slot: str, why: str) -> HushError:
    key = "recipe" if slot == "recipe" else f"recipe.{slot}"
    return HushError(
        f"{key}: {why}; accepted in Flower: recipes of weight, project and step, such as robust-hdp, dp-fedavg, "
        'weiavg, pfa, or {"weight": "balanced", "step": "ema"}',
        key,
    )


def _terms(config: Config, recipe: Recipe, facts: list[dict[str, float]], layout: Layout, rounds: int) -> RunTerms:
    """The terms of the round loop, from what the members declare."""
    entries = [
        RosterEntry(
            name=str(c), epsilon=f["epsilon"], delta=f["delta"], relation="add-remove", samples=int(f["num-examples"])
        )
        for c, f in enumerate(facts)
    ]
    recipe = weighted(recipe, entries)
    table = timetable(config.model_copy(update={"rounds": rounds}), recipe, len(facts))
    members, noise, reach, bounds, quiet = [], [], [], [], []
    for client, (entry, own) in enumerate(zip(entries, facts, strict=True)):
        policy = Policy(entry.epsilon, entry.delta)
        member = Member(client=client, policy=policy, samples=entry.samples, batch=int(own["batch-size"]))
        plan = PrivacyPlan(
            samples=member.samples, batch=member.batch, epochs=1, rounds=rounds, clip=own["clip"],
            noise_multiplier=own["noise-multiplier"], relation="add-remove", accountant="pld",
            local_steps=int(own["steps"]),
        )  # fmt: skip
        with_lr = config.model_copy(update={"local": config.local.model_copy(update={"lr": own["lr"]})})
        schedule = PrivacySchedule((Stage(RoundSpec(), plan, rounds),))
        limits = update_limits(
            with_lr, recipe, [member], [entry], [schedule], [None], table.stage_table, table.orders[:1], layout.size
        )
        members.append(member)
        noise.append(plan.update_noise(own["lr"], layout.size))
        reach.append(own["lr"] * plan.steps)
        # Weights are rounded to the type in which they travel.
        bounds.append(1.001 * float(limits.update[0, 0]))
        quiet.append(float(limits.noise[0, 0]))

    def row(values: list[float]) -> Tensor:
        return torch.tensor([values], dtype=torch.float64)

    return RunTerms(
        recipe=recipe,
        members=tuple(members),
        stage_table=table.stage_table,
        planned_noise=row(noise),
        reach=row(reach),
        batch=row([float(member.batch) for member in members]),
        layout=layout,
        participants=table.participants,
        rng=server_rng(config.seed, True),
        quorum=config.quorum,
        clip=1.0,
        bounds=row(bounds),
        noise_bounds=row(quiet) if config.max_weight != 1.0 else None,
        ceiling=fixed(config.max_weight) if config.max_weight else twice_even,
    )
