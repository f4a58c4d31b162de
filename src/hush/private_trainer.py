"""A private trainer: one client's plan, sampler, clip, noise and ledger, for any loop that sends models to clients.

    trainer = hush.PrivateTrainer(net, x, y, epsilon=1.0, delta=1e-5, rounds=3, batch_size=32, ledger="clinic.ledger")
    done = trainer.fit(global_weights, round=1)

It is the client's part of a simulation (`hush.engines.client_round`) with the protocol of a deployment: charge, train,
seal, release.

Guarantees:
    - The ledger file is charged before a row is used. A round that the budget does not cover raises `BudgetSpentError`,
      charges nothing and trains nothing.
    - What `fit` returns follows from the sealed update and from what was given: trained weights, and all other tensors
      of the state as they came. No loss, metric or number of rows is computed.
    - A round is charged once for each time that it is trained. A repeated round returns the sealed update again. A
      charge without a sealed update, left by a process that died, remains spent, and the round is charged anew.

Edge cases:
    - Rounds are distinguished by the name of the run and their number. Without one, each trainer is a run of its own.
    - A round that was answered for other weights is not answered again. Nor is one before the last of the ledger, whose
      update is no longer stored.
    - Weights that the model does not train must be those of the model: others would train a different function.
    - Whoever sends the weights chooses them freely: the plan holds for any.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from hush import models
from hush.config import Config, locating, parse, unit_of, with_noise, with_unit
from hush.data import client_data
from hush.data.client_rows import Clients, persons_of
from hush.data.datasets import Dataset
from hush.data.partition import Share
from hush.engines import client_round
from hush.engines.objective import least_outputs, outputs_of, targets_of, task_of, with_objective
from hush.engines.run_ledgers import RunLedgers, approve
from hush.engines.setup import Federation, build, device_named, own_name
from hush.models import Model
from hush.models.inputs import shapes_of
from hush.models.user_module import given_module
from hush.models.validation import copied
from hush.privacy.ledger import Ledger, witness
from hush.privacy.ledger.binding import bind
from hush.privacy.ledger.fingerprints import Rows
from hush.privacy.plan import PrivacyPlan
from hush.recipes import Recipe
from hush.recipes.slots.weight import Uniform
from hush.simulation import KEYWORDS, path_argument
from hush.trained_model.network import own_module
from hush.training.train import train
from hush.types import Guarantee, HushError, Member, Policy, Receipt, Task

Weights = Mapping[str, Tensor] | Sequence[Any]
NOT_COVERED = (
    "number of training rows: it determines the sampling rate, the steps and the noise, and is taken as public",
    "what the client's own program sends beside these weights: losses, metrics and numbers of rows are neither noised "
    "nor charged",
)


@dataclass(frozen=True, kw_only=True)
class TrainedRound:
    """What one round releases, and the client's guarantee after it.

    Attributes:
        round: The round number.
        weights: The new weights, as they were given: a state dict, or arrays in its order.
        update: What training added, for each trained parameter.
        guarantee: The client's guarantee card.
        repeated: Whether the update was sealed before, so that nothing was charged.
    """

    round: int
    weights: Any
    update: Mapping[str, Tensor]
    guarantee: Guarantee
    repeated: bool


@dataclass(frozen=True)
class SealedRelease:
    """What a sealed answer says about itself: the prints (`array_print`) of its arrays, and what the trainer states.

    `facts` are those of the plan, `not_covered` what no accountant covers.
    """

    prints: frozenset[str]
    facts: Mapping[str, int | float]
    not_covered: tuple[str, ...]


class PrivateTrainer:
    """Trains one client's model by DP-SGD within the client's budget, in any federated loop.

    Args:
        model: An `nn.Module`, or a function that makes one. It is copied, checked and made safe as in a simulation.
        x: The client's training rows: whatever `hush.data.clients` accepts for one client.
        y: Their targets, where `x` does not hold them.
        epsilon: The budget of this run.
        delta: Of the budget.
        rounds: How many rounds the budget is spread over.
        batch_size: Expected rows in a step.
        ledger: The client's ledger file, made where it does not exist. It must outlive the run.
        epochs: Local epochs in a round.
        steps: Local steps in a round, in place of epochs.
        lr: The learning rate, or "auto".
        weight_decay: Of local training.
        clip: The clipping norm.
        lifetime: The budget of the ledger, over all runs; a new ledger has that of this run by default.
        retries: How many further charges the noise leaves budget for, if a process dies in training.
        noise: "secure"; or "seeded", which repeats and protects nobody.
        seed: Of seeded noise.
        relation: "add-remove" or "replace-one".
        accountant: "pld" or "rdp".
        task: "binary", "multiclass", "multilabel" or "regression"; by default it follows from the targets.
        loss: The name of a loss, or your own function of the output and the target of one example.
        classes: The list of classes, or their number; by default those found in the rows, which no epsilon covers.
        device: "cpu", "cuda" or "auto".
        client: The client's name, in the ledger and on the card; by default that of the ledger file.
        person: The key of the person that each row is about, or the column with the keys: the guarantee then protects
            persons, and `batch_size` counts them.
        rows_per_person: How many rows of a sampled person a step averages, 1 by default.
        run: The name of the run, the same for each process that goes on with it.

    Raises:
        HushError: An argument is wrong; the message names it, what was found and what is accepted.
    """

    def __init__(
        self,
        model: nn.Module | Callable[..., nn.Module],
        x: object,
        y: object = None,
        *,
        epsilon: float,
        delta: float,
        rounds: int,
        batch_size: int,
        ledger: str | Path,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | str | None = None,
        weight_decay: float | None = None,
        clip: float | None = None,
        lifetime: float | None = None,
        retries: int | None = None,
        noise: str = "secure",
        seed: int | None = None,
        relation: str | None = None,
        accountant: str | None = None,
        task: str | None = None,
        loss: str | Callable[..., Any] | None = None,
        classes: int | Sequence[object] | None = None,
        device: str | None = None,
        client: str | None = None,
        person: object = None,
        rows_per_person: int | None = None,
        run: str | None = None,
    ) -> None:
        given = {
            "rounds": rounds, "batch_size": batch_size, "epochs": epochs, "steps": steps, "lr": lr,
            "weight_decay": weight_decay, "clip": clip, "noise": noise, "seed": seed, "relation": relation,
            "accountant": accountant, "task": task, "loss": loss, "device": device, "delta": delta,
        }  # fmt: skip
        _check_number("epsilon", epsilon)
        if lifetime is not None:
            _check_number("lifetime", lifetime)
        self.path = path_argument("ledger", ledger)
        self._lifetime = lifetime
        self._run = uuid.uuid4().hex if run is None else _run_name(run)
        try:
            config = _config({**given, "epsilon": float(epsilon)}, retries, rows_per_person)
            rows = client_data.clients(x, y, classes=classes, targets=targets_of(config), person=person)
            config = with_unit(config, rows.dataset.person is not None)
            if len(rows.names) > 1:
                raise HushError(f"x: holds the rows of {len(rows.names)} clients; accepted: those of one")
            self._name = self.path.stem if client is None else client
            self._federation = _federation(config, model, rows.dataset, self._name, client is not None)
        except HushError as error:
            raise _citing(error) from None
        self._model = self._federation.model
        self._x, self._y = self._federation.arrays(1)
        self._stage = next(stage for stage in self._federation.schedules[0].stages if stage.spec.train)
        self._state = _State(self._model)
        self._model.to(self._federation.device)
        with self._opened():
            pass

    @property
    def plan(self) -> PrivacyPlan:
        """Sampling rate, steps, clip and noise of each round, as `hush.plan` computes them."""
        return self._stage.plan

    @property
    def policy(self) -> Policy:
        """The budget of this run."""
        return self._federation.policies[0]

    @property
    def lr(self) -> float:
        """The learning rate."""
        return float(self._federation.config.local.lr)

    @property
    def facts(self) -> dict[str, int | float]:
        """What a server needs to weight the client: all of it follows from the plan, which is public.

        `num-examples` is Flower's name for the number of rows.
        """
        return {
            "num-examples": self.plan.counted,
            "batch-size": self.plan.batch,
            "steps": self.plan.steps,
            "epsilon": self.policy.epsilon,
            "delta": self.policy.delta,
            "noise-multiplier": self.plan.noise_multiplier,
            "clip": self.plan.clip,
            "lr": self.lr,
        }

    def guarantee(self) -> Guarantee:
        """The client's guarantee card: what the ledger has spent over all runs, what is left, what is not covered."""
        with self._opened() as ledger:
            return self._card(ledger)

    def fit(self, weights: Weights | None = None, *, round: int, run: str | None = None) -> TrainedRound:  # noqa: A002
        """Charge the round, train from these weights, and return the new ones.

        Args:
            weights: The global model: a state dict of the model, or a list of arrays in its order; by default the
                weights that the model was given with.
            round: The round number, from 1.
            run: The name of the run, where the trainer was given none.

        Raises:
            BudgetSpentError: The budget does not cover the round. Nothing was charged, trained or released.
            HushError: The weights are not those of the model, or the round was answered for others.
        """
        if isinstance(round, bool) or not isinstance(round, int) or round < 1:
            raise HushError(f"round: found {round!r:.40}; accepted: an integer, 1 or more")
        named = self._run if run is None else _run_name(run)
        start = self._model.start if weights is None else self._state.vector(weights)
        asked = array_print(start)
        with self._opened() as ledger:
            schedule = self._federation.schedules[0]
            approve([ledger], [(schedule.reserved(), schedule.costs())], named)
            ledgers = RunLedgers([ledger], named, durable=True)
            charged = ledgers.charge(0, round, self._stage.round_costs)
            if charged is None:
                raise HushError(f"round: {round} was already answered, and the answer is no longer stored")
            if isinstance(charged, Receipt):
                repeated, vector = False, self._trained(ledger, ledgers, charged, start, weights)
            else:
                repeated, vector = True, _opened_payload(charged[1], asked, round)
            done = self._state.released(start, vector, weights)
            return TrainedRound(
                round=round,
                weights=done,
                update=self._state.update(vector),
                guarantee=self._card(ledger),
                repeated=repeated,
            )

    def _trained(
        self, ledger: Ledger, ledgers: RunLedgers, receipt: Receipt, start: Tensor, weights: Weights | None
    ) -> Tensor:
        """Train and seal. A charge whose training fails is forfeited: it remains spent, and nothing is released."""
        federation, config = self._federation, self._federation.config
        task = Task(
            client=0, round=receipt.round, models=start[None], layout=self._model.layout, answer=self._model.layout
        )
        client = client_round.Client(
            recipe=federation.recipe,
            config=config,
            model=self._model,
            x=self._x,
            y=self._y,
            first_row=0,
            source=client_round.source(config, 0, receipt.round, shared=False),
            shape=federation.terms.shape,
            pull=federation.pull,
            persons=federation.persons(0),
        )
        try:
            work = client_round.work(task, receipt, self._stage, client)
            (moved,) = train(self._model, self._x, self._y, [work.job], None, config.engine.precision)
            vector = client_round.sealed(work, moved).vector
            given = _values(self._state.released(start, vector, weights))
            header = {
                "asked": array_print(start),
                "released": json.dumps([array_print(value) for value in given]),
                "facts": json.dumps(self.facts),
                "not_covered": json.dumps(federation.not_covered()),
            }
            ledgers.seal(0, receipt, lambda: save({"vector": vector.contiguous()}, header))
            ledgers.sent(0, receipt.round)
        except BaseException:
            ledger.forfeit_unsealed(receipt.run, receipt.round)
            raise
        return vector

    def _opened(self) -> Ledger:
        """The ledger, bound to the client's rows. It is open only while it is used: other threads may be next."""
        policy, data = self.policy, self._federation.data.dataset
        lifetime = replace(policy, epsilon=self._lifetime or policy.epsilon)
        with witness.here().locked():
            if self.path.exists():
                ledger = Ledger.open(self.path)
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                ledger = Ledger.create(self.path, self._name, lifetime, self.plan.accountant)
        try:
            _check_terms(ledger, policy, self._lifetime, self._federation.members[0].name, self.plan.accountant)
            rows = data.x if data.given is None else data.given
            bind([ledger], [Rows(rows, data.y, data.person)], sorted(self.path.parent.glob("*.ledger")))
            if self._lifetime is not None and self._lifetime < ledger.terms.policy.epsilon:
                ledger.tighten(lifetime)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _card(self, ledger: Ledger) -> Guarantee:
        (card,) = self._federation.guarantees([ledger])
        return replace(card, name=str(ledger.terms.client))


class _State:
    """The user's state dict against the flat vector that is trained: names, order, and what is not trained."""

    def __init__(self, model: Model) -> None:
        source = model.module if model.source is None else model.source
        network = copied(source, model.name)
        parameters = dict(network.named_parameters())
        self._layout, self._name = model.layout, model.name
        self._state = {name: value.detach() for name, value in own_module(network).state_dict().items()}
        # A tied weight has several names in a state, and one place in the vector.
        place = {parameters[name].data_ptr(): name for name in model.layout.names}
        self._place = {name: place[v.data_ptr()] for name, v in self._state.items() if v.data_ptr() in place}
        self._first = {inner: name for name, inner in reversed(self._place.items())}

    def vector(self, weights: Weights) -> Tensor:
        """The trained weights of a state as a flat vector, or a `HushError` that names what differs."""
        given = self._named(weights)
        parts: dict[str, Tensor] = {}
        for name, own in self._state.items():
            value = given[name]
            if value.shape != own.shape:
                raise HushError(
                    f"weights: {name} has shape {tuple(value.shape)}; accepted: {tuple(own.shape)}, as in the model"
                )
            if name not in self._place:
                if not torch.equal(value.to(own.dtype), own):
                    raise HushError(
                        f"weights: {name} is not trained, and differs from the model's; accepted: the same values"
                    )
                continue
            value = value.detach().cpu().to(torch.float32)
            if not bool(torch.isfinite(value).all()):
                raise HushError(f"weights: {name} contains values that are not finite; accepted: finite numbers")
            before = parts.setdefault(self._place[name], value)
            if not torch.equal(before, value):
                raise HushError(f"weights: {name} and {self._first[self._place[name]]} are tied; accepted: the same")
        return torch.cat([parts[name].flatten() for name in self._layout.names])

    def released(self, start: Tensor, vector: Tensor, weights: Weights | None) -> Any:
        """The new state, in the form and the types of the one given."""
        ends = models.unflatten(start + vector, self._layout)
        given = None if weights is None else self._named(weights)
        made = {
            name: (ends[self._place[name]].clone() if name in self._place else own.clone()).to(
                own.dtype if given is None else given[name].dtype
            )
            for name, own in self._state.items()
        }
        if weights is None or isinstance(weights, Mapping):
            return made
        return [
            value if isinstance(before, Tensor) else value.numpy()
            for value, before in zip(made.values(), weights, strict=True)
        ]

    def update(self, vector: Tensor) -> dict[str, Tensor]:
        """The update by the names of the user's parameters."""
        return {self._first[name]: part.clone() for name, part in models.unflatten(vector, self._layout).items()}

    def _named(self, weights: Weights) -> dict[str, Tensor]:
        if isinstance(weights, Mapping):
            missing = [name for name in self._state if name not in weights]
            added = [str(name) for name in weights if name not in self._state]
            if missing or added:
                found = f"without {', '.join(missing)}" if missing else f"with {', '.join(added)}"
                raise HushError(f"weights: a state {found[:200]}; accepted: the state dict of model {self._name}")
            pairs = [(name, weights[name]) for name in self._state]
        elif isinstance(weights, Sequence) and not isinstance(weights, str | bytes):
            if len(weights) != len(self._state):
                raise HushError(
                    f"weights: found {len(weights)} arrays; accepted: the {len(self._state)} of the state dict of "
                    f"model {self._name}, in its order"
                )
            pairs = list(zip(self._state, weights, strict=True))
        else:
            raise HushError(f"weights: found {type(weights).__name__}; accepted: a state dict, or a list of arrays")
        made: dict[str, Tensor] = {}
        for name, value in pairs:
            try:
                made[name] = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
            except (TypeError, ValueError) as error:
                raise HushError(f"weights: {name} is not an array: {error}; accepted: tensors or arrays") from None
        return made


def _config(given: Mapping[str, Any], retries: int | None, rows_per_person: int | None) -> Config:
    raw: dict[str, dict[str, Any]] = {"data": {"clients": 1}, "recipe": {"name": "dp-fedsgd"}, "privacy": {}}
    if retries is not None:
        raw["privacy"]["retries"] = retries
    if rows_per_person is not None:
        raw["privacy"]["rows_per_person"] = rows_per_person
    for name, value in given.items():
        if value is not None:
            table, _, key = KEYWORDS[name].rpartition(".")
            (raw.setdefault(table, {}) if table else raw)[key] = value
    with locating(None, (), list(KEYWORDS.values())):
        return with_noise(parse(raw), lasting=True)


def _federation(config: Config, given: object, dataset: Dataset, client: str, named: bool) -> Federation:
    """A federation of this client alone, all of whose rows are training rows."""
    task = task_of(config, dataset)
    shape = tuple(dataset.x.shape[1:])
    module = given_module(given, shapes_of(shape, dataset.inputs), outputs_of(task, dataset))
    title = own_name(module)
    model = models.from_user(module, shape, least_outputs(task, dataset), title, dataset.inputs, key=None)
    model = with_objective(config, model, dataset, task)
    persons = [np.array([row]) for row in range(len(dataset.y))] if dataset.person is None else persons_of(dataset)
    rows, sizes = (
        np.concatenate(persons),
        (() if dataset.person is None else (np.array([len(own) for own in persons]),)),
    )
    clients = Clients(
        dataset=dataset, shares=(Share(rows),), train=(rows,), test=(rows[:0],), seed=config.seed, persons=sizes
    )
    privacy = config.privacy
    policy = Policy(float(privacy.budgets), float(privacy.delta), privacy.relation, unit_of(config))
    batch, name = int(config.local.batch_size), client if named else ""
    member = Member(client=0, policy=policy, samples=len(persons), batch=batch, name=name)
    return build(
        config,
        "private trainer",
        Recipe(weight=Uniform()),
        (member,),
        model,
        clients,
        device=device_named(config.engine.device),
        own_module=True,
        uncovered=NOT_COVERED,
    )


def _check_terms(ledger: Ledger, policy: Policy, lifetime: float | None, client: str, accountant: str) -> None:
    """Refuse a ledger of another client, and a run whose plan keeps less than its ledger."""
    terms = ledger.terms
    if client and terms.client != client:
        raise HushError(f"{ledger.where}: the ledger of client {terms.client}; accepted: that of client {client}")
    for name, found, kept in (
        ("delta", policy.delta, terms.policy.delta),
        ("relation", policy.relation, terms.policy.relation),
        ("unit of privacy", policy.unit, terms.policy.unit),
        ("accountant", accountant, terms.accountant),
    ):
        if found != kept:
            raise HushError(f"{name}: found {found}, and {ledger.where} keeps {kept}; accepted: {kept}")
    most = terms.policy.epsilon
    if lifetime is not None and lifetime > most:
        raise HushError(f"lifetime: found {lifetime:g}, and {ledger.where} has {most:g}; accepted: at most {most:g}")
    if policy.epsilon > (lifetime or most):
        raise HushError(
            f"epsilon: found {policy.epsilon:g}, and {ledger.where} has a budget of {lifetime or most:g} for all runs; "
            f"accepted: at most {lifetime or most:g}"
        )


def _opened_payload(payload: bytes, asked: str, number: int) -> Tensor:
    """The sealed update of a round, if it was asked for with the same weights."""
    if _header(payload)["asked"] != asked:
        raise HushError(f"weights: round {number} was already answered for other weights; accepted: the same weights")
    return load(payload)["vector"]


def sealed_release(payload: bytes) -> SealedRelease:
    """What a sealed answer says that it released."""
    header = _header(payload)
    released, facts, not_covered = (json.loads(header[name]) for name in ("released", "facts", "not_covered"))
    return SealedRelease(frozenset(released), facts, tuple(not_covered))


def array_print(value: Tensor | np.ndarray) -> str:
    """The SHA-256 of the numbers in an array."""
    tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def _header(payload: bytes) -> dict[str, str]:
    size = int.from_bytes(payload[:8], "little")
    found: dict[str, str] = json.loads(payload[8 : 8 + size])["__metadata__"]
    return found


def _values(weights: Any) -> list[Any]:
    return list(weights.values() if isinstance(weights, Mapping) else weights)


def _run_name(run: object) -> str:
    if not isinstance(run, str) or not run or len(run) > 200 or not run.isprintable():
        raise HushError(f"run: found {run!r:.80}; accepted: at most 200 printable characters")
    return run


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise HushError(f"{name}: found {value!r:.40}; accepted: a positive number")


def _citing(error: HushError) -> HushError:
    """The error with the keyword argument in place of the key of a config."""
    for name, key in KEYWORDS.items():
        if error.key == key and str(error).startswith(key):
            return HushError(f"{name}{str(error).removeprefix(key)}", key)
    return error
